"""Which trial a ``DonorRule`` means."""

from __future__ import annotations

from collections.abc import Container, Iterable

from nas.core.metric import Metric
from nas.core.trial import Donor, DonorRule, Trial
from nas.inheritance.donors.ranking import score_of

LOCAL = frozenset({DonorRule.LOCAL_RECENT, DonorRule.LOCAL_BEST})
BEST = frozenset({DonorRule.LOCAL_BEST, DonorRule.GLOBAL_BEST})


def trial_of_source(
    source: DonorRule,
    learned: Iterable[Trial],
    metric: Metric,
    slot: int | None = None,
    lost: Container[Donor] = (),
) -> Trial | None:
    """Returns the trial whose weights a source gives, or None where nobody has any.

    Args:
        source: See there.
        learned: The finished trials of the search stage, in the order in which they finished.
        metric: Makes a trial better.
        slot: Where the new trial runs.
        lost: Trials whose weights were found missing or corrupt.
    """
    able = [t for t in learned if t.checkpoint is not None and t.number not in lost]
    if source in LOCAL:
        able = [t for t in able if t.slot == slot]
    if source not in BEST:
        return able[-1] if able else None
    scored = [t for t in able if t.value(metric.name) is not None]
    return max(scored, key=lambda t: (score_of(t, metric), -t.number), default=None)
