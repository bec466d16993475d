"""A problem whose trials wait for as long as files are there; Dask's workers import it by name."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from pathlib import Path

from nas import Int, Job, Metric, ParameterSpace, Policy, Problem, TrialRun
from nas.core.errors import TrialStopped


class HeldProblem(Problem):
    """Scores each point with its ``x`` after three reports.

    Args:
        hold: A folder. Trial n goes on reporting while the file ``n`` lies in it, and puts ``held-n`` beside it. Its
            test waits for the file ``test-n`` in the same way.
    """

    metrics = (Metric("score"),)
    policies = frozenset({Policy.EARLY_STOP})
    space = ParameterSpace({"x": Int(0, 10_000)})

    def __init__(self, hold: str) -> None:
        self.hold = Path(hold)

    def train(self, run: TrialRun) -> dict[str, float]:
        for step in range(3):
            run.report(step, score=run.point["x"] + step / 10)
        while (self.hold / str(run.number)).exists():
            (self.hold / f"held-{run.number}").touch()
            try:
                run.report(3, score=run.point["x"])
            except TrialStopped as stop:
                print(f"told by {type(stop).__name__}", flush=True)
                raise
            time.sleep(0.05)
        return {"score": run.point["x"]}

    def test(self, run: TrialRun) -> dict[str, float]:
        if run.point["x"] == 1:
            raise RuntimeError("no test today")
        while (self.hold / f"test-{run.number}").exists():
            (self.hold / f"held-test-{run.number}").touch()
            time.sleep(0.05)
        return {"score": run.point["x"] / 3}


class CrashingProblem(HeldProblem):
    """The same, but the first attempt of trial 0 crashes its process."""

    def train(self, run: TrialRun) -> dict[str, float]:
        crashed = self.hold / "crashed"
        if run.number == 0 and not crashed.exists():
            crashed.touch()
            ctypes.string_at(0)
        return super().train(run)


class HeldPhases(HeldProblem):
    """The same, trial after trial."""

    def train_many(self, job: Job) -> None:
        for run in job.trials():
            with suppress(TrialStopped):
                run.finish(**self.train(run))
