"""Curve extrapolation: calibrated predictions; only hopeless trials end."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.trial import State
from nas.stoppers.curve import CurveStopper
from nas.stoppers.curve import chance_to_beat as chance
from nas.stoppers.median import MedianStopper
from tests.support.curves import METRIC, others, trial

TARGET = 60


def chance_to_beat(best: float, curve: list[tuple[int, float]], target: int) -> float:
    """Returns the same for pairs of step and rank."""
    return chance(best, *zip(*curve, strict=True), target)


def rise(limit: float, rate: float = 1.0, n: int = TARGET) -> list[float]:
    """Returns a power law towards a limit."""
    return [limit - 0.6 * step**-rate for step in range(1, n + 1)]


@pytest.mark.parametrize("n", [6, 12, 30])
def test_chance_falls_with_the_target(n: int) -> None:
    """It falls from certain, for a target already passed, to none for one far beyond."""
    curve = list(enumerate(rise(0.9, 0.7), 1))
    bests = [0.1, 0.5, 0.8, curve[-1][1], 0.95, 1.1, 1.5]
    chances = [chance_to_beat(best, curve[:n], TARGET) for best in bests]

    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.99
    assert chances[-1] < 0.01
    assert 0.05 < chances[3] < 0.95


@pytest.mark.parametrize(("n_seen", "least_sharp"), [(6, 0.05), (20, 0.7), (40, 0.9)])
def test_chances_are_calibrated(n_seen: int, least_sharp: float) -> None:
    """Noisy curves outside the grid's family that are called unlikely (below 0.05) are, at every length.

    And what lies 0.2 beyond the true end is called so ever more often.
    """
    rng = random.Random(1)
    n_wrong = n_sharp = 0
    for _ in range(100):
        limit, power, rate = rng.uniform(0.5, 0.95), rng.uniform(0.5, 1.2), rng.uniform(0.02, 0.3)
        true = [limit - (limit - 0.1) * math.exp(-((rate * step) ** power)) for step in range(1, TARGET + 1)]
        seen = [(step, value + rng.gauss(0, 0.01)) for step, value in enumerate(true[:n_seen], 1)]
        n_wrong += chance_to_beat(true[-1] - 0.001, seen, TARGET) < 0.05
        n_sharp += chance_to_beat(true[-1] + 0.2, seen, TARGET) < 0.05

    assert n_wrong <= 5
    assert n_sharp >= least_sharp * 100


@pytest.mark.parametrize(("scale", "shift"), [(100.0, 0.0), (1e-6, 0.0), (1.0, -50.0), (1e9, 1e9)])
def test_unit_and_origin_do_not_matter(scale: float, shift: float) -> None:
    """The chance is the same for percent or shares, positive or negative values."""
    curve = list(enumerate(rise(0.9, 0.5, 10), 1))
    moved = [(step, value * scale + shift) for step, value in curve]
    plain = chance_to_beat(0.8, curve, TARGET)

    assert chance_to_beat(0.8 * scale + shift, moved, TARGET) == pytest.approx(plain, abs=1e-3)


def test_hopeless_trial_ends_and_promising_one_does_not() -> None:
    """With a best of 0.9, a trial towards 0.5 ends early, and one towards 0.95 does not."""
    stopper, lineage = CurveStopper((METRIC,)), others(rise(0.9))

    def stopped_at(values: list[float]) -> int | None:
        return next((n for n in range(1, TARGET) if stopper.should_stop(lineage, trial(9, values[:n]))), None)

    assert 4 <= (stopped_at(rise(0.5)) or TARGET) <= 10
    assert stopped_at(rise(0.95)) is None


def test_minimized_metric_is_the_mirror_image() -> None:
    """A loss that falls towards 0.5 ends if the best fell to 0.1."""
    stopper = CurveStopper((Metric("acc", "minimize"),))
    lineage = others([1 - value for value in rise(0.9)])

    assert stopper.should_stop(lineage, trial(9, [1 - value for value in rise(0.5, n=20)]))
    assert not stopper.should_stop(lineage, trial(9, [1 - value for value in rise(0.95, n=20)]))


def test_no_trial_ends_without_a_target() -> None:
    """Without a finished trial of known length, or target_step, no trial ends."""
    poor = trial(9, rise(0.2, n=20))
    stopped = others(rise(0.9), state=State.STOPPED)

    assert not CurveStopper((METRIC,)).should_stop(others(), poor)
    assert not CurveStopper((METRIC,)).should_stop(others(rise(0.9), state=State.RUNNING), poor)
    assert not CurveStopper((METRIC,)).should_stop(stopped, poor)
    assert CurveStopper((METRIC,), target_step=TARGET).should_stop(stopped, poor)


def test_start_and_end() -> None:
    """No trial ends before start_step or min_reports, nor at its last report."""
    lineage, poor = others(rise(0.9)), rise(0.2)

    assert not CurveStopper((METRIC,), start_step=21).should_stop(lineage, trial(9, poor[:20]))
    assert not CurveStopper((METRIC,), min_reports=21).should_stop(lineage, trial(9, poor[:20]))
    assert CurveStopper((METRIC,)).should_stop(lineage, trial(9, poor[:-1]))
    assert not CurveStopper((METRIC,)).should_stop(lineage, trial(9, poor))


@pytest.mark.parametrize("curve", [{0: 0.1, 1: 0.2, 2: 0.3, 3: 0.3}, {-5: 0.0, 7: 0.1, 8: 0.2, 30: 0.3}])
def test_steps_may_begin_anywhere(curve: dict[int, float]) -> None:
    """Steps from 0 or below work: a far worse trial ends."""
    assert CurveStopper((METRIC,)).should_stop(others({0: 1.0, 60: 9.0}), trial(9, curve))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threshold": 0.0}, r"stopper.threshold=0.0: must be between 0 and 1"),
        ({"min_reports": 3}, r"stopper.min_reports=3: must be a whole number of at least 4"),
        ({"threshold": "high"}, r"stopper.threshold='high': must be a number"),
        ({"threshold": float("nan")}, r"stopper.threshold=nan: must be a number"),
        ({"start_step": 1.5}, r"stopper.start_step=1.5: must be a whole number of at least 0"),
        ({"target_step": "end"}, r"stopper.target_step='end': must be a whole number of at least 1"),
        (
            {"start_step": 10, "target_step": 10},
            r"stopper.target_step=10: must be greater than stopper.start_step \(10\)",
        ),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    """Invalid arguments are refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        CurveStopper((METRIC,), **wrong)


@pytest.mark.parametrize("first", [-1e9, -1.7e308])
def test_diverged_first_report_does_not_hide_the_curve(first: float) -> None:
    """A curve that starts near the limit of floats is judged by its other reports."""
    curve = [first, *rise(0.9)[1:20]]

    assert chance(0.3, range(1, 21), curve, TARGET) > 0.9
    assert chance(2.0, range(1, 21), curve, TARGET) < 0.1


def test_median_of_diverged_trials_is_finite() -> None:
    """With others near the limit of floats, whose sum is infinite, a better trial continues and a worse one stops."""
    lineage = others(*([value, value] for value in (1.6e308, 1.7e308)))
    stopper = MedianStopper((METRIC,), min_trials=2)

    assert not stopper.should_stop(lineage, trial(9, [1.7e308, 1.7e308]))
    assert stopper.should_stop(lineage, trial(9, [1.5e308, 1.5e308]))
