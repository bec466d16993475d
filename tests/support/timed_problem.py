"""A problem that takes as long as it is told and ends as it is told; commands import it by name, without torch."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from nas import Float, Int, Metric, ParameterSpace, Policy, Problem, TrialRun
from nas.core.errors import TrialStopped

if TYPE_CHECKING:
    from torch import nn


class TimedProblem(Problem):
    """A network of a few weights that takes random steps.

    Args:
        seconds: How long a trial takes.
        fail: ``raise``, ``deaf`` (does not report), ``die`` (trial 1 ends its process), or nothing.
        weights: How many weights are saved besides.
        marks: A folder in which each trial makes a file, its number, at its second report.
        hold: A folder. Trial n goes on while the file ``n`` lies in it, and its test while ``test-n`` does.
    """

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = ParameterSpace({"width": Int(1, 8), "step": Float(0.01, 1.0)})

    def __init__(
        self, *, seconds: float = 0.0, fail: str = "", weights: int = 0, marks: str = "", hold: str = ""
    ) -> None:
        self.seconds = seconds
        self.fail = fail
        self.weights = weights
        self.marks = marks
        self.hold = hold

    def train(self, run: TrialRun) -> dict[str, float]:
        import torch

        network = self.build(run)
        run.inherit(network)
        if self.fail == "raise":
            raise RuntimeError("as told")
        if self.fail == "die" and run.number == 1:
            os._exit(7)
        n_steps = max(2, round(self.seconds / 0.05))
        for step in itertools.count():
            if step >= n_steps and not self.is_held(str(run.number)):
                break
            time.sleep(self.seconds / n_steps if step < n_steps else 0.05)
            with torch.no_grad():
                for weights in network.parameters():
                    weights.add_(torch.randn_like(weights) * run.point["step"])
            if self.fail != "deaf":
                try:
                    run.report(step, score=float(step))
                except TrialStopped as stop:
                    print(f"told by {type(stop).__name__} in {os.getpid()}", flush=True)
                    raise
            if self.marks and step == 1:
                Path(self.marks, str(run.number)).touch()
        run.save(network)
        return {"score": float(sum(p.abs().mean() for p in network.parameters()).detach())}

    def test(self, run: TrialRun) -> dict[str, float]:
        network = run.restore(self.build(run))
        while self.is_held(f"test-{run.number}"):
            time.sleep(0.05)
        return {"score": float(sum(p.abs().sum() for p in network.parameters()).detach())}

    def is_held(self, name: str) -> bool:
        return bool(self.hold) and Path(self.hold, name).exists()

    def build(self, run: TrialRun) -> nn.Module:
        from torch import nn

        network = nn.Sequential(nn.Linear(4, run.point["width"]), nn.Linear(run.point["width"], 2))
        if self.weights:
            network.append(nn.Linear(1, self.weights // 2))
        return network


class NoProblem:
    """Not a problem."""


class TimedFileSystem(MemoryFileSystem):
    """A file system in memory that is opened with a password, as an option or in its URL."""

    protocol = "quick"
    store: ClassVar[dict[str, object]] = {}

    def __init__(self, *, password: str, **options: object) -> None:
        if password != "s3cret":
            raise PermissionError("wrong password")
        super().__init__(**options)

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, str]:
        user, at, _ = path.partition("://")[2].rpartition("@")
        return {"password": user.partition(":")[2]} if at else {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.partition("://")[2].rpartition("@")[2].rstrip("/") if "://" in path else path


fsspec.register_implementation("quick", TimedFileSystem)
