"""The winner's folder: loaded and run by a process that has torch, and nothing of Heirloom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nas.bench import Assignment, Bench, BenchSpec
from nas.executors.place import InProcessPlace
from nas.problems.base import Problem
from nas.run import TrialRun
from nas.spec import Spec
from nas.store.files import open_root
from nas.store.records import Records
from nas.trial import Proposal, State, Trial
from tests.problems_for_tests import N_CLASSES, N_INPUTS, ExportProblem, PlainProblem, ScoreProblem, network

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


class TrainedProblem(ExportProblem):
    """Saves a network whose every buffer and weight differs from a fresh one's."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.save(trained())
        return {"score": 0.5}


class BrokenExport(TrainedProblem):
    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        raise NotImplementedError("no program of this network")


class BatchOfOne(TrainedProblem):
    """Its network can't take a batch of any size."""

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
    """What an export gave, and its folder."""

    answer: dict[str, Any]
    root: Path
    trial: Trial

    @property
    def folder(self) -> Path:
        return self.root / self.answer["export"]

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found


def export(problem: Problem, root: Path) -> Exported:
    """Trains a trial of the problem, and exports it, as a worker does."""
    files = open_root(str(root))
    spec = BenchSpec(problem=Spec.of(PlainProblem), url=str(root), options={})
    point = {"x": 3}
    trial = Trial(number=5, index=5, proposal=Proposal(point=point), state=State.RUNNING, attempt=1, slot=0)
    Records(files).propose(trial)
    finished = InProcessPlace(spec, files, problem).run(Assignment(trial), lambda event: None)
    assert finished is not None
    assert finished.state == State.COMPLETE
    return Exported(Bench(spec, problem=problem, files=files).export(finished), root, finished)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(TrainedProblem(), tmp_path_factory.mktemp("export"))


def test_program_runs_with_torch_alone(exported: Exported, tmp_path: Path) -> None:
    """program.pt2 answers as the network in eval mode does, at any batch size, where nas can't be imported."""
    model = trained().eval()
    inputs = [torch.randn(size, N_INPUTS) for size in BATCH_SIZES]
    with torch.no_grad():
        torch.save((inputs, [model(batch) for batch in inputs]), tmp_path / "expected.pt")
    command = [sys.executable, "-I", "-c", STRANGER, exported.folder / "program.pt2", tmp_path / "expected.pt"]

    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "4 None\n"


def test_weights_load_as_safetensors(exported: Exported) -> None:
    """model.safetensors holds the network's whole state, to the bit, for the format's own library."""
    found = load_file(exported.folder / "model.safetensors")
    expected = trained().state_dict()

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_architecture_says_what_was_built(exported: Exported) -> None:
    """architecture.json names the trial, the problem, the point, the scores and the inputs."""
    found = exported.read("architecture.json")

    assert (found["trial"], found["point"], found["metrics"]) == (5, {"x": 3}, {"score": 0.5})
    assert found["problem"].endswith("TrainedProblem")
    assert found["inputs"] == [{"shape": [2, N_INPUTS], "dtype": "torch.float32"}]
    assert len(found["modules"]) == 5


def test_complete_export_misses_nothing(exported: Exported) -> None:
    """export.json of a complete export lists nothing, and every file is known by size and digest."""
    assert exported.read("export.json") == {"missing": {}}
    assert exported.answer["missing"] == {}
    listed = {file["path"].rpartition("/")[2]: file["bytes"] for file in exported.answer["files"]}
    assert listed == {path.name: path.stat().st_size for path in exported.folder.iterdir()}


def test_network_is_exported_in_eval_mode(tmp_path: Path) -> None:
    """A network that the problem hands over in training mode is exported in eval mode: dropout does nothing."""

    class Training(TrainedProblem):
        def export(self, run: TrialRun) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
            model, example = super().export(run)
            return model.train(), example

    program = torch.export.load(str(export(Training(), tmp_path).folder / "program.pt2")).module()
    batch = torch.randn(7, N_INPUTS)

    torch.testing.assert_close(program(batch), trained().eval()(batch))


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (BrokenExport(), "NotImplementedError: no program of this network"),
        (BatchOfOne(), ""),
        (ScoreProblem(), "the problem defines no `export(run)`, which gives the network and an example batch"),
        (ExportProblem(saves=False), "the trial saved no weights (`run.save(model)`)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Problem) else "",
)
def test_missing_program_is_explained(
    problem: Problem, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where no program can be made, export.json says why, and the rest is there."""
    exported = export(problem, tmp_path)

    missing = exported.read("export.json")["missing"]
    assert missing["program.pt2"].startswith(why)
    assert exported.answer["missing"] == missing
    names = {path.name for path in exported.folder.iterdir()}
    assert names == {"architecture.json", "export.json", "model.safetensors"} - missing.keys()


def test_second_export_does_not_overwrite(exported: Exported) -> None:
    """Each export has a folder of its own."""
    spec = BenchSpec(problem=Spec.of(PlainProblem), url=str(exported.root), options={})
    trial = replace(exported.trial, checkpoint=None)

    again = Bench(spec, problem=ScoreProblem()).export(trial)

    assert again["export"] != exported.answer["export"]
    assert (exported.folder / "program.pt2").is_file()
