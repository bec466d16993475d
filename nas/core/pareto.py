"""Several objectives at once: who is on the front, how much the front covers, and who is crowded.

Ranks and crowding distances: NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017), by efficient non-dominated sorting
(Zhang et al. 2015, doi:10.1109/TEVC.2014.2308305). Hypervolume: exact, by WFG (While, Bradstreet and Barone 2012,
doi:10.1109/TEVC.2010.2077298).

Losses are scores turned such that lower is better. Of equal losses the first stands for all of them: the second is
beaten by it. So one objective has a front of one, the best.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nas.core.metric import Metric
from nas.core.trial import State, Trial

Losses: TypeAlias = tuple[float, ...]
"""One number an objective, lower is better; all finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What no other trial beats.

    Attributes:
        trials: The best by the first metric first.
        hypervolume: Of what the front beats, up to the reference point, in the product of the metrics' units.
        reference: The reference point, by metric's name: what the metric gives, else the worst that was seen.
        given: The metrics that give it.
    """

    trials: tuple[Trial, ...]
    hypervolume: float
    reference: Mapping[str, float]
    given: frozenset[str]


def front_of(trials: Iterable[Trial], metrics: Sequence[Metric]) -> Front | None:
    """Returns the front of these trials, which should be of one stage: scores of stages don't compare.

    Only COMPLETE trials with a finite value for each metric compete; of equal ones, that of the lowest number.
    None where there is no such trial.
    """
    able = competing(trials, metrics)
    if not able:
        return None
    points = [losses for _, losses in able]
    first = sorted((able[place] for place in fronts(points)[0]), key=lambda entry: entry[1])
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
    """Returns the trials that are on the front of their stage, by number."""
    by_stage: dict[str, list[Trial]] = {}
    for trial in trials:
        by_stage.setdefault(trial.stage, []).append(trial)
    found: set[int] = set()
    for in_stage in by_stage.values():
        if able := competing(in_stage, metrics):
            found.update(able[place][0].number for place in fronts([losses for _, losses in able])[0])
    return frozenset(found)


def competing(trials: Iterable[Trial], metrics: Sequence[Metric]) -> list[tuple[Trial, Losses]]:
    """Returns the COMPLETE trials with a finite value for each metric, in order of number, and their losses."""
    complete = sorted((t for t in trials if t.state == State.COMPLETE), key=lambda t: t.number)
    return [(trial, losses) for trial in complete if (losses := losses_of(trial, metrics)) is not None]


def losses_of(trial: Trial, metrics: Sequence[Metric]) -> Losses | None:
    """Returns the trial's losses, or None where a metric has no finite value."""
    losses = []
    for metric in metrics:
        value = trial.value(metric.name)
        if value is None:
            return None
        losses.append(-metric.rank(value))
    return tuple(losses)


def best_first(points: Sequence[Losses]) -> list[int]:
    """Returns the places of the points: front by front, within one the least crowded first; of equals, the first."""
    ordered: list[int] = []
    for front in fronts(points):
        distances = crowding([points[place] for place in front])
        ordered += [place for _, place in sorted(zip((-d for d in distances), front, strict=True))]
    return ordered


def fronts(points: Sequence[Losses]) -> list[list[int]]:
    """The places of the points by front: the first is beaten by no point, the next only by points of the first, ...

    A point is beaten by one that is nowhere worse; of equal points, by those before it.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place], place)):  # beaten by earlier ones only
        point = points[place]
        level = bisect_left(found, True, key=lambda front: not _is_beaten(point, (points[other] for other in front)))
        if level == len(found):
            found.append([])
        found[level].append(place)
    return [sorted(front) for front in found]


def _is_beaten(point: Losses, others: Iterable[Losses]) -> bool:
    return any(all(a <= b for a, b in zip(other, point, strict=True)) for other in others)


def crowding(points: Sequence[Losses]) -> list[float]:
    """How far apart the neighbors of each point of a front are, in shares of each objective's range, summed.

    Infinite for the best and the worst by any objective.
    """
    distances = [0.0] * len(points)
    for i in range(len(points[0]) if points else 0):
        order = sorted(range(len(points)), key=lambda place: points[place][i])
        span = points[order[-1]][i] - points[order[0]][i]
        distances[order[0]] = distances[order[-1]] = math.inf
        for before, place, after in zip(order, order[1:], order[2:], strict=False):
            distances[place] += (points[after][i] - points[before][i]) / span if span else 0.0
    return distances


def hypervolume(points: Iterable[Losses], reference: Losses) -> float:
    """Returns the volume of all that is worse than one of the points and better than the reference point."""
    inside = [p for p in points if all(loss < limit for loss, limit in zip(p, reference, strict=True))]
    return _volume(_front(inside), reference)


def _front(points: Sequence[Losses]) -> list[Losses]:
    return [points[place] for place in fronts(points)[0]] if points else []


def _volume(front: list[Losses], reference: Losses) -> float:
    """Returns the sum, point by point, of what none of the points after it covers."""
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
