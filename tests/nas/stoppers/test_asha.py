"""Successive halving: rungs, survivors and brackets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.stoppers.asha import AshaStopper
from tests.support.curves import METRIC, others, trial


def stops(stopper: AshaStopper, lineage: Lineage, values: list[float]) -> list[int]:
    """Returns the steps at which a trial with these reports is told to stop."""
    return [n for n in range(1, len(values) + 1) if stopper.should_stop(lineage, trial(99, values[:n]))]


def test_judged_at_the_rungs_only() -> None:
    """With a first rung of 2 and reduction 3, a poor trial is stopped at steps 2, 6 and 18 only."""
    stopper = AshaStopper((METRIC,), min_steps=2, reduction=3)

    assert stops(stopper, others(*[[0.5] * 30] * 3), [0.1] * 30) == [2, 6, 18]


def test_no_rung_from_the_end_on() -> None:
    """max_steps leaves out the rung at which a full training ends."""
    stopper = AshaStopper((METRIC,), reduction=3, max_steps=9)

    assert stops(stopper, others(*[[0.5] * 9] * 3), [0.1] * 9) == [1, 3]


@pytest.mark.parametrize(("rank_of_new", "goes_on"), [(1, True), (2, True), (3, False), (6, False)])
def test_top_share_continues(rank_of_new: int, goes_on: bool) -> None:
    """Of six trials at a rung, with reduction 3, the best two continue."""
    values = [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    own = values.pop(rank_of_new - 1)

    assert stops(AshaStopper((METRIC,)), others(*[[v] for v in values]), [own]) == ([] if goes_on else [1])


def test_few_and_equals_continue() -> None:
    """No trial ends before `reduction` trials reached the rung, nor one that equals the last survivor."""
    assert stops(AshaStopper((METRIC,), reduction=3), others([0.9]), [0.1]) == []
    assert stops(AshaStopper((METRIC,), reduction=3), others([0.9], [0.9]), [0.1]) == [1]
    assert stops(AshaStopper((METRIC,), reduction=3), others([0.9], [0.9]), [0.9]) == []


@pytest.mark.parametrize("state", [State.COMPLETE, State.STOPPED, State.FAILED, State.RUNNING])
def test_all_that_reached_the_rung_count(state: State) -> None:
    """Trials that were stopped there, failed later or still run count as well."""
    assert stops(AshaStopper((METRIC,)), others(*[[0.5]] * 3, state=state), [0.1]) == [1]


def test_those_that_came_less_far_do_not_count() -> None:
    """At rung 3 only trials that have reached it are compared."""
    assert stops(AshaStopper((METRIC,)), others([0.0, 0.0], [0.0, 0.0], *[[0.0, 0.0, 0.5]] * 2), [0.9, 0.9, 0.4]) == [3]


def test_steps_need_not_be_equal() -> None:
    """A trial is judged at its first report at or after a rung, once for the last rung it passed."""
    stopper = AshaStopper((METRIC,), min_steps=1, reduction=3)
    lineage = others(*[{4: 0.5, 8: 0.6, 12: 0.7}] * 3)

    assert stopper.should_stop(lineage, trial(99, {5: 0.4}))
    assert not stopper.should_stop(lineage, trial(99, {5: 0.4, 8: 0.4}))
    assert stopper.should_stop(lineage, trial(99, {5: 0.4, 8: 0.4, 10: 0.65}))
    assert not stopper.should_stop(lineage, trial(99, {5: 0.4, 8: 0.4, 10: 0.75}))


def test_rung_reached_before_is_not_judged_again() -> None:
    """An attempt resumed from step 2 is not judged again at step 3."""
    lineage = others(*[[0.5] * 9] * 3)
    again = trial(99, [])
    curve = tuple((step, {"acc": 0.1}) for step in (1, 2, 3, 3))
    again = Trial(number=99, index=99, proposal=again.proposal, state=State.RUNNING, curve=curve)

    assert not AshaStopper((METRIC,)).should_stop(lineage, again)


def test_minimized_metric() -> None:
    """With a minimized metric the greatest values end."""
    stopper = AshaStopper((Metric("acc", "minimize"),))

    assert stops(stopper, others(*[[0.5]] * 3), [0.9]) == [1]
    assert stops(stopper, others(*[[0.5]] * 3), [0.1]) == []


class TestBrackets:
    def test_each_begins_at_its_own_rung(self) -> None:
        """Trials of bracket s are judged from rung min_steps * reduction ** s on."""
        stopper = AshaStopper((METRIC,), brackets=3)
        lineage = others(*[[0.5] * 30] * 200)
        found = {}
        for number in range(200, 240):
            new = [trial(number, [0.1] * n) for n in range(1, 31)]
            steps = [len(t.curve) for t in new if stopper.should_stop(lineage, t)]
            found.setdefault(stopper.bracket_of(new[0]), set()).add(tuple(steps))

        assert found == {0: {(1, 3, 9, 27)}, 1: {(3, 9, 27)}, 2: {(9, 27)}}

    def test_competition_is_within_a_bracket(self) -> None:
        """A trial is compared with those of its own bracket."""
        stopper = AshaStopper((METRIC,), brackets=2)
        by_bracket = {s: [n for n in range(50) if stopper.bracket_of(trial(n, [])) == s] for s in (0, 1)}
        new = by_bracket[1].pop()
        good = {0: 0.9, 1: 0.1}
        lineage = Lineage.of(trial(n, [good[s]] * 3, State.COMPLETE) for s in (0, 1) for n in by_bracket[s])

        assert not stopper.should_stop(lineage, trial(new, [0.5] * 3))

    def test_shared_out_as_in_hyperband(self) -> None:
        """Three brackets with reduction 3 have shares 9/3 : 3/2 : 1, evenly spread over the trials."""
        stopper = AshaStopper((METRIC,), brackets=3)
        counts = Counter(stopper.bracket_of(trial(n, [])) for n in range(1100))
        first = Counter(stopper.bracket_of(trial(n, [])) for n in range(11))

        assert [round(counts[s] / 100) for s in range(3)] == [6, 3, 2]
        assert [first[s] for s in range(3)] == pytest.approx([6, 3, 2], abs=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reduction": 1}, r"stopper.reduction=1: must be a whole number of at least 2"),
        ({"min_steps": 0}, r"stopper.min_steps=0: must be a whole number of at least 1"),
        ({"brackets": 0}, r"stopper.brackets=0: must be a whole number of at least 1"),
        ({"reduction": "three"}, r"stopper.reduction='three': must be a whole number of at least 2"),
        ({"min_steps": 1.5}, r"stopper.min_steps=1.5: must be a whole number of at least 1"),
        ({"min_steps": True}, r"stopper.min_steps=True: must be a whole number of at least 1"),
        ({"brackets": 2.5}, r"stopper.brackets=2.5: must be a whole number of at least 1"),
        ({"max_steps": "abc"}, r"stopper.max_steps='abc': must be a whole number of at least 1"),
        (
            {"brackets": 3, "max_steps": 9},
            r"stopper.max_steps=9: must be greater than the first rung of the last bracket \(9",
        ),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    """Invalid arguments are refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        AshaStopper((METRIC,), **wrong)
