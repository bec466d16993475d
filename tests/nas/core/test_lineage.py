"""The lineage: order of learning, relatives, and immutable views."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.core.errors import PointError, TrialNotFoundError
from nas.core.lineage import Lineage, LineageLog, restore_log
from nas.core.metric import Metric
from nas.core.trial import Proposal, State, Trial

ACCURACY = Metric("accuracy")
LOSS = Metric("loss", "minimize")


def trial(number: int, *parents: int, state: State = State.COMPLETE, x: int | None = None, **metrics: float) -> Trial:
    point = {"x": number if x is None else x}
    return Trial(
        number=number, index=number, proposal=Proposal(point=point, parents=parents), state=state, metrics=metrics
    )


def running(number: int, *parents: int) -> Trial:
    return trial(number, *parents, state=State.RUNNING)


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_retries_settle_no_longer_trials() -> None:
    """A longer trial waits for the next proposal in a deterministic order; a retry is no proposal."""
    long = trial(0)
    long = replace(long, proposal=replace(long.proposal, relative_duration=4))
    failed = trial(1, state=State.FAILED)
    retry = replace(trial(2), index=1, retry_of=1)

    log = restore_log([long, failed, retry], deterministic_slots=2)

    assert numbers(list(log.learned)) == [1, 2]


def test_order_is_that_of_learning() -> None:
    """A lineage holds finished trials in the order learned, then the pending ones."""
    lineage = LineageLog([trial(2), trial(0)]).view(pending=[running(1), running(3)])

    assert numbers(list(lineage)) == [2, 0, 1, 3]
    assert numbers(list(lineage.newest())) == [0, 2]
    assert numbers(list(lineage.finished)) == [2, 0]
    assert len(lineage) == 4


def test_view_does_not_grow() -> None:
    """A tuner's view stays unchanged when further trials are learned."""
    log = LineageLog([trial(0)])
    lineage = log.view()
    log.append(trial(1))

    assert numbers(list(lineage)) == numbers(list(lineage.finished)) == [0]
    assert 1 not in lineage
    assert not lineage.has_point({"x": 1})
    assert numbers(list(log.view(1))) == [0]


@pytest.mark.parametrize("wrong", [running(1), trial(0)], ids=["unfinished", "twice"])
def test_log_takes_finished_trials_once(wrong: Trial) -> None:
    """A trial that is unfinished, or learned already, is refused."""
    log = LineageLog([trial(0)])

    with pytest.raises(ValueError, match=f"trial {wrong.number} "):
        log.append(wrong)


def test_trials_are_found_by_number() -> None:
    """Finished and pending trials are found; another number raises an error that names it."""
    lineage = Lineage.of([trial(4), running(7)])

    assert lineage[4].state == State.COMPLETE
    assert lineage[7].state == State.RUNNING
    assert 7 in lineage
    assert 5 not in lineage
    with pytest.raises(TrialNotFoundError, match="no trial 5 among the lineage's 2 trials"):
        lineage[5]


def test_points_are_known_by_value() -> None:
    """has_point finds finished and pending points in any key order, and tells 1 from 1.0."""
    finished = replace(trial(0), proposal=Proposal(point={"a": 1, "b": {"c": [1, 2]}}))
    lineage = Lineage.of([finished, running(1)])

    assert lineage.has_point({"b": {"c": [1, 2]}, "a": 1})
    assert lineage.has_point({"x": 1})
    assert not lineage.has_point({"a": 1.0, "b": {"c": [1, 2]}})


def test_point_that_is_no_json_is_refused() -> None:
    """Asking for a point that no record can hold raises an error instead of returning False."""
    with pytest.raises(PointError, match="not plain JSON"):
        Lineage.of([]).has_point({"x": {1}})


def test_best_is_by_direction() -> None:
    """best returns the greatest values of a maximized metric, the least of a minimized one, best first."""
    lineage = Lineage.of([trial(n, accuracy=value, loss=value) for n, value in enumerate([0.2, 0.9, 0.5])])

    assert numbers(lineage.best(ACCURACY, 3)) == [1, 2, 0]
    assert numbers(lineage.best(LOSS, 2)) == [0, 2]


def test_zero_is_a_score() -> None:
    """A trial with score 0 is ranked, and one without a score is not."""
    lineage = Lineage.of([trial(0, loss=0.0), trial(1, loss=0.1), trial(2), trial(3, state=State.FAILED, loss=-1.0)])

    assert numbers(lineage.best(LOSS, 9)) == [0, 1]


def test_equals_are_ranked_by_number() -> None:
    """Of equal scores the lower number is better, in any order of learning."""
    lineage = Lineage.of([trial(2, accuracy=1.0), trial(0, accuracy=1.0), trial(1, accuracy=1.0)])

    assert numbers(lineage.best(ACCURACY, 2)) == [0, 1]


def test_not_finite_is_no_score() -> None:
    """A NaN score is never the best."""
    lineage = Lineage.of([trial(0, accuracy=math.nan), trial(1, accuracy=0.1)])

    assert numbers(lineage.best(ACCURACY, 2)) == [1]


