"""CMA-ES: a distribution that scores move, generation by generation."""

from __future__ import annotations

import pytest

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.tuners.cmaes import CmaEsTuner
from nas.tuners.random import RandomTuner
from tests.support.landscape import METRIC, SPACE, mean_best, search

NUMBERS = ParameterSpace({name: Float(-5.0, 5.0) for name in "abcde"})


def ellipsoid(point: Point) -> float:
    """Returns a badly scaled and rotated function with its minimum 0 at (1, 1, ...)."""
    steps = [point[name] - 1.0 for name in "abcde"]
    turned = [a + b for a, b in zip(steps, [*steps[1:], steps[0]], strict=True)]
    return float(sum(10.0**i * x * x for i, x in enumerate(turned))) + steps[0] ** 2


@pytest.mark.slow
def test_it_learns_scales_and_directions() -> None:
    """600 trials come a thousand times nearer to the optimum of a narrow rotated valley than random search."""
    own = min(t.metrics["loss"] for t in search(CmaEsTuner(NUMBERS, (METRIC,), seed=3), 600, ellipsoid))

    assert own < 1e-3 * min(t.metrics["loss"] for t in search(RandomTuner(NUMBERS, (METRIC,), seed=3), 600, ellipsoid))


def test_it_finds_better_points_than_random_search_in_a_mixed_space() -> None:
    """It beats random search in a space with choices and whole numbers."""
    best = mean_best(lambda seed: CmaEsTuner(SPACE, (METRIC,), seed=seed), 150, 5)

    assert best < 0.7 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 150, 5)


def test_failed_trials_are_the_worst_of_their_generation() -> None:
    """If half of the range fails, it soon draws from the other half."""
    trials = search(CmaEsTuner(NUMBERS, (METRIC,)), 200, lambda p: None if p["a"] < 0 else abs(p["b"]))

    assert sum(t.point["a"] < 0 for t in trials[:40]) > 5
    assert sum(t.point["a"] < 0 for t in trials[-40:]) < 5


@pytest.mark.slow
def test_it_restarts_with_a_larger_population() -> None:
    """After convergence it restarts with a doubled population."""
    space = ParameterSpace({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)})
    trials = search(CmaEsTuner(space, (METRIC,)), 700, lambda p: (p["a"] - 0.3) ** 2 + (p["b"] - 0.6) ** 2)

    restarts = [t.proposal.derivation["restart"] for t in trials if t.proposal.derivation]
    assert restarts[-1] >= 1
    assert restarts == sorted(restarts)


def test_conditional_decisions() -> None:
    """A tree of choices is searched as well."""
    deep = {"kind": "deep", "x": Float(0.0, 1.0)}
    space = ParameterSpace({"net": Choice(deep, {"kind": "flat"}), "y": Float(0.0, 1.0)})
    trials = search(CmaEsTuner(space, (METRIC,)), 120, lambda p: p["y"] + abs(p["net"].get("x", 5.0) - 0.7))

    assert min(t.metrics["loss"] for t in trials) < 0.05


@pytest.mark.parametrize(
    "wrong", [{"population_size": 2}, {"population_size": 10**9}, {"sigma": 0}, {"donor": "father"}]
)
def test_invalid_arguments_are_refused(wrong: dict[str, object]) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        CmaEsTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
