"""Early stopping by patience (Prechelt 1998, criterion UP), independent of other trials."""

from __future__ import annotations

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.core.validation import check_int, check_number
from nas.stoppers.base import Stopper


class PatienceStopper(Stopper):
    """Stops a trial if its last ``n_reports`` reports did not improve on its best.

    Args:
        metrics: The stopper uses the first one.
        n_reports: The number of reports without an improvement.
        min_delta: An improvement is greater than this, in the unit of the metric.

    Raises:
        ConfigurationError: a number is out of range.
    """

    def __init__(self, metrics: tuple[Metric, ...], *, n_reports: int = 5, min_delta: float = 0.0) -> None:
        super().__init__(metrics)
        check_int("stopper.n_reports", n_reports, 1)
        check_number("stopper.min_delta", min_delta, 0)
        self.n_reports = n_reports
        self.min_delta = min_delta

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the last ``n_reports`` beat the best before them by at most ``min_delta``."""
        ranks = self.curve_of(trial).ranks
        before, last = ranks[: -self.n_reports], ranks[-self.n_reports :]
        return bool(before) and max(last) - max(before) <= self.min_delta
