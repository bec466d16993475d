"""Applies donor rules: chooses a donor among the finished trials when a trial starts."""

from __future__ import annotations

from collections.abc import Container, Iterable

from nas.core.metric import Metric
from nas.core.trial import Donor, DonorRule, Trial
from nas.inheritance.donors.table import score_of

LOCAL = frozenset({DonorRule.LOCAL_RECENT, DonorRule.LOCAL_BEST})
BEST = frozenset({DonorRule.LOCAL_BEST, DonorRule.GLOBAL_BEST})


def donor_by_rule(
    rule: DonorRule,
    finished: Iterable[Trial],
    metric: Metric,
    slot: int | None = None,
    lost: Container[Donor] = (),
) -> Trial | None:
    """Returns the trial that a rule chooses, or None if no trial with weights fits it.

    Args:
        rule: The rule to apply.
        finished: The finished trials of the search stage, in the order in which they finished.
        metric: Compares trials.
        slot: The slot of the new trial, for local rules.
        lost: Trials whose weights were found missing or corrupt.
    """
    donors = [t for t in finished if t.checkpoint is not None and t.number not in lost]
    if rule in LOCAL:
        donors = [t for t in donors if t.slot == slot]
    if rule not in BEST:
        return donors[-1] if donors else None
    scored = [t for t in donors if t.value(metric.name) is not None]
    return max(scored, key=lambda t: (score_of(t, metric), -t.number), default=None)
