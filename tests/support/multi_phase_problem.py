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
        arguments: Of ``TimedProblem``. Between two trials it waits while the file ``pause`` lies in the folder
            ``hold``; a file ``between-<pid>`` is there meanwhile.
    """

    def __init__(self, *, most: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.most = most

    def train_many(self, job: Job) -> None:
        for run in job.trials(self.most):
            run.finish(**self.train(run))
            if self.is_held("pause"):
                mark = Path(f"between-{os.getpid()}")
                mark.touch()
                while self.is_held("pause"):
                    time.sleep(0.05)
                mark.unlink()


class SleepyProblem(MultiPhaseProblem):
    """Its second trial never ends."""

    def train(self, run: TrialRun) -> dict[str, float]:
        if run.number == 1:
            time.sleep(1000)
        return super().train(run)
