"""Supernet epochs, which train shared weights, and subnets, which are scored with them.

The scores of two subnets compare only if both were scored with the weights of the same epoch.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from nas.core.point import Point
from nas.core.trial import Trial
from nas.core.validation import MAX_WHOLE

EPOCH = "supernet_epoch"
"""The only key of the point of a supernet epoch.

No space may give a point with only this key.
"""
NO_EPOCH = -1
"""``shared_epoch`` of a trial that is neither an epoch nor a subnet."""


def epoch_of(point: Point) -> int | None:
    """Returns the number of the supernet epoch that the point stands for, or None."""
    number = point.get(EPOCH) if len(point) == 1 else None
    return number if type(number) is int and 0 <= number <= MAX_WHOLE else None


def is_epoch(trial: Trial) -> bool:
    """Returns whether the trial is a supernet epoch."""
    return epoch_of(trial.point) is not None


def is_no_epoch(trial: Trial) -> bool:
    """Returns whether the trial is not a supernet epoch."""
    return epoch_of(trial.point) is None


def is_subnet(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Returns whether the trial is no supernet epoch, but names one as its first donor.

    Args:
        trial: The trial.
        trials: All trials of the search, by number.
    """
    donor = next(iter(trial.proposal.weight_donors), None)
    return isinstance(donor, int) and is_epoch(trials[donor]) and is_no_epoch(trial)


def supernet_epochs(trials: Iterable[Trial]) -> frozenset[int]:
    """Returns the numbers of the supernet epochs."""
    return frozenset(trial.number for trial in trials if is_epoch(trial))


def shared_epoch(trial: Trial, epochs: Container[int]) -> int:
    """Returns the trial of the supernet epoch whose weights gave the score: the greater, the newer.

    Args:
        trial: A finished trial. An epoch stands for itself.
        epochs: The numbers of the supernet epochs.
    """
    source = trial.number if trial.number in epochs else trial.resolved_donor
    return source if isinstance(source, int) and source in epochs else NO_EPOCH


def comparable(trials: Iterable[Trial], epochs: Container[int]) -> list[list[Trial]]:
    """Returns the trials without supernet epochs, in groups whose scores compare, newest epoch first.

    The order within a group is the given one. Without supernet epochs all trials are one group.

    Args:
        trials: Finished trials.
        epochs: The numbers of the supernet epochs.
    """
    groups: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.number not in epochs:
            groups.setdefault(shared_epoch(trial, epochs), []).append(trial)
    return [groups[epoch] for epoch in sorted(groups, reverse=True)]
