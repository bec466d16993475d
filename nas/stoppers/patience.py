"""Patience: a trial that no longer improves ends (early stopping; Prechelt 1998, criterion UP). No other is asked."""

from __future__ import annotations

from nas.core.errors import ConfigurationError, check_number, check_whole
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.stoppers.base import Stopper


class PatienceStopper(Stopper):
    """Ends a trial whose last reports have not improved on its best before them.

    Args:
        metrics: The first one is watched.
        n_reports: How many reports in a row must be no improvement.
        min_delta: What counts as an improvement is more than this, in the metric's own unit.

    Raises:
        ConfigurationError: a number that can't be.
    """

    def __init__(self, metrics: tuple[Metric, ...], *, n_reports: int = 5, min_delta: float = 0.0) -> None:
        super().__init__(metrics)
        check_whole("n_reports", n_reports, 1)
        check_number("min_delta", min_delta)
        if min_delta < 0:
            raise ConfigurationError(f"min_delta ({min_delta}) must be at least 0")
        self.n_reports = n_reports
        self.min_delta = min_delta

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Whether the best of its last ``n_reports`` beats its best before them by no more than ``min_delta``."""
        ranks = self.curve_of(trial).ranks
        before, last = ranks[: -self.n_reports], ranks[-self.n_reports :]
        return bool(before) and max(last) - max(before) <= self.min_delta
