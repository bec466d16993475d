"""Grid and batch: every combination once in a fixed order, then STOP."""

from __future__ import annotations

from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Proposal
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.tuners.base import STOP, Tuner
from nas.tuners.batch import BatchTuner
from nas.tuners.grid import GridTuner

METRICS = (Metric("accuracy"),)
SPACE = ParameterSpace(
    {
        "depth": Int(1, 2),
        "op": Choice("conv", "pool", when={"depth": [2]}),
        "optimizer": Choice({"type": "adam"}, {"type": "sgd", "momentum": Float(0.0, 0.9)}),
        "rate": Float(1e-3, 1e-1, log=True),
    }
)


def proposed(tuner: Tuner) -> list[Point]:
    found = []
    for number in range(10_000):
        answer = tuner.ask(Lineage.of([]), number, number)
        if answer is STOP:
            return found
        assert isinstance(answer, Proposal)
        found.append(answer.point)
    raise AssertionError("it never stops")


def test_grid_is_every_combination_once() -> None:
    """Conditional and nested options give (1 + 2 ops) x (adam + 3 momenta) x 3 rates, all different and valid."""
    points = proposed(GridTuner(SPACE, METRICS, resolution=3))

    assert len(points) == 3 * 4 * 3
    assert len({point_key(point) for point in points}) == len(points)
    for point in points:
        SPACE.validate(point)
    assert points[0] == {"depth": 1, "optimizer": {"type": "adam"}, "rate": 0.001}
    assert points[1]["rate"] == pytest.approx(0.01)


def test_grid_of_a_finite_space_is_the_space() -> None:
    """If no range is wider than the resolution, the grid has all points of the space."""
    space = ParameterSpace({"a": Int(1, 4), "b": Choice("x", "y", when={"a": [2, 3]}), "c": 7})

    assert proposed(GridTuner(space, METRICS)) == list(space.points())


def test_grid_answers_any_number() -> None:
    """A tuner resumed at the end answers as one that went through all numbers."""
    points = proposed(GridTuner(SPACE, METRICS))
    resumed = GridTuner(SPACE, METRICS)

    answers = [resumed.ask(Lineage.of([]), number, 0) for number in (40, 3, 17)]
    assert [a.point for a in answers if isinstance(a, Proposal)] == [points[40], points[3], points[17]]


@pytest.mark.parametrize("resolution", [0, -1, 2.5, True, 10**9])
def test_invalid_resolutions_are_refused(resolution: Any) -> None:
    """A resolution must be a whole number of at least 1."""
    with pytest.raises(ConfigurationError, match="resolution"):
        GridTuner(SPACE, METRICS, resolution=resolution)


def test_batch_is_the_list() -> None:
    """The listed points come unchanged, in order, then STOP."""
    points: list[Point] = [{"a": 3, "b": "x"}, {"a": 1}, {"a": 3, "b": "x"}]
    space = ParameterSpace({"a": Int(1, 3), "b": Choice("x", "y", when={"a": [3]})})

    assert proposed(BatchTuner(space, METRICS, points=points)) == points


@pytest.mark.parametrize(("points", "message"), [([], "at least one"), ([{"a": 1}, {"a": 9}], r"points\[1\].*9")])
def test_invalid_batches_are_refused(points: list[Point], message: str) -> None:
    """An empty list, and a point outside the space, by its index, are refused."""
    with pytest.raises(ConfigurationError, match=message):
        BatchTuner(ParameterSpace({"a": Int(1, 3)}), METRICS, points=points)
