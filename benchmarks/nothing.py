"""Problems that train nothing, to measure the overhead of a trial."""

from __future__ import annotations

import time

from nas import Float, Job, Metric, ParameterSpace, Problem, TrialRun


class NothingProblem(Problem):
    """Scores a point by its one parameter.

    Args:
        seconds: Seconds to sleep for.
    """

    metrics = (Metric("score"),)

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.space = ParameterSpace({"x": Float(0.0, 1.0)})

    def train(self, run: TrialRun) -> dict[str, float]:
        """Sleeps and returns the score."""
        time.sleep(self.seconds)
        return {"score": run.point["x"]}


class NothingJobProblem(Problem):
    """Trials of one job, which train nothing and score their waiting times in milliseconds.

    Args:
        seconds: Seconds to sleep for.
    """

    metrics = (Metric("waited_ms", "minimize"),)
    space = ParameterSpace({"x": Float(0.0, 1.0)})

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def train_many(self, job: Job) -> None:
        """Requests trials, one after another."""
        finished_s = time.perf_counter()
        for run in job.trials():
            waited_ms = (time.perf_counter() - finished_s) * 1000
            time.sleep(self.seconds)
            run.finish(waited_ms=waited_ms)
            finished_s = time.perf_counter()
