"""The winner's export, loaded and run in a process with torch alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Proposal, State, Trial
from nas.executors.events import Event, Notice
from nas.executors.in_process_pool import InProcessPool
from nas.inheritance.optimizer_state import optimizer_tensors
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.problem import Problem
from nas.training.runtime import TrialRuntime
from nas.training.trial_run import TrialRun
from tests.support.problems import N_CLASSES, N_INPUTS, ExportProblem, PlainProblem, ScoreProblem, network

BATCH_SIZES = (1, 2, 7, 64)

STRANGER = """
import sys

sys.modules["nas"] = None  # an editable install would make it importable
try:
    import nas
except ImportError:
    import torch
else:
    raise SystemExit("nas can be imported")

program = torch.export.load(sys.argv[1]).module()
inputs, expected = torch.load(sys.argv[2], weights_only=True)
for given, answer in zip(inputs, expected, strict=True):
    torch.testing.assert_close(program(given), answer, rtol=1e-6, atol=1e-6)
print(len(inputs), "nas" in sys.modules and sys.modules["nas"])
"""


ONNX_STRANGER = """
import sys

sys.modules["torch"] = sys.modules["nas"] = None
import numpy
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
[given] = session.get_inputs()
arrays = numpy.load(sys.argv[2])
n = len(arrays) // 2
for k in range(n):
    [answer] = session.run(None, {given.name: arrays[f"x{k}"]})
    numpy.testing.assert_allclose(answer, arrays[f"y{k}"], rtol=1e-4, atol=1e-4)
print(n)
"""


class Special(nn.Module):
    """A module that ONNX can't represent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.modified_bessel_i1(x)


class TrainedProblem(ExportProblem):
    """Saves a network in which every buffer and weight differs from a new one's."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.save(trained())
        return {"score": 0.5}


class FormProblem(TrainedProblem):
    """Its ``export`` returns what ``form`` makes of the network and a batch."""

    form: Callable[[nn.Module, torch.Tensor], object]
    needs_weights = False
    has_trained = False

    def train(self, run: TrialRun) -> Mapping[str, float]:
        self.has_trained = True
        return super().train(run)

    def export(self, run: TrialRun) -> Any:
        model = network()
        if self.needs_weights:
            model.load_state_dict(run.restore_tensors())
            assert self.has_trained
        return self.form(run.restore(model), torch.zeros(2, N_INPUTS))


def formed(form: Callable[[nn.Module, torch.Tensor], object]) -> FormProblem:
    """Returns a problem whose ``export`` returns this form."""
    problem = FormProblem()
    problem.form = form
    return problem


class BrokenExport(TrainedProblem):
    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        raise NotImplementedError("no program of this network")


class BatchOfOne(TrainedProblem):
    """Builds a network that accepts a batch of one only."""

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return nn.Sequential(run.restore(network()), nn.Flatten(0), nn.Linear(2 * N_CLASSES, 1)), (torch.zeros(2, 3),)


def trained() -> nn.Module:
    torch.manual_seed(7)
    model = network()
    for _ in range(3):
        model(torch.randn(8, N_INPUTS) * 3 + 1)
    return model


@dataclass(frozen=True)
class Exported:
    """The result of an export, and its folder."""

    answer: dict[str, Any]
    root: Path
    trial: Trial
    runtime: TrialRuntime
    notices: list[str]
    """What the worker told while the trial ran."""

    @property
    def folder(self) -> Path:
        return self.root / self.answer["export"]

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found


def export(problem: Problem, root: Path, *, donor: Trial | None = None) -> Exported:
    """Trains a trial and exports it as a worker does."""
    files = open_root(str(root))
    spec = RuntimeSpec(problem=Spec.of(PlainProblem), url=str(root), options={})
    point = {"x": 3}
    number = 6 if donor else 5
    trial = Trial(number=number, index=number, proposal=Proposal(point=point), state=State.RUNNING, attempt=1, slot=0)
    Records(files).propose(trial)
    donors = () if donor is None or donor.checkpoint is None else (DonorWeights(donor.number, donor.checkpoint),)
    events: list[Event] = []
    finished = InProcessPool(spec, files, problem).run(Assignment(trial, donors), events.append)
    assert finished is not None
    assert finished.state == State.COMPLETE, finished.error
    runtime = TrialRuntime(spec, problem=problem, files=files)
    notices = [event.text for event in events if isinstance(event, Notice)]
    return Exported(runtime.export(finished), root, finished, runtime, notices)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(TrainedProblem(), tmp_path_factory.mktemp("export"))


@pytest.mark.slow
def test_program_runs_with_torch_alone(exported: Exported, tmp_path: Path) -> None:
    """program.pt2 gives the network's eval-mode output at any batch size, without nas installed."""
    model = trained().eval()
    inputs = [torch.randn(size, N_INPUTS) for size in BATCH_SIZES]
    with torch.no_grad():
        torch.save((inputs, [model(batch) for batch in inputs]), tmp_path / "expected.pt")
    command = [sys.executable, "-I", "-c", STRANGER, exported.folder / "program.pt2", tmp_path / "expected.pt"]

    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "4 None\n"


