"""Importance of parameters and parallel coordinates."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.views.page.importance import MIN_TRIALS, parameter_importance
from nas.views.page.parallel import MAX_LINES, best_and_newest, parallel_coordinates
from nas.views.page.parameters import varying_parameters
from tests.support.sample_searches import trial

ACCURACY = Metric("accuracy")


def trials_of(n: int, score: Any, **more: Any) -> list[Trial]:
    """Trials of random points, whose score is a function of the point."""
    rng = random.Random(0)
    made = []
    for number in range(n):
        point = {"width": rng.choice([8, 16, 32]), "norm": rng.choice(["batch", "group"]), "rate": rng.random()}
        made.append(trial(number, score=score(point, rng), point=point, **more))
    return made


def test_parameters_of_points() -> None:
    """Nested parameters, items of lists and counts of layers vary; constants are left out; absent ones are none."""
    network = [{"id": 1, "op": "conv", "inputs": [0]}, {"id": 2, "op": "conv", "inputs": [1]}]
    points = [
        {"same": 1, "deep": {"rate": 0.1}, "flag": True, "ops": ["skip", "conv"], "nodes": network[:1]},
        {"same": 1, "deep": {"rate": 0.2}, "flag": False, "ops": ["none", "conv"], "nodes": network, "extra": 3},
    ]
    found = {p.name: p.values for p in varying_parameters([trial(i, point=p) for i, p in enumerate(points)])}

    assert found == {
        "deep.rate": (0.1, 0.2),
        "flag": ("True", "False"),
        "ops[0]": ("skip", "none"),
        "nodes: layers": (1.0, 2.0),
        "nodes: conv": (1.0, 2.0),
        "extra": (None, 3.0),
    }


@pytest.mark.parametrize("scores", [[3, 5, 5], [0, 0.01, 4808.0], [1, 2, 2**70]])
def test_whole_scores_have_an_axis(scores: list[float]) -> None:
    """Scores that are whole numbers are drawn like others."""
    trials = [trial(i, score=score, point={"width": i}) for i, score in enumerate(scores)]
    chart = parallel_coordinates(trials, ACCURACY, [])

    assert chart is not None
    assert len(chart.marks) == len(trials)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_importance_finds_the_parameter_that_matters(direction: Any) -> None:
    """The parameter that makes the score has nearly all importance, whichever way is better, also a text."""
    by_norm = trials_of(80, lambda point, rng: (point["norm"] == "group") + 0.1 * rng.random())
    found = parameter_importance(by_norm, Metric("accuracy", direction))

    assert found.shares[0][0] == "norm"
    assert found.shares[0][1] > 0.8
    assert found.r2 > 0.5
    assert sum(share for _, share in found.shares) == pytest.approx(1)


def test_importance_of_noise_is_not_known() -> None:
    """Of scores that no parameter explains, and of too few or equal ones, the page says that it does not know."""
    noise = parameter_importance(trials_of(60, lambda point, rng: rng.random()), ACCURACY)
    few = parameter_importance(trials_of(MIN_TRIALS - 1, lambda point, rng: point["rate"]), ACCURACY)
    equal = parameter_importance(trials_of(40, lambda point, rng: 0.5), ACCURACY)

    assert (noise.shares, few.shares, equal.shares) == ((), (), ())
    assert "no better than chance" in noise.reason
    assert f"needs {MIN_TRIALS} complete trials of the first stage; there are {MIN_TRIALS - 1}" in few.reason
    assert "equal" in equal.reason


def test_generations_are_told_apart() -> None:
    """What all trials of a later generation gain counts for the generation, not for a parameter."""
    trials = trials_of(90, lambda point, rng: 0.01 * rng.random())
    later = [
        replace(t, generation=t.number // 30, metrics={"accuracy": t.metrics["accuracy"] + t.number // 30})
        for t in trials
    ]

    assert parameter_importance(later, ACCURACY).shares[0][0] == "(generation)"


def test_parallel_coordinates() -> None:
    """There is a line for each trial, the best last, and an axis for each varying parameter and the score."""
    trials = trials_of(30, lambda point, rng: point["rate"])
    trials[4] = replace(trials[4], proposal=replace(trials[4].proposal, point={"rate": 1e-6, "norm": "batch"}))
    chart = parallel_coordinates(trials, ACCURACY, ["rate"])
    assert chart is not None

    names = [text.text for text in chart.notes if text.kind == "name"]
    assert names == ["rate", "width", "norm", "accuracy"]
    assert sorted(mark.trial for mark in chart.marks) == list(range(30))
    assert chart.marks[-1].trial == max(trials, key=lambda t: t.metrics["accuracy"]).number
    assert "none" in [text.text for text in chart.notes]
    for mark in chart.marks:
        places = [float(value) for value in re.findall(r"[\d.]+", mark.shape)]
        assert len(places) == 8
        assert all(0 < x < 1180 for x in places[::2])
        assert all(0 < y < 364 for y in places[1::2])


@pytest.mark.parametrize("values", [[-1e308, 1e308], [1e-300, 1e300], [0, 10**400], [1, 1.0000000001]])
def test_parallel_coordinates_of_any_range(values: list[float]) -> None:
    """Parameters and scores at the ends of floats stay within the picture, or are left out."""
    scores = [v if isinstance(v, float) else 0.5 for v in values]
    trials = [trial(i, score=s, point={"x": v, "n": i}) for i, (v, s) in enumerate(zip(values, scores, strict=True))]
    chart = parallel_coordinates(trials, ACCURACY, [])
    assert chart is not None

    places = [float(value) for mark in chart.marks for value in re.findall(r"[\d.]+", mark.shape)]
    assert all(0 < y < 364 for y in places[1::2])
    parameter_importance(trials * 10, ACCURACY)


def test_lines_of_many_trials() -> None:
    """Of many trials, the best half and the newest half have a line."""
    chosen = {t.number for t in best_and_newest(trials_of(1000, lambda point, rng: point["rate"]), ACCURACY)}

    assert len(chosen) == MAX_LINES
    assert {999, 998, 997} <= chosen
