"""Pareto fronts, crowding distances and hypervolume for several objectives.

* Ranks and crowding distances: NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017)
* Sorting: efficient non-dominated sorting (Zhang et al. 2015, doi:10.1109/TEVC.2014.2308305)
* Hypervolume: exact, by WFG (While, Bradstreet and Barone 2012, doi:10.1109/TEVC.2010.2077298)

Losses are scores with the sign turned so that lower is better. Of equal losses, the first dominates the others. So a
single objective has a front of one trial, the best.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nas.core.metric import Metric
from nas.core.supernet import comparable, shared_epochs
from nas.core.trial import State, Trial

Losses: TypeAlias = tuple[float, ...]
"""One finite number per objective; lower is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The trials that no other trial dominates.

    Attributes:
        trials: Best first by the first metric.
        hypervolume: The volume between front and reference point, in the product of the metrics' units.
        reference: The reference point by metric name: ``Metric.reference``, or the worst value of the trials.
        given: Names of the metrics with a ``reference``.
    """

    trials: tuple[Trial, ...]
    hypervolume: float
    reference: Mapping[str, float]
    given: frozenset[str]


def front_of(trials: Iterable[Trial], metrics: Sequence[Metric]) -> Front | None:
    """Returns the front of these trials, or None without a trial that competes (see ``competing``).

    The trials must be of one stage: scores of different stages are not comparable.
    """
    candidates = competing(trials, metrics)
    if not candidates:
        return None
    points = [losses for _, losses in candidates]
    first = sorted((candidates[place] for place in fronts(points)[0]), key=lambda entry: entry[1])
    limits = tuple(
        max(losses[i] for losses in points) if metric.reference is None else -metric.rank(metric.reference)
        for i, metric in enumerate(metrics)
    )
    return Front(
        trials=tuple(trial for trial, _ in first),
        hypervolume=hypervolume([losses for _, losses in first], limits),
        reference={metric.name: -metric.rank(limit) for metric, limit in zip(metrics, limits, strict=True)},
        given=frozenset(metric.name for metric in metrics if metric.reference is not None),
    )


def numbers_on_front(trials: Iterable[Trial], metrics: Sequence[Metric]) -> frozenset[int]:
    """Returns the numbers of the trials on the front of their stage."""
    by_stage: dict[str, list[Trial]] = {}
    for trial in trials:
        by_stage.setdefault(trial.stage, []).append(trial)
    found: set[int] = set()
    for in_stage in by_stage.values():
        if candidates := competing(in_stage, metrics):
            found.update(candidates[place][0].number for place in fronts([losses for _, losses in candidates])[0])
    return frozenset(found)


def competing(trials: Iterable[Trial], metrics: Sequence[Metric]) -> list[tuple[Trial, Losses]]:
    """Returns COMPLETE trials with a finite value of each metric, by number, with their losses.

    Trials of older code are left out, as are supernet epochs, and subnets of all but the newest epoch with any.
    """
    given = list(trials)
    usable = (t for t in given if t.state == State.COMPLETE and not t.outdated and losses_of(t, metrics) is not None)
    groups = comparable(usable, shared_epochs(given))
    complete = sorted(groups[0] if groups else (), key=lambda t: t.number)
    return [(trial, losses) for trial in complete if (losses := losses_of(trial, metrics)) is not None]


def losses_of(trial: Trial, metrics: Sequence[Metric]) -> Losses | None:
    """Returns the trial's losses, or None if a metric has no finite value."""
    losses = []
    for metric in metrics:
        value = trial.value(metric.name)
        if value is None:
            return None
        losses.append(-metric.rank(value))
    return tuple(losses)


def best_first(points: Sequence[Losses]) -> list[int]:
    """Returns the indices of the points: front by front, the least crowded first within a front."""
    ordered: list[int] = []
    for front in fronts(points):
        distances = crowding([points[place] for place in front])
        ordered += [place for _, place in sorted(zip((-d for d in distances), front, strict=True))]
    return ordered


def fronts(points: Sequence[Losses]) -> list[list[int]]:
    """Returns the indices of the points by front.

    Points of a front are dominated only by points of earlier fronts. A point is dominated by a point that is not worse
    in any objective. Of equal points, the first dominates the others.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place], place)):  # only earlier points dominate
        point = points[place]
        level = bisect_left(found, True, key=lambda front: not _is_dominated(point, (points[other] for other in front)))
        if level == len(found):
            found.append([])
        found[level].append(place)
    return [sorted(front) for front in found]


def _is_dominated(point: Losses, others: Iterable[Losses]) -> bool:
    return any(all(a <= b for a, b in zip(other, point, strict=True)) for other in others)


def crowding(points: Sequence[Losses]) -> list[float]:
    """Returns the crowding distance of each point of a front.

    It is the distance between both neighbors as a share of the range, summed over the objectives. It is infinite for
    the best and the worst point of an objective.
    """
    distances = [0.0] * len(points)
    for i in range(len(points[0]) if points else 0):
        order = sorted(range(len(points)), key=lambda place: points[place][i])
        span = points[order[-1]][i] / 2 - points[order[0]][i] / 2  # of halves: the whole may be infinite
        distances[order[0]] = distances[order[-1]] = math.inf
        for before, place, after in zip(order, order[1:], order[2:], strict=False):
            distances[place] += (points[after][i] / 2 - points[before][i] / 2) / span if span else 0.0
    return distances


def hypervolume(points: Iterable[Losses], reference: Losses) -> float:
    """Returns the volume dominated by the points, up to the reference point.

    It is infinite if it may exceed the range of floats.
    """
    inside = [p for p in points if all(loss < limit for loss, limit in zip(p, reference, strict=True))]
    if inside and math.isinf(math.prod(limit - min(own) for limit, *own in zip(reference, *inside, strict=True))):
        return math.inf
    return _volume(_front(inside), reference)


def _front(points: Sequence[Losses]) -> list[Losses]:
    return [points[place] for place in fronts(points)[0]] if points else []


def _volume(front: list[Losses], reference: Losses) -> float:
    """Returns the sum over the points of the volume that no later point dominates."""
    if len(reference) == 2:  # a staircase
        front = sorted(front)
        above = [reference[1], *(loss for _, loss in front)]
        return math.fsum(
            (reference[0] - x) * (last - y) for (x, y), last in zip(front, above[: len(front)], strict=True)
        )
    volumes = []
    for place, point in enumerate(front):
        own = math.prod(limit - loss for loss, limit in zip(point, reference, strict=True))
        rest = [tuple(map(max, point, other)) for other in front[place + 1 :]]
        volumes.append(own - (_volume(_front(rest), reference) if rest else 0.0))
    return math.fsum(volumes)
