"""The example of phases, which can be held in one and between two of them; commands import it by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from mixed_precision import MixedPrecision

from nas import Job, TrialRun


class PausableJob:
    """A job whose code waits for as long as the file ``hold`` names the place: ``in 3`` or ``after 3``."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def trials(self, most: int | None) -> Iterator[TrialRun]:
        for run in self._job.trials(most):
            _wait("in", run)
            yield run
            _wait("after", run)


def _wait(place: str, run: TrialRun) -> None:
    hold = Path("hold")
    while hold.exists() and hold.read_text() == f"{place} {run.number}":
        Path(f"held-{run.number}").touch()
        time.sleep(0.01)


class PausableProblem(MixedPrecision):
    """``MixedPrecision``, held in a phase or between two."""

    def train_many(self, job: Job) -> None:
        super().train_many(PausableJob(job))
