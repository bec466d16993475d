"""Pareto fronts and hypervolume, compared with slow definitions."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from nas.core.metric import Metric
from nas.core.pareto import Losses, best_first, crowding, front_of, fronts, hypervolume, numbers_on_front
from nas.core.trial import Proposal, State, Trial

METRICS = (Metric("accuracy"), Metric("flops", "minimize"))


def trial(number: int, *scores: float | None, state: State = State.COMPLETE, stage: str = "search") -> Trial:
    """Returns a finished trial with these scores; None is a missing one."""
    metrics = {m.name: s for m, s in zip(METRICS, scores, strict=False) if s is not None}
    return Trial(
        number=number, index=number, proposal=Proposal(point={"x": number}), state=state, metrics=metrics, stage=stage
    )


def drawn(n: int, n_objectives: int, seed: int, *, steps: int = 8) -> list[Losses]:
    """Points of a coarse grid, with equal points and shared coordinates."""
    rng = random.Random(f"{n}/{n_objectives}/{seed}")
    return [tuple(float(rng.randrange(steps)) for _ in range(n_objectives)) for _ in range(n)]


def covered(points: list[Losses], steps: int) -> int:
    """Returns the hypervolume of whole-numbered points up to the reference (steps, ...), by counting unit cells."""
    cells = itertools.product(range(steps), repeat=len(points[0]) if points else 1)
    return sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points) for cell in cells)


class TestFront:
    def test_one_objective_has_a_front_of_one(self) -> None:
        """It is the best trial, the first of equal ones."""
        front = front_of([trial(0, 0.5), trial(2, 0.9), trial(1, 0.9)], METRICS[:1])

        assert front is not None
        assert [t.number for t in front.trials] == [1]

    def test_of_equal_trials_the_first(self) -> None:
        """A trial with the scores of one on the front is not on it, in any order."""
        trials = [trial(2, 0.9, 5), trial(1, 0.9, 5), trial(0, 0.8, 4), trial(3, 0.8, 5)]

        assert numbers_on_front(trials, METRICS) == {0, 1}

    def test_only_complete_trials_with_every_value(self) -> None:
        """Stopped, failed and running trials, and those without a finite value, are not on the front."""
        trials = [
            trial(0, 0.1, 9),
            trial(1, 0.9, 1, state=State.STOPPED),
            trial(2, 0.9, 1, state=State.FAILED),
            trial(3, 0.9, 1, state=State.RUNNING),
            trial(4, 0.9),
            trial(5, math.nan, 1),
            trial(6, 0.9, -math.inf),
        ]

        assert numbers_on_front(trials, METRICS) == {0}
        assert front_of(trials[1:], METRICS) is None

    def test_stages_have_fronts_of_their_own(self) -> None:
        """A final's full score does not dominate a cheap one."""
        assert numbers_on_front([trial(0, 0.5, 5), trial(1, 0.9, 5, stage="final")], METRICS) == {0, 1}

    def test_reference_is_the_worst_seen_or_given(self) -> None:
        """The default is the worst competing value; a metric may set its own, and the front says so."""
        trials = [trial(0, 0.5, 1), trial(1, 0.9, 3), trial(2, 0.4, 7)]
        seen = front_of(trials, METRICS)
        given = front_of(trials, (Metric("accuracy", reference=0.0), METRICS[1]))

        assert seen is not None
        assert given is not None
        assert [t.number for t in seen.trials] == [1, 0]
        assert (dict(seen.reference), seen.given) == ({"accuracy": 0.4, "flops": 7}, frozenset())
        assert seen.hypervolume == pytest.approx(0.1 * 6 + 0.4 * 4)
        assert (dict(given.reference), given.given) == ({"accuracy": 0.0, "flops": 7}, {"accuracy"})
        assert given.hypervolume == pytest.approx(0.5 * 6 + 0.4 * 4)


@pytest.mark.parametrize("n_objectives", [1, 2, 3, 4])
def test_hypervolume_equals_the_covered_cells(n_objectives: int) -> None:
    """It equals the count of cells, with dominated, equal and outside points."""
    steps = {1: 12, 2: 12, 3: 7, 4: 5}[n_objectives]
    for n in (0, 1, 2, 5, 14):
        for seed in range(3):
            points = drawn(n, n_objectives, seed, steps=steps + 2)
            inside = [point for point in points if max(point) < steps]

            assert hypervolume(points, (float(steps),) * n_objectives) == covered(inside, steps)


@pytest.mark.parametrize("n_objectives", [1, 2, 3])
def test_fronts_by_the_definition(n_objectives: int) -> None:
    """The first front has the points that none dominates, the second those after removing it, and so on."""
    for seed in range(5):
        points = drawn(40, n_objectives, seed)
        left = list(range(len(points)))
        for front in fronts(points):
            alone = [i for i in left if not any(_beats(points, j, i) for j in left)]
            assert front == alone
            left = [i for i in left if i not in front]
        assert not left


def _beats(points: list[Losses], one: int, other: int) -> bool:
    a, b = points[one], points[other]
    return one != other and all(x <= y for x, y in zip(a, b, strict=True)) and (a != b or one < other)


def test_crowding() -> None:
    """Ends are infinitely far; inner points have the sum of their neighbors' distances as shares of the range."""
    assert crowding([(0.0, 10.0), (1.0, 5.0), (3.0, 4.0), (4.0, 0.0)]) == [math.inf, 1.35, 1.25, math.inf]
    assert crowding([(1.0, 1.0)]) == [math.inf]
    assert crowding([]) == []


def test_best_first() -> None:
    """Front by front: the ends first, then the least crowded; a point's equals come on later fronts."""
    points = [(1.0, 5.0), (9.0, 9.0), (0.0, 10.0), (3.0, 4.0), (4.0, 0.0), (0.0, 10.0)]

    assert best_first(points) == [2, 4, 0, 3, 1, 5]


def test_numbers_at_the_ends_of_floats() -> None:
    """Infinite differences give no NaN: crowding orders the points, and the volume is infinite."""
    points = [(-1.7e308, 1.7e308), (0.0, 0.0), (1.0, -1.0), (1.7e308, -1.7e308)]

    assert crowding(points) == [math.inf, pytest.approx(1.0), pytest.approx(1.0), math.inf]
    assert hypervolume(points, (1.7e308, 1.7e308)) == math.inf
    assert hypervolume([], (1.7e308, 1.7e308)) == 0.0
