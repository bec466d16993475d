"""Median stopping rule (Golovin et al. 2017, Google Vizier, section 3.1).

Differs: compares best values, not running averages.
"""

from __future__ import annotations

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import median
from nas.core.trial import State, Trial
from nas.core.validation import check_int
from nas.stoppers.base import Stopper


class MedianStopper(Stopper):
    """Stops a trial if its best report is worse than the median of other trials' bests.

    The bests of the other trials are those up to the same step.

    Args:
        metrics: The stopper uses the first one.
        warmup_steps: No trial stops at its first ``warmup_steps`` reports.
        min_trials: No trial stops until ``min_trials`` others have reached the step.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(self, metrics: tuple[Metric, ...], *, warmup_steps: int = 1, min_trials: int = 5) -> None:
        super().__init__(metrics)
        check_int("stopper.warmup_steps", warmup_steps, 0)
        check_int("stopper.min_trials", min_trials, 1)
        self.warmup_steps = warmup_steps
        self.min_trials = min_trials

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the trial's best report is strictly worse than the median."""
        if len(trial.curve) <= self.warmup_steps:
            return False
        step = trial.curve[-1][0]
        own = self.curve_of(trial).best_until(step)
        others = [
            best
            for other in lineage
            if other.number != trial.number
            and other.state in (State.COMPLETE, State.STOPPED)
            and other.curve
            and other.curve[-1][0] >= step
            and (best := self.curve_of(other).best_until(step)) is not None
        ]
        return own is not None and len(others) >= self.min_trials and own < median(sorted(others))
