"""Static metrics: computed before training, recorded, and without effect on the training."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from torch import Tensor, nn

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.search.definition import Search
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.costs import N_PASSES, forward_latency_s
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.grid import GridTuner


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


class BlindProblem(Problem):
    """Scores with torch's first random number."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"width": Int(2, 3)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        return {"score": float(torch.rand(()))}


class SlowStartProblem(BlindProblem):
    """Loads for 0.3 s, then trains for as long."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        time.sleep(0.3)
        for _ in range(run.epochs(full=3, early=1)):
            time.sleep(0.1)
        return {"score": 0.0}


class LinearProblem(BlindProblem):
    """The same, and its network is one linear layer.

    Args:
        error: What building a network says as it raises.
        kind: What it raises.
        objective: A second metric, which ``train`` does not return.
    """

    def __init__(self, *, error: str = "", kind: str = "ValueError", objective: str = "") -> None:
        self.metrics = (Metric("score"), *([Metric(objective, "minimize")] if objective else []))
        self.error = error
        self.kind = kind

    def build(self, point: Point) -> nn.Module:
        if self.error:
            raise getattr(builtins, self.kind)(self.error)
        torch.set_default_dtype(torch.float64)  # what a network leaves behind is put back
        return nn.Linear(point["width"], 5)

    def example_inputs(self) -> tuple[Tensor, ...]:
        return (torch.zeros(1, 2),)


class OverfullProblem(LinearProblem):
    """The same, but a forward pass takes too much memory of a GPU."""

    def build(self, point: Point) -> nn.Module:
        return _Overfull()

    def example_batch(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, 2), torch.zeros(2)


class _Overfull(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def search(problem: type[Problem], **more: Any) -> tuple[list[Trial], Records]:
    root, arguments = f"memory://static_metrics/{uuid4().hex}", more.pop("arguments", {})
    prepared = Search(problem=Spec.of(problem, **arguments), tuner=Spec.of(GridTuner), **more)
    run_search(prepared, root=root, name="it", budget=Budget(trials=1))
    records = Records(open_root(root).subfolder("it"))
    return records.load()[0], records


def test_recorded_before_training() -> None:
    """Parameters, FLOPs (two per multiplication) and latency are recorded; the score is unchanged."""
    [trial], _ = search(LinearProblem)
    [blind], _ = search(BlindProblem)

    latency_s = trial.static_metrics["latency_s"]
    assert trial.static_metrics == {"parameters": 15, "flops": 20, "live_flops": 20, "latency_s": latency_s}
    assert 0 < latency_s < 1
    assert 0 < trial.cost["static_metrics_seconds"] < trial.cost["seconds"]
    assert "static_metrics_seconds" not in blind.cost
    assert blind.static_metrics == {}
    assert trial.metrics == blind.metrics


@pytest.mark.parametrize("objective", ["flops", "latency_s"])
def test_an_objective_may_be_a_static_metric(objective: str) -> None:
    """A declared metric that training does not return is taken from the static metrics."""
    [trial], _ = search(LinearProblem, arguments={"objective": objective})

    assert trial.metrics[objective] == trial.static_metrics[objective]


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_failing_static_metrics_are_logged(error: str) -> None:
    """A network that can't be built does not fail the training; the log has the traceback."""
    [trial], records = search(LinearProblem, arguments={"error": "no such layer", "kind": error})

    assert (trial.state, trial.static_metrics) == (State.COMPLETE, {})
    assert f"{error}: no such layer" in records.log(trial.number)


def test_a_missing_static_objective_fails_the_trial() -> None:
    """The error names the missing metric and the reason."""
    [trial], _ = search(LinearProblem, arguments={"error": "no such layer", "objective": "flops"})

    assert (trial.state, trial.reason) == (State.FAILED, Reason.NO_METRIC)
    assert "without flops; before training: LinearProblem.build raised ValueError: no such layer" in (trial.error or "")


@pytest.mark.parametrize("objective", ["latency_s", "naswot"])
def test_too_little_memory_for_a_static_objective_is_the_reason(objective: str) -> None:
    """A metric or a proxy that a device had no memory for: the trial is FAILED by that."""
    [trial], _ = search(OverfullProblem, arguments={"objective": objective})

    assert (trial.state, trial.reason) == (State.FAILED, Reason.OUT_OF_MEMORY)
    assert f"without {objective}; before training: " in (trial.error or "")
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB" in (trial.error or "")


@pytest.mark.slow
def test_a_device_error_of_static_metrics_costs_the_worker(tmp_path: Path) -> None:
    """The trial trains, and the next one gets a new process."""
    run_search(OverfullProblem, tuner=GridTuner, root=tmp_path, name="it", budget=2, runner="processes", finalists=1)
    records = Records(open_root(str(tmp_path)).subfolder("it"))
    first, second = (records.read_start(number, 1) or {} for number in range(2))

    assert [trial.state for trial in records.load()[0][:2]] == [State.COMPLETE] * 2
    assert first["pid"] != second["pid"]


def test_a_measured_objective_is_not_deterministic() -> None:
    """A measured objective is refused with deterministic=true."""
    with pytest.raises(ConfigurationError, match="metric latency_s does not go with deterministic=true"):
        search(LinearProblem, arguments={"objective": "latency_s"}, deterministic=True)


def test_latency_is_the_least_of_few_passes() -> None:
    """Latency is the least of ten passes in eval mode after a first; a slow network has one pass."""

    class Slow(nn.Module):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds
            self.n_passes = 0

        def forward(self, _: Tensor) -> None:
            assert not self.training
            assert not torch.is_grad_enabled()
            self.n_passes += 1
            time.sleep(0.3 if self.n_passes == 1 else self.seconds)

    quick, slow = Slow(0.0), Slow(0.3)

    assert 0 <= forward_latency_s(quick, (torch.zeros(1),), "cpu") < 0.25
    assert quick.n_passes == N_PASSES + 1
    assert forward_latency_s(slow, (torch.zeros(1),), "cpu") >= 0.3
    assert slow.n_passes == 2


def test_setup_time_is_recorded() -> None:
    """A trial records the seconds before its epochs, which do not grow with their number."""
    [trial], _ = search(SlowStartProblem)

    assert 0.3 <= trial.cost["setup_seconds"] < trial.cost["seconds"] - 0.2
