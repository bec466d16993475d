"""Optuna's samplers: the Gaussian process in small and in conditional spaces, and the least size of a model."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Trial
from nas.spaces.parameters.distribution import Distribution
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.tuners.base import STOP
from nas.tuners.optuna import OptunaTuner
from tests.support.landscape import search

CHOICES = ParameterSpace({f"layer_{i}": Choice("a", "b", "c") for i in range(6)})
LOSS = Metric("loss", "minimize")


def n_wrong(point: Point) -> float:
    """Returns the number of layers that are not "c"; two equal neighbors are worth a little."""
    letters = list(point.values())
    return sum(letter != "c" for letter in letters) - 0.1 * sum(a == b for a, b in pairwise(letters))


def distances_to_the_best(trials: list[Trial]) -> Iterator[int]:
    """Returns for each trial after the first 20 the number of layers that differ from the best one before it."""
    for index in range(20, len(trials)):
        best = min(trials[:index], key=lambda trial: trial.metrics["loss"]).point
        yield sum(trials[index].point[name] != best[name] for name in best)


@pytest.mark.slow
def test_a_known_suggestion_becomes_a_new_point_near_it() -> None:
    """Forty trials of 729 points all differ; two random points differ in four of six layers."""
    trials = search(OptunaTuner(CHOICES, (LOSS,), sampler="gp"), 40, n_wrong)

    assert len({point_key(trial.point) for trial in trials}) == 40
    assert min(trial.metrics["loss"] for trial in trials) == -0.5
    assert statistics.mean(distances_to_the_best(trials)) < 2.5


def test_a_small_space_is_used_up_and_then_it_stops() -> None:
    """Nine points give nine trials, then STOP."""
    space = ParameterSpace({"first": Choice("a", "b", "c"), "second": Choice("a", "b", "c")})
    tuner = OptunaTuner(space, (LOSS,), sampler="gp")

    trials = search(tuner, 9, n_wrong)

    assert len({point_key(trial.point) for trial in trials}) == 9
    assert tuner.ask(Lineage.of(trials), 9, 9) is STOP


def test_an_instance_models_each_search_by_its_own_results() -> None:
    """A second search with one instance has the proposals of a new instance."""

    def points(tuner: OptunaTuner) -> list[Point]:
        return [trial.point for trial in search(tuner, 20, lambda point: -n_wrong(point))]

    tuner = OptunaTuner(CHOICES, (LOSS,))
    search(tuner, 20, n_wrong)

    assert points(tuner) == points(OptunaTuner(CHOICES, (LOSS,)))


@pytest.mark.parametrize(("sampler", "options"), [("gp", {}), ("tpe", {"n_startup_trials": 12})])
def test_a_model_holds_the_startup_trials(sampler: str, options: dict[str, int]) -> None:
    """With fewer points in its model the sampler would be random for ever."""
    least = 2 * options.get("n_startup_trials", 10)
    with pytest.raises(ConfigurationError, match=rf"max_points={least - 1}: .*twice tuner\.options\.n_startup_trials"):
        OptunaTuner(CHOICES, (LOSS,), sampler=sampler, options=options, max_points=least - 1)

    assert OptunaTuner(CHOICES, (LOSS,), sampler=sampler, options=options, max_points=least).max_points == least


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_long_ranges_of_whole_numbers_are_no_lists(sampler: str) -> None:
    """A seed, or a number in a million steps, takes no memory for each value; suggestions are whole."""
    steps = Distribution("uniform", 0.0, 1.0, q=1e-6)
    space = ParameterSpace({"seed": Int(0, 2**53), "size": Int(1, 2**40, log=True), "share": steps})
    tuner = OptunaTuner(space, (LOSS,), sampler=sampler, options={"n_startup_trials": 2})

    for trial in search(tuner, 5, lambda point: point["share"]):
        space.validate(trial.point)


@pytest.mark.slow
def test_conditional_numbers_are_modeled(capfd: pytest.CaptureFixture[str]) -> None:
    """The optimum in one branch is found by few trials of three seeds, without output."""
    branch = {"kind": ["curved"]}
    space = ParameterSpace(
        {"kind": Choice("flat", "curved"), "x": Float(-10, 10, when=branch), "y": Float(-10, 10, when=branch)}
    )

    def error(point: Point) -> float:
        return 20.0 if point["kind"] == "flat" else abs(point["x"] - 3) + abs(point["y"] + 2)

    found = [
        min(t.metrics["loss"] for t in search(OptunaTuner(space, (LOSS,), seed=seed, sampler="gp"), 30, error))
        for seed in range(3)
    ]

    assert statistics.mean(found) < 1.0
    assert capfd.readouterr() == ("", "")
