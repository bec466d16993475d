"""The median stopping rule (Golovin et al. 2017, Google Vizier, section 3.1). Differs: bests, not running averages."""

from __future__ import annotations

from statistics import median

from nas.core.errors import check_whole
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.stoppers.base import Stopper


class MedianStopper(Stopper):
    """Ends a trial whose best report so far is worse than the median of the others' bests at the same step.

    Args:
        metrics: The first one is watched.
        warmup_steps: No trial ends at its first reports, this many.
        min_trials: No trial ends before this many others have reported at the step.

    Raises:
        ConfigurationError: a number that can't be.
    """

    def __init__(self, metrics: tuple[Metric, ...], *, warmup_steps: int = 1, min_trials: int = 5) -> None:
        super().__init__(metrics)
        check_whole("warmup_steps", warmup_steps, 0)
        check_whole("min_trials", min_trials, 1)
        self.warmup_steps = warmup_steps
        self.min_trials = min_trials

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the trial's best so far is strictly worse than the median."""
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
        return own is not None and len(others) >= self.min_trials and own < median(others)
