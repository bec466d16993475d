"""The winner's folder: its weights, its architecture, and a program that runs with torch alone."""

from __future__ import annotations

import io
import json
import secrets
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from nas.errors import StoreError
from nas.problems.base import Problem
from nas.run import TrialRun
from nas.store.checkpoint import publish_tensors
from nas.store.files import Files, Reference
from nas.store.weights import StoredWeights
from nas.trial import Trial

if TYPE_CHECKING:
    import torch


def export(problem: Problem, run: TrialRun, trial: Trial, files: Files) -> dict[str, Any]:
    """Publishes ``best/<trial>-<nonce>/`` and gives the folder and the references of its files.

    ``model.safetensors`` holds the weights, ``architecture.json`` what was built, ``program.pt2`` the network by
    ``torch.export`` (eval mode, any batch size), and ``export.json`` what could not be made, and why.
    """
    import torch

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
    if not problem.has("export"):
        missing["program.pt2"] = "the problem defines no `export(run)`, which gives the network and an example batch"
    elif trial.checkpoint is None:
        missing["program.pt2"] = "the trial saved no weights (`run.save(model)`)"
    else:
        try:
            model, example = problem.export(run)
            architecture["modules"] = {n: repr(m) for n, m in model.named_children()}
            architecture["inputs"] = [{"shape": list(x.shape), "dtype": str(x.dtype)} for x in example]
            contents["program.pt2"] = exported_program(model, example)
        except StoreError:
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)  # lands in the worker's log
            missing["program.pt2"] = f"{type(error).__name__}: {error}"
    references: list[Reference] = []
    if trial.checkpoint is not None and trial.checkpoint.packs:
        tensors = StoredWeights(files, trial.checkpoint).read_all()
        references += publish_tensors(files, f"{folder}/model.safetensors", tensors).packs
    else:
        missing["model.safetensors"] = "the trial saved no weights (`run.save(model)`)"
    contents["architecture.json"] = json.dumps(architecture, indent=2).encode()
    contents["export.json"] = json.dumps({"missing": missing}, indent=2).encode()
    references += [files.publish(f"{folder}/{name}", [data]) for name, data in contents.items()]
    return {"export": folder, "files": [reference.to_json() for reference in references], "missing": missing}


def exported_program(model: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> bytes:
    """The bytes of a ``.pt2`` program in eval mode, whose inputs' first dimension is any batch size from 1.

    Args:
        model: The network; it is left in eval mode.
        example: Its inputs, each of shape ``(2, ...)``: a batch of 1 would be taken for a constant.

    Raises:
        RuntimeError: the program's answer to the example differs from the network's.
    """
    import torch

    model = model.eval()
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecated calls while it traces
        program = torch.export.export(model, example, dynamic_shapes=tuple({0: batch} for _ in example))
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        torch.testing.assert_close(program.module()(*example), model(*example))
    return buffer.getvalue()
