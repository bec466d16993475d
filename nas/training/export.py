"""The winner's export: its weights, its architecture and a program that needs only torch."""

from __future__ import annotations

import io
import json
import logging
import secrets
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nas.core.errors import ConfigurationError, StorageError
from nas.core.reference import Reference
from nas.core.tracebacks import error_line, raise_ctrl_c, text_of
from nas.core.trial import Trial
from nas.storage.lazy_weights import StoredWeights
from nas.storage.pack import write_pack
from nas.storage.records import Records
from nas.storage.tensor_names import is_weight
from nas.training.messages import NEEDS_EXTRA, NO_EXPORT, NO_WEIGHTS, PROGRAM
from nas.training.problem import Ability, Problem
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


NEEDS_ONNX = f'{NEEDS_EXTRA}onnx: pip install "heirloom-nas[onnx]"'
_ONNX_MODULES = frozenset({"onnxruntime", "onnxscript"})


def export(problem: Problem, run: TrialRun, trial: Trial, records: Records) -> dict[str, Any]:
    """Publishes ``best/<trial>-<nonce>/``. Returns the folder and the references of its files.

    ``model.safetensors``: the weights, without optimizer state. ``architecture.json``: the point and the network.
    ``program.pt2``: the network by ``torch.export`` (eval mode, any batch size). ``model.onnx``: the program for other
    runtimes; needs the extra ``onnx``. ``export.json``: the files that could not be made, with reasons.
    """
    import torch

    from nas.training.export_parts import export_parts

    files = records.files
    folder = f"best/{trial.number:06d}-{secrets.token_hex(4)}"
    missing: dict[str, str] = {}
    architecture: dict[str, Any] = {
        "trial": trial.number,
        "problem": f"{type(problem).__module__}.{type(problem).__qualname__}",
        "point": trial.point,
        "policies": sorted(trial.policies),
        "metrics": dict(trial.metrics),
        "torch": torch.__version__,
    }
    contents: dict[str, bytes] = {}
    if Ability.EXPORT not in problem.abilities:
        missing[PROGRAM] = NO_EXPORT
    elif trial.checkpoint is None:
        missing[PROGRAM] = NO_WEIGHTS
    else:
        try:
            model, example = export_parts(problem.export(run))
            model = model.cpu().eval()
            architecture["modules"] = {name: repr(module) for name, module in model.named_children()}
            architecture["inputs"] = [{"shape": list(tensor.shape), "dtype": str(tensor.dtype)} for tensor in example]
            program = exported_program(model, example)
            contents[PROGRAM] = program_bytes(program)
        except StorageError:
            raise
        except BaseException as error:
            raise_ctrl_c(error)
            missing[PROGRAM] = _one_line(error)
        else:
            try:
                contents["model.onnx"] = onnx_bytes(program, example)
            except ModuleNotFoundError as error:
                missing["model.onnx"] = NEEDS_ONNX if error.name in _ONNX_MODULES else _one_line(error)
            except Exception as error:
                missing["model.onnx"] = _one_line(error)
    references: list[Reference] = []
    if trial.checkpoint is not None and trial.checkpoint.packs:
        tensors = StoredWeights(files, trial.checkpoint, is_weight).read_all()
        pack, _ = write_pack(files, f"{folder}/model.safetensors", tensors, shares=False)
        references += [pack] if pack is not None else []
    else:
        missing["model.safetensors"] = NO_WEIGHTS
    missing = {name: records.error_text(text) for name, text in missing.items()}
    contents["architecture.json"] = json.dumps(architecture, indent=2).encode()
    contents["export.json"] = json.dumps({"missing": missing}, indent=2).encode()
    references += [files.publish(f"{folder}/{name}", [data]) for name, data in contents.items()]
    return {"export": folder, "files": [reference.to_json() for reference in references], "missing": missing}


def exported_program(model: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Returns the program of a network in eval mode, for any batch size from 1.

    Args:
        model: The network, in eval mode.
        example: Its inputs, each of shape ``(2, ...)``; torch would treat a batch size of 1 as a constant.

    Raises:
        ConfigurationError: the network does not accept the inputs, or other batch sizes, or torch can't export it.
        AssertionError: the program's output for the example differs from the network's.
    """
    import torch

    from nas.training.export_parts import ONE_BATCH_SIZE, reason, run_example

    with torch.no_grad(), _quiet():
        expected = run_example(model, example)  # also gives lazy layers, whose weights are loaded, their final class
        try:
            program = torch.export.export(model, example, dynamic_shapes=_any_batch(example))
        except Exception as error:
            raise ConfigurationError(
                ONE_BATCH_SIZE
                if "specialized it to be a constant" in text_of(error)
                else f"export returned a network that torch.export can't convert: {reason(error)}"
            ) from error
        torch.testing.assert_close(program.module()(*example), expected)
    return program


def program_bytes(program: ExportedProgram) -> bytes:
    """Returns the program in the format of ``torch.export.load``."""
    import torch

    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def onnx_bytes(program: ExportedProgram, example: tuple[torch.Tensor, ...]) -> bytes:
    """Returns the program as an ONNX model with its weights, for any batch size.

    The format allows at most 2 GB.

    Raises:
        AssertionError: onnxruntime's output differs by more than 1e-4 and 0.1 %.
        torch.onnx.errors.OnnxExporterError: torch can't convert a part of it to ONNX.
        ImportError: the extra ``onnx`` is not installed.
    """
    import onnxruntime
    import onnxscript  # noqa: F401  (here, so that its absence is an ImportError)
    import torch
    from torch.utils._pytree import tree_leaves

    with _quiet():
        exported = torch.onnx.export(program, example, dynamo=True, verbose=False, dynamic_shapes=_any_batch(example))
    assert exported is not None
    data = bytes(exported.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [model_input.name for model_input in session.get_inputs()]
    outputs = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)})
    with torch.no_grad():
        expected = program.module()(*example)
    for output, right in zip(outputs, filter(torch.is_tensor, tree_leaves(expected)), strict=True):
        torch.testing.assert_close(torch.from_numpy(output), right, rtol=1e-3, atol=1e-4)
    return data


def _any_batch(example: tuple[torch.Tensor, ...]) -> tuple[dict[int, Any], ...]:
    import torch

    batch = torch.export.Dim("batch", min=1)
    return tuple({0: batch} for _ in example)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides torch's warnings while it exports: about its own deprecated calls and about optional packages."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _one_line(error: BaseException) -> str:
    """Returns an error as one line. Its traceback goes to the worker's log."""
    traceback.print_exception(error, file=sys.stderr)
    return str(error) if isinstance(error, ConfigurationError) else error_line(error)