def test_onnx_runs_without_torch(exported: Exported, tmp_path: Path) -> None:
    """model.onnx gives the network's eval-mode output at any batch size, without torch installed."""
    model = trained().eval()
    inputs = [torch.randn(size, N_INPUTS) for size in BATCH_SIZES]
    with torch.no_grad():
        pairs = {f"x{n}": batch.numpy() for n, batch in enumerate(inputs)}
        numpy.savez(tmp_path / "expected.npz", **pairs, **{f"y{n}": model(batch) for n, batch in enumerate(inputs)})
    command = [sys.executable, "-I", "-c", ONNX_STRANGER, exported.folder / "model.onnx", tmp_path / "expected.npz"]

    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "4\n"


class Named(nn.Module):
    """Returns outputs by name, two of them as a pair."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"scores": x.softmax(1), "parts": (x + 1, x - 1)}


def test_onnx_has_outputs_of_any_form(tmp_path: Path) -> None:
    """A network that returns a dict with a tuple has its model.onnx, too."""
    exported = export(formed(lambda model, batch: (nn.Sequential(model, Named()), batch)), tmp_path)

    assert exported.read("export.json") == {"missing": {}}
    assert (exported.folder / "model.onnx").is_file()


def test_missing_onnx_is_explained(tmp_path: Path) -> None:
    """If ONNX lacks an operation, program.pt2 is exported, and export.json gives the reason."""
    exported = export(formed(lambda model, batch: (nn.Sequential(model, Special()), batch)), tmp_path)

    missing = exported.read("export.json")["missing"]
    assert missing.keys() == {"model.onnx"}
    assert "Error: " in missing["model.onnx"]
    assert (exported.folder / "program.pt2").is_file()


def test_without_the_extra_there_is_no_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime the rest is exported, and export.json names the extra."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    exported = export(TrainedProblem(), tmp_path)

    assert exported.read("export.json")["missing"].keys() == {"model.onnx"}
    assert exported.answer["missing"]["model.onnx"] == 'needs the extra onnx: pip install "heirloom-nas[onnx]"'
    assert (exported.folder / "program.pt2").is_file()


def test_weights_load_as_safetensors(exported: Exported) -> None:
    """safetensors loads the network's whole state from model.safetensors, equal to the bit."""
    found = load_file(exported.folder / "model.safetensors")
    expected = trained().state_dict()

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_published_momentum_is_neither_restored_nor_exported(tmp_path: Path) -> None:
    """Children, tests and exports of a trial with published momentum use its weights alone."""

    class Momentous(ExportProblem):
        def train(self, run: TrialRun) -> Mapping[str, float]:
            model = network()
            share = run.inherit(model).share
            optimizer = torch.optim.Adam(model.parameters())
            momentum = run.inherit_optimizer(optimizer, model).share
            assert momentum == share
            model(torch.ones(2, N_INPUTS)).sum().backward()
            optimizer.step()
            run.save({**model.state_dict(), **optimizer_tensors(optimizer, model)})
            return {"score": share}

        def test(self, run: TrialRun) -> Mapping[str, float]:
            model, saved = run.restore(network()), run.restore_tensors()
            same = all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
            return {"score": float(same and len(saved) > 2 * len(model.state_dict()))}

    child = export(Momentous(), tmp_path, donor=export(Momentous(), tmp_path).trial)

    assert child.trial.metrics == {"score": 1.0}
    assert child.trial.inheritance["n_copied"] == len(network().state_dict())
    assert child.runtime.test(child.trial) == {"metrics": {"score": 1.0}}
    assert child.read("export.json") == {"missing": {}}
    assert load_file(child.folder / "model.safetensors").keys() == network().state_dict().keys()


def test_architecture_json_describes_the_network(exported: Exported) -> None:
    """architecture.json names the trial, the problem, the point, the scores and the inputs."""
    found = exported.read("architecture.json")

    assert (found["trial"], found["point"], found["metrics"]) == (5, {"x": 3}, {"score": 0.5})
    assert found["problem"].endswith("TrainedProblem")
    assert found["inputs"] == [{"shape": [2, N_INPUTS], "dtype": "torch.float32"}]
    assert len(found["modules"]) == 5


def test_complete_export_misses_nothing(exported: Exported) -> None:
    """A complete export lists nothing as missing, and gives size and digest of each file."""
    assert exported.read("export.json") == {"missing": {}}
    assert exported.answer["missing"] == {}
    listed = {file["path"].rpartition("/")[2]: file["bytes"] for file in exported.answer["files"]}
    assert listed == {path.name: path.stat().st_size for path in exported.folder.iterdir()}


