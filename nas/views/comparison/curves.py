"""Best-so-far curves of compared searches, their means over seeds, and the ranks of groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from nas.core.metric import Metric
from nas.core.ranking import stage_competitors
from nas.core.trial import Trial
from nas.views.comparison.groups import Group
from nas.views.comparison.intervals import Mean
from nas.views.comparison.searches import ComparedSearch

Axis = Literal["trials", "hours"]
"""Finished trials of the search stage, or the hours that they trained in all."""
MIN_SEEDS = 3
"""Seeds of a mean with a band; the interval of two is wider than most differences."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A step function: places and the values from there on.

    Attributes:
        places: The places in order.
        values: The value from each place on.
        end: The place where the search ends.
    """

    places: tuple[float, ...]
    values: tuple[float, ...]
    end: float

    def at(self, place: float) -> float | None:
        """Returns the value at a place, or None before the first one."""
        found = bisect_right(self.places, place)
        return self.values[found - 1] if found else None


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean of curves over seeds, from the place on where all have a value."""

    places: tuple[float, ...]
    means: tuple[Mean, ...]
    end: float


def best_so_far(search: ComparedSearch, axis: Axis) -> Curve | None:
    """Returns the best so far of the search stage; None without a trial that competes.

    Trials of ``more_epochs`` are left out. A retry takes time, but counts as no further trial.
    """
    snapshot, place = search.snapshot, 0.0
    places: list[float] = []
    values: list[float] = []
    metric = snapshot.metric
    searched = [t for t in snapshot.lineage if t.stage == snapshot.stages[0] and t.more_epochs is None]
    competing = {trial.number for trial in stage_competitors(searched, snapshot.stages[0], metric)}
    for trial in _in_order(searched):
        place += float(trial.is_counted) if axis == "trials" else (trial.duration_s or 0.0) / 3600
        value = trial.value(metric.name) if trial.number in competing else None
        if value is not None and (not values or metric.is_better(value, values[-1])):
            places.append(place)
            values.append(value)
    return Curve(tuple(places), tuple(values), place) if places else None


def _in_order(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the finished trials in the order in which they finished."""
    return sorted((t for t in trials if t.is_finished), key=lambda t: (t.finished or 0.0, t.number))


def mean_curve(group: Group, axis: Axis) -> MeanCurve | None:
    """Returns the mean over the counted seeds, or None if one of them has no curve."""
    curves = [best_so_far(search, axis) for search in group.counted.values()]
    whole = [curve for curve in curves if curve is not None]
    if not whole or len(whole) < len(curves):
        return None
    places = _common_places(whole)
    means = [Mean.of([value for curve in whole if (value := curve.at(place)) is not None]) for place in places]
    return MeanCurve(places, tuple(mean for mean in means if mean is not None), max(c.end for c in whole))


def mean_ranks(groups: Sequence[Group], metric: Metric, axis: Axis) -> dict[str, Curve]:
    """Returns the mean rank of each group over the common seeds, 1 for the best.

    It begins when all groups have a score. Empty for one group, or without a common seed.
    """
    seeds = sorted(set.intersection(*(set(group.counted) for group in groups))) if len(groups) > 1 else []
    table = [[best_so_far(group.counted[seed], axis) for group in groups] for seed in seeds]
    rows = [[curve for curve in row if curve is not None] for row in table]
    if not rows or any(len(row) < len(groups) for row in rows):
        return {}
    every = [curve for row in rows for curve in row]
    places, end = _common_places(every), max(curve.end for curve in every)
    ranks = [[_ranks([curve.at(place) for curve in row], metric) for row in rows] for place in places]
    return {
        group.label: Curve(places, tuple(fmean(by_seed[n] for by_seed in at_place) for at_place in ranks), end)
        for n, group in enumerate(groups)
    }


def _common_places(curves: Sequence[Curve]) -> tuple[float, ...]:
    """Returns the places of all changes, from the one on where all curves have a value."""
    first = max(curve.places[0] for curve in curves)
    return tuple(sorted({place for curve in curves for place in curve.places if place >= first}))


def _ranks(values: Sequence[float | None], metric: Metric) -> list[float]:
    """Returns the ranks of values, 1 for the best; equal ones share their mean rank."""
    known = [metric.rank(value) for value in values if value is not None]
    return [1 + sum(other > own for other in known) + (known.count(own) - 1) / 2 for own in known]
