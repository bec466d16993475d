"""Supernet epochs, which train shared weights, and subnets, which are scored with them.

The scores of two subnets compare only if both were scored with the weights of the same epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.trial import Trial
from nas.core.validation import MAX_WHOLE

EPOCH = "supernet_epoch"
"""The only key of the point of a supernet epoch.

No space may give a point with only this key.
"""
UNTRAINED = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
"""The policies of a trial that is scored with the weights of its donor."""
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


def relative_to_epoch(trial: Trial, find: Callable[[int], Trial | None]) -> Trial:
    """Returns a subnet with scores measured from those of its supernet epoch.

    So the scores of subnets of all epochs compare.

    Args:
        trial: A finished trial.
        find: Returns the finished trial with a number, or None.
    """
    donor = next(iter(trial.proposal.weight_donors), None)
    epoch = find(donor) if isinstance(donor, int) else None
    if epoch is None or not is_epoch(epoch):
        return trial
    levels = {name: epoch.value(name) for name in trial.metrics}
    return replace(trial, metrics={name: value - (levels[name] or 0.0) for name, value in trial.metrics.items()})


def supernet_epochs(trials: Iterable[Trial]) -> frozenset[int]:
    """Returns the numbers of the supernet epochs."""
    return frozenset(trial.number for trial in trials if is_epoch(trial))


def shared_epochs(trials: Iterable[Trial]) -> dict[int, int]:
    """Returns the supernet epoch whose weights gave the score, by number of a trial.

    An epoch stands for itself. A trial that scores a subnet again without training has the subnet's epoch. Trials with
    weights of their own have none.

    Args:
        trials: All trials of the search.
    """
    found: dict[int, int] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):  # donors before children
        add_shared_epoch(found, trial)
    return found


def add_shared_epoch(epochs: dict[int, int], trial: Trial) -> None:
    """Adds a trial to the result of ``shared_epochs``, after its donors."""
    source = trial.number if is_epoch(trial) else trial.resolved_donor
    if source == trial.number:
        epochs[source] = source
    elif isinstance(source, int) and source in epochs and (epochs[source] == source or trial.policies >= UNTRAINED):
        epochs[trial.number] = epochs[source]


def shared_epoch(trial: Trial, epochs: Mapping[int, int]) -> int:
    """Returns the trial of the supernet epoch whose weights gave the score: the greater, the newer.

    Args:
        trial: A finished trial.
        epochs: The result of ``shared_epochs``.
    """
    return epochs.get(trial.number, NO_EPOCH)


def comparable(trials: Iterable[Trial], epochs: Mapping[int, int]) -> list[list[Trial]]:
    """Returns the trials without supernet epochs, in groups whose scores compare, newest epoch first.

    The order within a group is the given one. Without supernet epochs all trials are one group.

    Args:
        trials: Finished trials.
        epochs: The result of ``shared_epochs``.
    """
    groups: dict[int, list[Trial]] = {}
    for trial in trials:
        if is_no_epoch(trial):
            groups.setdefault(shared_epoch(trial, epochs), []).append(trial)
    return [groups[epoch] for epoch in sorted(groups, reverse=True)]