def test_network_is_exported_in_eval_mode(tmp_path: Path) -> None:
    """A network in training mode is exported in eval mode, so dropout is off."""
    problem = formed(lambda model, batch: (model.train(), batch))
    program = torch.export.load(str(export(problem, tmp_path).folder / "program.pt2")).module()
    batch = torch.randn(7, N_INPUTS)

    torch.testing.assert_close(program(batch), trained().eval()(batch))


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (BrokenExport(), "BrokenExport.export raised NotImplementedError: no program of this network"),
        (BatchOfOne(), "export returned a network for one batch size: must accept any"),
        (ScoreProblem(), "the problem defines no `export(run)`, which returns the network and an example batch"),
        (ExportProblem(saves=False), "the trial saved no weights (`run.save(model)`)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Problem) else "",
)
def test_missing_program_is_explained(
    problem: Problem, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If no program can be exported, export.json gives the reason, and the rest is there."""
    exported = export(problem, tmp_path)

    missing = exported.read("export.json")["missing"]
    assert missing["program.pt2"].startswith(why)
    assert exported.answer["missing"] == missing
    names = {path.name for path in exported.folder.iterdir()}
    assert names == {"architecture.json", "export.json", "model.safetensors"} - missing.keys()


ACCEPTED: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "tensor": lambda model, batch: (model, batch),
    "list": lambda model, batch: [model, [batch]],
    "batch of one": lambda model, batch: (model, batch[:1]),
    "training mode": lambda model, batch: (model.train(), (batch,)),
    "compiled": lambda model, batch: (torch.compile(model, backend="eager"), (batch,)),
    "compiled inside": lambda model, batch: (nn.Sequential(torch.compile(model, backend="eager")), (batch,)),
    "parallel": lambda model, batch: (nn.DataParallel(model), (batch,)),
}
REFUSED: dict[str, tuple[Callable[[nn.Module, torch.Tensor], object], str]] = {
    "nothing": (lambda model, batch: None, "export returned NoneType: must return the network and an example batch"),
    "network": (lambda model, batch: model, "export returned Sequential: must return the network"),
    "dict": (lambda model, batch: {"model": model}, "export returned dict: must return the network"),
    "order": (lambda model, batch: (batch, model), "export returned tuple(Tensor, Sequential): must return"),
    "program": (lambda model, batch: (torch.jit.trace(model, batch), batch), "export returned a ScriptModule: must"),
    "array": (lambda model, batch: (model, batch.numpy()), "export returned the network and ndarray: must return"),
    "no batch": (lambda model, batch: (model, ()), "export returned the network and tuple: must return"),
    "batches": (lambda model, batch: (model, (batch, batch[:1])), "must have one batch size of at least 1, first"),
    "empty": (lambda model, batch: (model, batch[:0]), "must have one batch size of at least 1, first"),
    "size": (lambda model, batch: (model, batch[:, :1]), "a network that does not accept its example batch"),
    "batch size": (lambda model, batch: (nn.Sequential(model, nn.Unflatten(0, (2, 1))), batch), "for one batch size"),
}


def test_forms_of_export_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone tensor, lists, a batch of one, and compiled or parallel networks give the same program."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    problem = formed(ACCEPTED["tensor"])
    exported = export(problem, tmp_path)
    batch, expected = (given := torch.randn(7, N_INPUTS)), trained().eval()(given)

    for name, form in ACCEPTED.items():
        problem.form = form
        answer = exported.runtime.export(exported.trial)
        assert answer["missing"].keys() == {"model.onnx"}, name
        program = torch.export.load(str(tmp_path / answer["export"] / "program.pt2")).module()
        torch.testing.assert_close(program(batch), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("needs_weights", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_forms_of_export_are_refused(name: str, needs_weights: bool, tmp_path: Path) -> None:
    """Anything else is told in one line before the first trial trains, or after it if trained weights are needed."""
    form, why = REFUSED[name]
    problem = formed(form)
    problem.needs_weights = needs_weights

    exported = export(problem, tmp_path)
    line = exported.answer["missing"]["program.pt2"]

    assert why in line
    assert "\n" not in line
    assert exported.trial.inheritance.get("warnings", []) == ([line] if needs_weights else [])
    assert exported.notices == ([] if needs_weights else [line])


def test_second_export_does_not_overwrite(exported: Exported) -> None:
    """Each export has its own folder."""
    spec = RuntimeSpec(problem=Spec.of(PlainProblem), url=str(exported.root), options={})
    trial = replace(exported.trial, checkpoint=None)

    again = TrialRuntime(spec, problem=ScoreProblem()).export(trial)

    assert again["export"] != exported.answer["export"]
    assert (exported.folder / "program.pt2").is_file()
