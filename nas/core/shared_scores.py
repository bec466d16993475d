"""Scores of shared weights, which rank subnets and are no accuracy of an architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nas.core.supernet import UNTRAINED, is_epoch
from nas.core.trial import Trial


def has_shared_score(trial: Trial, trial_of: Callable[[int], Trial | None]) -> bool:
    """Returns whether no training of the trial's own point gave its weights.

    A trial under SHARE_PARAMS and SKIP_TRAIN has the weights of its donor. If the donor has the same point, the donor
    decides. A supernet epoch has a shared score: it is a mean of subnets.

    Args:
        trial: A finished trial.
        trial_of: Returns the trial with a number, or None if it is unknown.
    """
    seen: set[int] = set()  # donors of records that another program wrote may form a circle
    while not is_epoch(trial) and trial.number not in seen:
        if not trial.policies >= UNTRAINED:
            return False
        seen.add(trial.number)
        source = trial.resolved_donor if trial.donor is None else trial.donor
        donor = trial_of(source) if isinstance(source, int) else None
        if donor is None or donor.point != trial.point:
            return True
        trial = donor
    return True


def shared_scores(trials: Iterable[Trial]) -> frozenset[int]:
    """Returns the numbers of the finished trials with shared scores."""
    by_number = {trial.number: trial for trial in trials}
    finished = (trial for trial in by_number.values() if trial.is_finished)
    return frozenset(trial.number for trial in finished if has_shared_score(trial, by_number.get))
