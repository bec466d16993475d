"""A problem that trains nothing, to measure the overhead of a trial."""

from __future__ import annotations

import time

from nas import Float, Metric, ParameterSpace, Problem, TrialRun


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
