"""Annealing: initial points, then ever nearer neighbors of good trials."""

from __future__ import annotations

import statistics

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.trial import Proposal, Reason, State, Trial
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.tuners.anneal import AnnealTuner
from nas.tuners.base import STOP
from nas.tuners.random import RandomTuner
from tests.support.landscape import METRIC, SPACE, mean_best, search


def test_it_finds_better_points_than_random_search() -> None:
    """Over ten seeds, the best of 60 trials is on average less than half as far from the optimum as random search's."""
    best = mean_best(lambda seed: AnnealTuner(SPACE, (METRIC,), seed=seed), 60)

    assert best < 0.5 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 60)


def test_children_are_near_their_parents() -> None:
    """After the initial points each trial has one good parent, and later trials are nearer to theirs."""
    trials = search(AnnealTuner(SPACE, (METRIC,), n_initial_points=7), 200)

    assert [t.parents for t in trials[:7]] == [()] * 7
    assert all(len(t.parents) == 1 for t in trials[7:])
    steps = [abs(t.point["x"] - trials[t.parents[0]].point["x"]) for t in trials[7:]]
    assert statistics.mean(steps[-50:]) < 0.5 * statistics.mean(steps[:50])
    ranks = [
        sorted(trials[: t.number], key=lambda other: other.metrics["loss"]).index(trials[t.parents[0]])
        for t in trials[7:]
    ]
    assert 1.0 < statistics.mean(ranks) < 3.5


def test_failed_and_pending_trials_are_no_neighbors() -> None:
    """Initial points are drawn until enough trials have a score; failed ones do not count."""
    point = SPACE.sample(RandomTuner(SPACE, (METRIC,)).rng(0))
    failed = [
        Trial(number=n, index=n, proposal=Proposal(point=point), state=State.FAILED, reason=Reason.EXCEPTION)
        for n in range(20)
    ]

    answer = AnnealTuner(SPACE, (METRIC,)).ask(Lineage.of(failed), 20, 20)

    assert isinstance(answer, Proposal)
    assert answer.parents == ()


def test_small_space_is_exhausted() -> None:
    """No point comes twice, and STOP follows the last one."""
    space = ParameterSpace({"a": Choice(1, 2, 3), "b": Choice("x", "y")})
    tuner = AnnealTuner(space, (METRIC,), n_initial_points=2)
    trials = search(tuner, 6, lambda point: point["a"])

    assert len({(t.point["a"], t.point["b"]) for t in trials}) == 6
    assert tuner.ask(Lineage.of(trials), 6, 6) is STOP


@pytest.mark.parametrize("wrong", [{"n_initial_points": 0}, {"mean_rank": -1}, {"shrink": float("inf")}])
def test_invalid_arguments_are_refused(wrong: dict[str, float]) -> None:
    """No initial points, a negative rank and an infinite shrinking are refused by name."""
    with pytest.raises(ConfigurationError, match=rf"^tuner\.{next(iter(wrong))}="):
        AnnealTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