def test_stopped_trials_are_ranked() -> None:
    """The last report of a stopped trial is its score."""
    assert numbers(Lineage.of([trial(0, state=State.STOPPED, accuracy=0.5)]).best(ACCURACY)) == [0]


def test_ancestors_are_the_line_of_first_parents() -> None:
    """ancestors follows first parents back to a trial without a parent, which has none."""
    lineage = Lineage.of([trial(0), trial(1), trial(2, 1, 0), trial(3, 2)])

    assert numbers(lineage.ancestors(3)) == [2, 1]
    assert lineage.ancestors(0) == []


def test_ancestors_of_a_pending_trial() -> None:
    """ancestors works for a running trial, and through a running parent."""
    lineage = Lineage.of([trial(0), running(1, 0), running(2, 1)])

    assert numbers(lineage.ancestors(2)) == [1, 0]


def test_line_ends_where_the_parent_is_unknown() -> None:
    """ancestors ends at a parent outside the lineage."""
    assert Lineage.of([trial(5, 3)]).ancestors(5) == []


def test_children_are_those_that_name_it() -> None:
    """children are the trials that name it as parent or donor."""
    by_donor = replace(trial(3), proposal=Proposal(point={"x": 3}, donors=(0, "other:0")))
    lineage = Lineage.of([trial(0), trial(1, 0), trial(2, 1), by_donor, running(4, 0)])

    assert numbers(lineage.children(0)) == [1, 3, 4]
    assert lineage.children(2) == []


def test_states_are_counted() -> None:
    """n_in_state counts finished and pending trials."""
    lineage = Lineage.of([trial(0), trial(1, state=State.FAILED), running(2), running(3)])

    counts = {state: lineage.n_in_state(state) for state in State}
    assert counts == {"WAITING": 0, "RUNNING": 2, "COMPLETE": 1, "STOPPED": 0, "FAILED": 1}


@given(st.permutations(range(8)), st.integers(0, 8))
def test_every_view_is_a_prefix(order: list[int], n_learned: int) -> None:
    """A view of n trials has exactly the first n learned."""
    lineage = LineageLog(map(trial, order)).view(n_learned)

    assert numbers(list(lineage)) == order[:n_learned]
    assert [number for number in range(8) if number in lineage] == sorted(order[:n_learned])
    assert [number for number in range(8) if lineage.has_point({"x": number})] == sorted(order[:n_learned])


def test_newest_scored_are_those_of_the_view() -> None:
    """newest_scored returns the view's last scored trials, newest first, without failed ones."""
    log = LineageLog([trial(0, accuracy=0.1), trial(1, state=State.FAILED), trial(2, accuracy=0.2)])
    early = log.view()
    assert numbers(early.newest_scored(ACCURACY, 2)) == [2, 0]
    log.append(trial(4, accuracy=0.3))
    log.append(trial(3, accuracy=0.4))

    assert numbers(early.newest_scored(ACCURACY, 2)) == [2, 0]
    assert numbers(log.view().newest_scored(ACCURACY, 3)) == [3, 4, 2]
    assert numbers(log.view(1).newest_scored(ACCURACY, 9)) == [0]
    assert numbers(log.view().newest_scored(LOSS, 9)) == []


def is_even(trial: Trial) -> bool:
    return trial.point["x"] % 2 == 0


def test_only_some_trials() -> None:
    """A part of a lineage has its trials in the same order, and grows with the log without changing earlier views."""
    log = LineageLog([trial(2, accuracy=0.1), trial(1, accuracy=0.2)])
    for number in (0, 1, 2, 3, 4):
        log.add_proposed(trial(number))
    before = log.view(pending=[running(3), running(4)]).only(is_even)
    log.append(trial(0, accuracy=0.3))
    log.add_proposed(trial(6))
    after = log.view(pending=[running(6)]).only(is_even)

    assert numbers(list(before)) == [2, 4]
    assert numbers(list(after)) == [2, 0, 6]
    assert numbers(list(after.ranked(ACCURACY))) == [0, 2]
    assert [before.has_point({"x": x}) for x in (0, 1, 4, 6)] == [True, False, True, False]
    assert [after.has_point({"x": x}) for x in (0, 1, 4, 6)] == [True, False, True, True]


@given(st.lists(st.integers(0, 20), unique=True), st.data())
def test_only_is_the_same_as_a_lineage_of_these_trials(order: list[int], data: st.DataObject) -> None:
    """A part equals the lineage of its trials alone at any time, deleted weights and refusals included."""
    log = LineageLog()
    for place, number in enumerate(order):
        log.append(trial(number, accuracy=number / 7 % 1))
        if data.draw(st.booleans()):
            log.view().only(is_even)
        if data.draw(st.booleans()):
            log.delete_weights(order[place // 2])
    n_learned = data.draw(st.integers(0, len(order)))
    part = log.view(n_learned).refusing(lambda point: point["x"] == 4).only(is_even)
    alone = Lineage.of(t for t in log.view(n_learned) if is_even(t))

    assert list(part) == list(alone)
    assert list(part.ranked(ACCURACY)) == list(alone.ranked(ACCURACY))
    assert part.has_point({"x": 4})
