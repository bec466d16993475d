"""A problem that trains nothing, to measure the overhead of a trial."""

from __future__ import annotations

from nas import Float, Metric, ParameterSpace, Problem, TrialRun


class NothingProblem(Problem):
    """Scores a point by its one parameter."""

    metrics = (Metric("score"),)

    def __init__(self) -> None:
        self.space = ParameterSpace({"x": Float(0.0, 1.0)})

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns at once."""
        return {"score": run.point["x"]}
