"""Whose weights a trial takes that was not derived from another, for tuners that draw from a model or at random."""

from __future__ import annotations

from typing import Literal, get_args

from nas.errors import ConfigurationError
from nas.lineage import Lineage
from nas.metric import Metric
from nas.spaces.base import Point, Space
from nas.spaces.domain import Decision, Numbers
from nas.trial import Trial

DonorChoice = Literal["none", "nearest", "best"]


def checked_choice(donor: str) -> str:
    """The choice, if it is one.

    Raises:
        ConfigurationError: it is none.
    """
    if donor not in get_args(DonorChoice):
        raise ConfigurationError(f"tuner.donor ({donor!r}) must be one of {', '.join(get_args(DonorChoice))}")
    return donor


def choose_donors(choice: str, lineage: Lineage, space: Space, point: Point, metric: Metric) -> tuple[int, ...]:
    """The donor of a new point: nobody, the trial with weights whose point is nearest, or the best one with weights.

    Of equally near ones the better is taken. Distance: the mean over all decisions of either point; a number counts by
    its distance on its scale from 0 to 1, another option or a decision that the other point lacks counts 1.
    """
    if choice == "none":
        return ()
    able = _able(choice, lineage, metric)
    if not able or choice == "best":
        return tuple(trial.number for trial in able)
    own = space.decisions(point)
    return (min(able, key=lambda trial: _distance(own, trial, space)).number,)


def possible_donors(choice: str, lineage: Lineage, metric: Metric) -> tuple[int, ...]:
    """Whom ``choose_donors`` may give for this or a later point, of those in the lineage."""
    return () if choice == "none" else tuple(trial.number for trial in _able(choice, lineage, metric))


def _able(choice: str, lineage: Lineage, metric: Metric) -> list[Trial]:
    """The trials with weights, the best first; where the best alone is wanted, that one."""
    able = [trial for trial in lineage.ranked(metric) if trial.checkpoint is not None]
    return able[:1] if choice == "best" else able


def _distance(own: list[Decision], trial: Trial, space: Space) -> float:
    here = {decision.name: decision for decision in own}
    there = {decision.name: decision for decision in space.decisions(trial.point)}
    total = 0.0
    for name in here.keys() | there.keys():
        if name not in here or name not in there:
            total += 1.0
        elif isinstance(domain := here[name].domain, Numbers):
            total += abs(domain.unit(here[name].answer) - domain.unit(there[name].answer))
        else:
            total += here[name].answer != there[name].answer
    return total / max(len(here.keys() | there.keys()), 1)
