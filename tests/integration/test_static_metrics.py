"""What a point costs is found out before it is trained, recorded on its trial, and changes nothing of its training."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from torch import Tensor, nn

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.search.api import run_search
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
    """Scores with what torch draws first."""

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


def search(problem: type[Problem], **more: Any) -> tuple[list[Trial], Records]:
    root, arguments = f"memory://static_metrics/{uuid4().hex}", more.pop("arguments", {})
    prepared = Search(problem=Spec.of(problem, **arguments), tuner=Spec.of(GridTuner), **more)
    run_search(prepared, root=root, name="it", budget=Budget(trials=1))
    records = Records(open_root(root).subfolder("it"))
    return records.load()[0], records


def test_recorded_before_training() -> None:
    """Parameters, FLOPs (two a multiplication) and seconds of a forward pass; the score is what it would have been."""
    [trial], _ = search(LinearProblem)
    [blind], _ = search(BlindProblem)

    latency_s = trial.static_metrics["latency_s"]
    assert trial.static_metrics == {"parameters": 15, "flops": 20, "latency_s": latency_s}
    assert 0 < latency_s < 1
    assert 0 < trial.cost["static_metrics_seconds"] < trial.cost["seconds"]
    assert "static_metrics_seconds" not in blind.cost
    assert blind.static_metrics == {}
    assert trial.metrics == blind.metrics


@pytest.mark.parametrize("objective", ["flops", "latency_s"])
def test_an_objective_is_taken_from_there(objective: str) -> None:
    """A declared metric that training does not return is what was known before."""
    [trial], _ = search(LinearProblem, arguments={"objective": objective})

    assert trial.metrics[objective] == trial.static_metrics[objective]


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_what_cant_be_found_out_is_told(error: str) -> None:
    """A network that can't be built fails no training that succeeds without; the trial's log has the traceback."""
    [trial], records = search(LinearProblem, arguments={"error": "no such layer", "kind": error})

    assert (trial.state, trial.static_metrics) == (State.COMPLETE, {})
    assert f"{error}: no such layer" in records.log(trial.number)


def test_an_objective_that_cant_be_found_out_fails_the_trial() -> None:
    """The error says what was missing, and why."""
    [trial], _ = search(LinearProblem, arguments={"error": "no such layer", "objective": "flops"})

    assert (trial.state, trial.reason) == (State.FAILED, Reason.NO_METRIC)
    assert "without flops; before training: ValueError: no such layer" in (trial.error or "")


def test_a_measured_objective_is_not_deterministic() -> None:
    """It is refused at the start."""
    with pytest.raises(ConfigurationError, match="metric latency_s does not go with deterministic=true"):
        search(LinearProblem, arguments={"objective": "latency_s"}, deterministic=True)


def test_latency_is_the_least_of_few_passes() -> None:
    """Of ten after a first, in eval mode; of a slow network of one."""

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


def test_what_passes_before_the_epochs_is_on_record() -> None:
    """A trial knows how long its problem took until it asked for its epochs: what does not grow with them."""
    [trial], _ = search(SlowStartProblem)

    assert 0.3 <= trial.cost["setup_seconds"] < trial.cost["seconds"] - 0.2
