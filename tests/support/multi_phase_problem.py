"""A problem whose jobs run several trials; commands import it by name, without torch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from timed_problem import TimedProblem

from nas import Job, TrialRun


class MultiPhaseProblem(TimedProblem):
    """``TimedProblem``, trial after trial.

    Args:
        most: How many trials a job runs.
        pause: Seconds that it waits between two trials, in which a file ``between-<pid>`` is there.
    """

    def __init__(self, *, most: int | None = None, pause: float = 0.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.most = most
        self.pause = pause

    def train_many(self, job: Job) -> None:
        for run in job.trials(self.most):
            run.finish(**self.train(run))
            if self.pause:
                mark = Path(f"between-{os.getpid()}")
                mark.touch()
                time.sleep(self.pause)
                mark.unlink()


class SleepyProblem(MultiPhaseProblem):
    """Its second trial never ends."""

    def train(self, run: TrialRun) -> dict[str, float]:
        if run.number == 1:
            time.sleep(1000)
        return super().train(run)
