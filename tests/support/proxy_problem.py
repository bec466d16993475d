"""A problem of perceptrons whose example batch may be slow, fail, or end its process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Trial
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.training.problem import Problem, Simulation
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch
    from torch import nn


class ProxyProblem(Problem):
    """Scores the width of a perceptron, as ``n_reports`` reports of 10 ms each.

    Args:
        seconds: Duration of each ``example_batch``.
        error: What it says as it raises.
        folder: It ends its process ``n_exits`` times, counted in this folder.
        n_exits: See ``folder``.
        n_reports: The number of reports of a trial.
        activation: Whether the networks have one.
        objectives: Metrics besides the score.
    """

    space = ParameterSpace({"width": Int(1, 64)})
    batches: ClassVar[list[tuple[int, float, float]]] = []
    """Thread, beginning and end of each ``example_batch`` in this process."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        error: str = "",
        folder: str = "",
        n_exits: int = 0,
        n_reports: int = 1,
        activation: bool = True,
        objectives: tuple[str, ...] = (),
    ) -> None:
        self.metrics = (Metric("score"), *(Metric(name) for name in objectives))
        self.seconds = seconds
        self.error = error
        self.folder = folder
        self.n_exits = n_exits
        self.n_reports = n_reports
        self.activation = activation

    def build(self, point: Point) -> nn.Module:
        """Returns a perceptron: ``(n, 3) -> (n, 2)``."""
        from torch import nn

        middle = nn.ReLU() if self.activation else nn.Identity()
        return nn.Sequential(nn.Linear(3, point["width"]), middle, nn.Linear(point["width"], 2))

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """Returns zeros."""
        import torch

        return (torch.zeros(1, 3),)

    def example_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns eight random examples, always the same, after what the test wants."""
        import torch

        began_s = time.monotonic()
        self.wait()
        if self.error:
            raise RuntimeError(self.error)
        if self.folder and len(exits := list(Path(self.folder).iterdir())) < self.n_exits:
            (Path(self.folder) / str(len(exits))).touch()
            os._exit(3)
        ProxyProblem.batches.append((threading.get_ident(), began_s, time.monotonic()))
        generator = torch.Generator().manual_seed(5)
        return torch.randn(8, 3, generator=generator), torch.arange(8) % 2

    def wait(self) -> None:
        """Takes the time of an ``example_batch``."""
        time.sleep(self.seconds)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Reports and returns the width."""
        score = float(run.point["width"])
        for step in range(1, self.n_reports + 1):
            time.sleep(0.01)
            run.report(step, score=score)
        return {"score": score}

    def simulate(self, trial: Trial) -> Simulation:
        """Takes a minute on paper."""
        return Simulation(60.0, {"score": float(trial.point["width"])})
