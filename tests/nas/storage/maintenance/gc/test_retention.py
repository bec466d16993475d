"""Retention plans: exactly whose weights each keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as over

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.storage.maintenance.gc.retention import Retention
from tests.support.stored_trials import lineages, paper_checkpoint, trial

METRIC = Metric("accuracy")


def whole(number: int, **fields: object) -> Trial:
    """A trial with weights."""
    return trial(number, **{"checkpoint": paper_checkpoint(number), **fields})  # type: ignore[arg-type]


def kept(keep: str, *trials: Trial, metric: Metric = METRIC) -> set[int]:
    return set(Retention(keep).kept(trials, (metric,)))


@over(lineages())
def test_only_holders_are_kept(trials: list[Trial]) -> None:
    """Every plan keeps trials that have weights; `all` keeps each of them."""
    holders = {t.number for t in trials if t.checkpoint is not None}

    assert kept("all", *trials) == holders
    for keep in ("frontier", "best:3", "last:3"):
        assert kept(keep, *trials) <= holders


class TestFrontier:
    def test_leaves_are_kept(self) -> None:
        """Those stay from which no finished trial with weights of its own was given weights."""
        trials = [whole(0), whole(1, parents=[0]), whole(2, parents=[0]), whole(3, parents=[1])]

        assert kept("frontier", *trials) == {2, 3}

    def test_a_child_without_weights_does_not_count(self) -> None:
        """A failed or unfinished child, or one that saved nothing, leaves its donor on the frontier."""
        trials = [
            whole(0),
            trial(1, parents=[0], state=State.FAILED),
            trial(2, parents=[0], state=State.RUNNING),
            trial(3, parents=[0]),
        ]

        assert kept("frontier", *trials) == {0}

    def test_a_child_with_deleted_weights_counts(self) -> None:
        """A child that published weights and lost them still takes its donor off the frontier."""
        assert kept("frontier", whole(0), trial(1, parents=[0], weights_deleted=True), whole(2, parents=[1])) == {2}

    def test_parents_that_gave_no_weights_stay(self) -> None:
        """Descent is by weights: a parent that was no donor stays, and so does that of a trial that shares none."""
        trials = [whole(0), whole(1, parents=[0], donors=()), whole(2, parents=[1], policies=frozenset())]

        assert kept("frontier", *trials) == {0, 1, 2}

    def test_a_stand_in_was_the_donor(self) -> None:
        """Where an ancestor stood in for a donor, the weights are the ancestor's."""
        trials = [
            whole(0),
            whole(1, parents=[0]),
            whole(2, parents=[1], inheritance={"replaced": {"1": 0}}),
        ]

        assert trials[2].resolved_donors == (0,)
        assert kept("frontier", *trials) == {1, 2}

    def test_of_several_objectives_the_front_stays_too(self) -> None:
        """An ancestor that nothing beats keeps its weights, and a child that it beats does as a leaf."""
        trials = [
            replace(whole(0), metrics={"accuracy": 0.5, "flops": 1}),
            replace(whole(1, parents=[0]), metrics={"accuracy": 0.4, "flops": 2}),
            replace(whole(2, parents=[1]), metrics={"accuracy": 0.3, "flops": 2}),
        ]

        assert Retention("frontier").kept(trials, (METRIC, Metric("flops", "minimize"))) == {0, 2}
        assert Retention("frontier").kept(trials, (METRIC,)) == {2}


class TestBest:
    def test_best_of_each_stage(self) -> None:
        """K a stage: scores of stages do not compare; trials without weights take no place."""
        trials = [
            whole(0, score=0.9, checkpoint=None),
            *(whole(n, score=0.1 * n) for n in range(1, 5)),
            *(whole(n, score=0.01 * n, stage="final") for n in (5, 6, 7)),
        ]

        assert kept("best:2", *trials) == {3, 4, 6, 7}

    def test_minimized_metric(self) -> None:
        """The least are the best where less is better, and trials without a score are none."""
        trials = [whole(0, score=0.3), whole(1, score=0.1), whole(2, score=0.2), whole(3, score=None)]

        assert kept("best:2", *trials, metric=Metric("accuracy", "minimize")) == {1, 2}

    def test_of_equals_the_first(self) -> None:
        """Of equal scores that of the lower number goes before."""
        assert kept("best:1", whole(0), whole(1)) == {0}


def test_last() -> None:
    """The K that finished last, by the time at which they did."""
    trials = [whole(0, finished=9.0), whole(1, finished=1.0), whole(2, finished=5.0)]

    assert kept("last:2", *trials) == {0, 2}
    assert kept("last:9", *trials) == {0, 1, 2}


@pytest.mark.parametrize("keep", ["", "some", "best", "best:0", "best:-1", "last:x", "frontier:2", "best:1.5", "all "])
def test_unknown_plan(keep: str) -> None:
    """Anything else is a mistake, and the line lists the plans."""
    with pytest.raises(ConfigurationError, match="must be all, frontier, best:K or last:K"):
        Retention(keep)


@pytest.mark.parametrize("max_gb", [0, -1, float("nan"), float("inf"), True, "many"])
def test_impossible_budget(max_gb: object) -> None:
    """A disk budget is a number of gigabytes greater than 0."""
    with pytest.raises(ConfigurationError, match=r"storage\.max_gb=.*: must be a number of gigabytes"):
        Retention(max_gb=max_gb)  # type: ignore[arg-type]


def test_gigabytes() -> None:
    """A gigabyte is 1,000,000,000 bytes; without a budget, `all` deletes no weights."""
    assert Retention(max_gb=0.5).max_bytes == 5e8
    assert Retention().keeps_all
    assert not Retention("last:2").keeps_all
    assert not Retention(max_gb=1).keeps_all
