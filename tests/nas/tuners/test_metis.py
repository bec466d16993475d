"""Metis: predicts, repeats outliers, and ranks by prediction."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.point import Point, point_key
from nas.core.trial import Proposal, Trial
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.tuners.base import STOP, WAIT
from nas.tuners.metis import MetisTuner
from nas.tuners.random import RandomTuner
from tests.support.landscape import METRIC, SPACE, finished, least_gap_of_pending, mean_best, pending, search

LINE = ParameterSpace({"x": Float(0.0, 1.0)})


def valley(point: Point) -> float:
    return float((point["x"] - 0.3) ** 2)


def with_a_lucky_one() -> list[Trial]:
    """Returns fifteen measurements of the valley, and one far from its bottom with the lowest loss by luck."""
    points = [{"x": i / 15} for i in range(16)]
    losses = [-0.05 if i == 13 else valley(point) for i, point in enumerate(points)]
    return [finished(i, Proposal(point=p), v) for i, (p, v) in enumerate(zip(points, losses, strict=True))]


@pytest.mark.slow
def test_it_finds_better_points_than_random_search() -> None:
    """Over three seeds, the best of 40 trials is on average much nearer to the optimum than random search's."""
    best = mean_best(lambda seed: MetisTuner(SPACE, (METRIC,), seed=seed, n_candidates=100), 40, 3)

    assert best < 0.7 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 40, 3)


def test_a_lucky_score_is_measured_again() -> None:
    """The outlier is among the next few proposals, unless repeats are off."""
    trials = with_a_lucky_one()
    for max_repeats, expected in ((3, True), (1, False)):
        tuner = MetisTuner(LINE, (METRIC,), max_repeats=max_repeats)
        grown = list(trials)
        for number in range(16, 20):
            answer = tuner.ask(Lineage.of(grown), number, number)
            assert isinstance(answer, Proposal)
            grown.append(finished(number, answer, valley(answer.point)))
        assert ({"x": 13 / 15} in [t.point for t in grown[16:]]) is expected


def test_the_best_predicted_and_confirmed_come_first() -> None:
    """The luckiest trial leads by score, but not by the model's prediction."""
    lineage = Lineage.of(with_a_lucky_one())

    assert lineage.ranked(METRIC)[0].number == 13
    ranked = MetisTuner(LINE, (METRIC,)).ranked(lineage)
    assert abs(ranked[0].point["x"] - 0.3) < 0.15
    assert len(ranked) == 16


def test_an_instance_ranks_each_search_by_its_own_scores() -> None:
    """An earlier search whose trials have the same numbers does not count."""
    trials = with_a_lucky_one()
    turned = Lineage.of([finished(trial.number, trial.proposal, -valley(trial.point)) for trial in trials])
    tuner = MetisTuner(LINE, (METRIC,))
    before, ranked = tuner.ranked(Lineage.of(trials)), tuner.ranked(turned)

    assert ranked == MetisTuner(LINE, (METRIC,)).ranked(turned)
    assert [trial.number for trial in ranked] != [trial.number for trial in before]


@pytest.mark.slow
def test_ranking_resists_noise() -> None:
    """Of 40 noisy random trials, the first-ranked one is on average better than the best-scored one."""
    own, lucky = [], []
    for seed in range(20):
        noise = random.Random(seed)
        trials = search(RandomTuner(LINE, (METRIC,), seed=seed), 40, lambda p, n=noise: valley(p) + n.gauss(0, 0.1))
        lineage = Lineage.of(trials)
        own.append(valley(MetisTuner(LINE, (METRIC,)).ranked(lineage)[0].point))
        lucky.append(valley(lineage.ranked(METRIC)[0].point))

    assert statistics.mean(own) < 0.7 * statistics.mean(lucky)


def test_pending_trials_count() -> None:
    """Twelve asks without results give twelve points, and no running point is repeated."""
    tuner = MetisTuner(LINE, (METRIC,), n_candidates=100)
    trials = pending(tuner, with_a_lucky_one(), 12)

    assert max(Counter(point_key(t.point) for t in trials).values()) == 1


def test_running_trials_count_as_predicted() -> None:
    """While trials run, points are sought elsewhere."""
    gap = least_gap_of_pending(lambda space: MetisTuner(space, (METRIC,), n_candidates=100))

    assert gap > 0.05


def test_small_space_is_exhausted_after_the_repeats() -> None:
    """The answer is STOP if every point has scores and no repeat is worthwhile."""
    space = ParameterSpace({"a": Choice(*range(6)), "b": Choice("x", "y")})
    tuner = MetisTuner(space, (METRIC,), n_initial_points=5, n_candidates=50)
    trials: list[Trial] = []
    for number in range(60):
        answer = tuner.ask(Lineage.of(trials), number, number)
        if not isinstance(answer, Proposal):
            break
        trials.append(finished(number, answer, float(answer.point["a"])))

    assert 12 <= len(trials) < 60
    assert len({point_key(t.point) for t in trials}) == 12


@pytest.mark.parametrize("fails", [0, 4])
def test_space_smaller_than_the_initial_points_is_measured_again(fails: int) -> None:
    """Of six noisy points, one of which may fail, the promising ones are repeated at most three times."""
    noise = random.Random(0)
    tuner = MetisTuner(ParameterSpace({"x": Int(1, 6)}), (METRIC,), n_candidates=20)
    trials: list[Trial] = []
    while isinstance(answer := tuner.ask(Lineage.of(trials), len(trials), len(trials)), Proposal):
        x = answer.point["x"]
        trials.append(finished(len(trials), answer, None if x == fails else 0.01 * (x - 3) ** 2 + noise.gauss(0, 0.3)))
    times = Counter(trial.point["x"] for trial in trials)

    assert answer is STOP
    assert set(times) == {1, 2, 3, 4, 5, 6}
    assert sum(times.values()) > 9
    assert max(times.values()) == 3
    assert times[fails] <= 1


def test_a_refused_point_is_not_measured_again() -> None:
    """A constraint on a proxy, whose value differs with the proposal, may refuse what was measured before."""
    noise = random.Random(0)
    tuner = MetisTuner(ParameterSpace({"x": Int(1, 6)}), (METRIC,), n_candidates=20)
    trials = [finished(n, Proposal(point={"x": n + 1}), 0.01 * (n - 2) ** 2 + noise.gauss(0, 0.3)) for n in range(6)]
    first = tuner.ask(Lineage.of(trials), 6, 6)
    assert isinstance(first, Proposal)
    other = tuner.ask(Lineage.of(trials).refusing(lambda point: point == first.point), 6, 6)

    assert not isinstance(other, Proposal) or other.point != first.point


def test_the_end_waits_for_running_trials() -> None:
    """If all points have scores or run, the answer is WAIT."""
    tuner = MetisTuner(ParameterSpace({"x": Int(1, 6)}), (METRIC,), max_repeats=1)
    points = [Proposal(point={"x": x}) for x in range(1, 7)]
    done = [finished(number, point, 0.1 * number) for number, point in enumerate(points[:5])]

    assert tuner.ask(Lineage.of([*done, Trial(number=5, index=5, proposal=points[5])]), 6, 6) is WAIT
    assert tuner.ask(Lineage.of([*done, finished(5, points[5], 0.5)]), 6, 6) is STOP


@pytest.mark.parametrize(
    "wrong", [{"n_initial_points": 1}, {"n_candidates": 0}, {"max_repeats": 0}, {"max_points": 19}]
)
def test_invalid_arguments_are_refused(wrong: dict[str, int]) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        MetisTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
