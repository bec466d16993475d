"""REINFORCE: rewards shift the policy, also below the options of a tree."""

from __future__ import annotations

import statistics

import pytest

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.tuners.random import RandomTuner
from nas.tuners.reinforce import ReinforceTuner
from tests.support.landscape import METRIC, SPACE, mean_best, search

CHOICES = ParameterSpace({f"c{i}": Choice(*range(5)) for i in range(8)})


def n_wrong(point: Point) -> float:
    return float(sum(value != i % 5 for i, value in enumerate(point.values())))


def test_the_policy_moves_towards_rewards() -> None:
    """After 300 trials it has drawn the best point, and draws points near it; at random 6.4 of 8 choices are wrong."""
    trials = search(ReinforceTuner(CHOICES, (METRIC,)), 300, n_wrong)

    assert statistics.mean(t.metrics["loss"] for t in trials[:20]) > 5
    assert statistics.mean(t.metrics["loss"] for t in trials[-20:]) < 3.5
    assert min(t.metrics["loss"] for t in trials) == 0


def test_it_finds_better_points_than_random_search() -> None:
    """It beats random search, also for numbers cut into bins."""
    best = mean_best(lambda seed: ReinforceTuner(SPACE, (METRIC,), seed=seed), 150, 5)

    assert best < 0.8 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 150, 5)


def test_choices_below_an_option_have_a_policy_of_their_own() -> None:
    """The best choice below one option is the worst below the other, and both are learned."""
    ops = ("a", "b", "c", "d")
    space = ParameterSpace(
        {
            "net": Choice({"kind": "one", "op": Choice(*ops)}, {"kind": "two", "op": Choice(*ops)}),
            "x": Float(0.0, 1.0),
        }
    )
    right = {"one": "b", "two": "c"}
    trials = search(ReinforceTuner(space, (METRIC,)), 200, lambda p: float(right[p["net"]["kind"]] != p["net"]["op"]))

    assert statistics.mean(t.metrics["loss"] for t in trials[-40:]) < 0.2


def test_equal_rewards_teach_nothing() -> None:
    """Equal scores leave the policy unchanged."""
    trials = search(ReinforceTuner(CHOICES, (METRIC,)), 100, lambda point: 1.0)

    assert len({t.point["c0"] for t in trials[-30:]}) == 5


@pytest.mark.parametrize("wrong", [{"learning_rate": -1}, {"decay": 1}, {"entropy": float("nan")}, {"bins": 1}])
def test_invalid_arguments_are_refused(wrong: dict[str, object]) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=rf"^tuner\.{next(iter(wrong))}="):
        ReinforceTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
