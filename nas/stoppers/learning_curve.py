"""The reports of one metric of a trial, by step."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import accumulate

from nas.core.metric import Metric, is_finite
from nas.core.trial import Trial


class LearningCurve:
    """The reports of a metric by step, as ranks; greater ranks are better.

    If a resumed attempt reported a step again, its last report counts. Reports without a finite value are left out.
    """

    def __init__(self, trial: Trial, metric: Metric) -> None:
        last = {step: metrics[metric.name] for step, metrics in trial.curve if metric.name in metrics}
        found = [(step, float(metric.rank(value))) for step, value in sorted(last.items()) if is_finite(value)]
        self.steps = [step for step, _ in found]
        self.ranks = [rank for _, rank in found]

    def best_until(self, step: int) -> float | None:
        """Returns the best rank up to and including this step, or None."""
        place = bisect_right(self.steps, step)
        return self._bests[place - 1] if place else None

    def first_from(self, step: int) -> float | None:
        """Returns the rank of the first report at this step or later, or None."""
        place = bisect_left(self.steps, step)
        return self.ranks[place] if place < len(self.ranks) else None

    @cached_property
    def _bests(self) -> list[float]:
        return list(accumulate(self.ranks, max))
