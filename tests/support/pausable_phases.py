"""The example of phases, which can be held between two of them; commands import it by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from mixed_precision import MixedPrecision

from nas import Job, TrialRun


class PausableJob:
    """A job whose code, after the trial that the file ``hold`` names, waits for as long as the file is there."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def trials(self, most: int | None) -> Iterator[TrialRun]:
        for run in self._job.trials(most):
            yield run
            hold = Path("hold")
            while hold.exists() and hold.read_text() == str(run.number):
                Path(f"held-{run.number}").touch()
                time.sleep(0.01)


class PausableProblem(MixedPrecision):
    """``MixedPrecision``, held between two phases."""

    def train_many(self, job: Job) -> None:
        super().train_many(PausableJob(job))
