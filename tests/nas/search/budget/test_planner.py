"""The planned ends of stages, by used and estimated hours."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from nas.core.budget import Budget
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.trial import Proposal, Reason, State, Trial
from nas.search.budget.planner import LEAST_SHARE, MARGIN, SELECTION_MAX_S, SHORT_MARGIN, StagePlanner, Usage
from tests.nas.search.budget.test_durations import trial

SEARCH, FINAL = Stage(name="search", policies=frozenset({Policy.EARLY_STOP})), Stage(name="final")
PLAN = PolicyPlan((SEARCH, FINAL))


def planner(*, n_finals: int = 2, slots: int = 1, has_selection: bool = False, **budget: Any) -> StagePlanner:
    chosen = Budget(**{"hours": 1.0, "at_deadline": "finish", **budget})
    return StagePlanner(chosen, PLAN, slots, n_left=lambda: {"final": n_finals}, has_selection=has_selection)


def searched(number: int, seconds: float, setup_s: float = 0.0, **changes: Any) -> Trial:
    """Returns a trial of the search stage that trained a tenth of the epochs."""
    one = replace(trial(seconds, stage=SEARCH, epochs=0.1), number=number, **changes)
    return replace(one, cost={**one.cost, "setup_seconds": setup_s})


def final_of(parent: Trial, seconds: float, share: float) -> Trial:
    """Returns a final of a search trial's point that trained a share of all epochs."""
    proposal = Proposal(point={}, parents=(parent.number,), fidelity=None if share == 1 else share)
    return replace(trial(seconds, stage=FINAL, epochs=share), number=parent.number + 10, proposal=proposal)


def shortening(slots: int = 1) -> StagePlanner:
    return StagePlanner(
        Budget(hours=1.0), PLAN, slots, n_left=lambda: {"final": 2}, shortens=True, threads_help=slots > 1
    )


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_measured_final_corrects_the_length_of_the_next(share: float) -> None:
    """A final that took three times as long as its share of the epochs said shortens the next one."""
    plan, [first, second] = shortening(), [searched(number, 10.0) for number in (0, 1)]
    plan.learn(first)
    plan.learn(second)
    assert plan.share_that_fits(FINAL, at(3600 - 200), second) == 1
    plan.learn(final_of(first, 300.0 * share, share))

    found = plan.share_that_fits(FINAL, at(3600 - 200), second)
    assert found is not None
    assert found * 300 == pytest.approx((200 - plan.grace_s) / SHORT_MARGIN)


def test_a_shortened_final_may_train_for_the_time_left() -> None:
    """That is less the time for its last score and its stop; other problems have no limit."""
    plan, one = shortening(), searched(0, 200.0)
    plan.learn(one)

    assert plan.training_left_s(FINAL, at(3600 - 100), one) == pytest.approx(0.96 * (100 - plan.grace_s) - 1)
    assert plan.training_left_s(FINAL, at(0), one) == pytest.approx(3600 - plan.grace_s - 60)
    assert plan.training_left_s(FINAL, at(3600), one) == 0
    assert planner().training_left_s(FINAL, at(0), one) is None


def test_no_other_final_fits_into_the_time_for_the_last_score() -> None:
    """That time is at most half of the final's least duration, and no less than a second."""
    plan, short, shortest = shortening(), searched(0, 20.0), searched(1, 0.5)
    plan.learn(short)
    plan.learn(shortest)

    assert plan.training_left_s(FINAL, at(0), short) == pytest.approx(3600 - plan.grace_s - 10)
    assert plan.training_left_s(FINAL, at(0), shortest) == pytest.approx(3600 - plan.grace_s - 1)
    assert plan.closed_by(FINAL, at(3600 - plan.grace_s - 10), short) == "hours"


def test_a_final_shorter_than_its_search_trial_corrects_nothing() -> None:
    """Most of its time was spent on scoring; a full training is not expected to take that many times as long."""
    plan, one = shortening(), searched(0, 10.0)
    plan.learn(one)
    plan.learn(final_of(one, 5.0, 0.001))

    assert plan.share_that_fits(FINAL, at(3600 - 200), one) == 1


def test_only_a_final_with_twice_its_estimate_has_no_limit() -> None:
    """One with less time is planned in full, and its fidelity says that its time is limited."""
    plan, one = shortening(), searched(0, 10.0)
    plan.learn(one)
    shares = [plan.share_that_fits(FINAL, at(3600 - plan.grace_s - left_s), one) for left_s in (109, 111, 199, 201)]

    assert shares[0] is not None
    assert shares[0] < 1
    assert shares[1:] == [1, 1, None]
    assert plan.fits_in_full(FINAL, at(3600 - plan.grace_s - 111), one)
    assert not plan.fits_in_full(FINAL, at(3600 - plan.grace_s - 109), one)


@pytest.mark.parametrize(("slots", "least_s"), [(1, 100.0), (4, 100 / 2.8)])
def test_a_shortened_final_needs_time_for_its_least_epochs(slots: int, least_s: float) -> None:
    """It trains at least as many epochs as its search trial, which had a tenth of the data, on all slots' threads."""
    plan, one = shortening(slots), searched(0, 10.0)
    one = replace(one, cost={**one.cost, "scale_share": 0.1})
    plan.learn(one)
    bounds = [plan.closed_by(FINAL, at(3600 - plan.grace_s - share * least_s), one) for share in (1.09, 1.11)]

    assert bounds == ["hours", None]


def test_a_final_planned_too_short_that_trained_in_full_is_a_full_one() -> None:
    """It is not shortened, and its duration counts as that of the stage."""
    plan, one = shortening(), searched(0, 10.0)
    final = final_of(one, 90.0, 0.5)
    final = replace(final, cost={**final.cost, "epochs_share": 1.0})
    plan.learn(one)
    plan.learn(final)

    assert not final.is_shortened
    assert plan.estimator.has_seen(FINAL)


def test_setup_is_not_shortened() -> None:
    """Loading data takes as long for a share of the epochs."""
    plan, one = shortening(), searched(0, 40.0, 30.0)
    plan.learn(one)

    share = plan.share_that_fits(FINAL, at(3600 - 100), one)
    assert share is not None
    assert 30 + share * 100 == pytest.approx((100 - plan.grace_s) / SHORT_MARGIN)
    assert plan.share_that_fits(FINAL, at(3600 - 10), one) == LEAST_SHARE


def test_a_stopped_trial_takes_at_least_as_long_as_others() -> None:
    """A trial that a stopper ended says less than its planned epochs."""
    plan, stopped = shortening(), searched(1, 2.0, state=State.STOPPED, reason=Reason.STOPPER)
    plan.learn(stopped)
    assert plan.share_that_fits(FINAL, at(3600 - 60), stopped) == 1
    plan.learn(searched(0, 10.0))

    share = plan.share_that_fits(FINAL, at(3600 - 60), stopped)
    assert share is not None
    assert share * 100 == pytest.approx((60 - plan.grace_s) / SHORT_MARGIN)


def at(wall_s: float, gpu_s: float = 0.0, *running: float) -> Usage:
    return Usage(wall_s, gpu_s, running)


def test_without_hours_everything_is_open() -> None:
    """A budget of trials alone sets no end."""
    assert planner(hours=None, trials=3).is_unlimited
    assert not planner().is_unlimited


def test_hours_may_have_any_number_of_digits() -> None:
    """Hours are an integer whose seconds no float can hold: the end is infinitely far away."""
    assert planner(hours=10**308, has_selection=True).left_s(SEARCH, at(3600)) == math.inf
    assert planner(hours=None, gpu_hours=10**308).closed_by(SEARCH, at(3600, 3600)) is None


def test_final_share_is_kept_while_nothing_is_known() -> None:
    """The default reserve is two fifths; before any trial has finished, running ones have the whole time."""
    table = planner()

    assert [table.closed_by(SEARCH, at(s)) for s in (0, 2159, 2161)] == [None, None, "hours"]
    assert table.left_s(SEARCH, at(2160)) == 1440


def test_reserve_is_the_duration_of_the_finals() -> None:
    """Finals run in sequence on one slot and in parallel on two; the last one has a margin."""
    for slots, kept_s in ((1, 600 + MARGIN * 600), (2, MARGIN * 600), (3, MARGIN * 600)):
        table = planner(slots=slots)
        table.learn(trial(60, stage=SEARCH, epochs=0.1))

        assert table.left_s(SEARCH, at(1000)) == pytest.approx(2600 - kept_s)
        assert table.closed_by(SEARCH, at(3600 - kept_s - 60)) is None
        assert table.closed_by(SEARCH, at(3600 - kept_s - 59)) == "hours"


def test_trials_start_only_if_they_can_finish() -> None:
    """With stop, the shortest trial must fit; with finish, a usual one."""
    for at_deadline, need_s in (("stop", 10), ("finish", 90)):
        table = planner(at_deadline=at_deadline, n_finals=0)
        for seconds in range(10, 110, 10):
            table.learn(trial(seconds, stage=SEARCH))
        table.learn(trial(1.0, stage=FINAL))

        assert table.need_s(SEARCH) == need_s
        left_s = table.left_s(SEARCH, at(0))
        assert table.closed_by(SEARCH, at(left_s - need_s)) is None
        assert table.closed_by(SEARCH, at(left_s - need_s + 1)) == "hours"
        assert table.next_decisions_s(SEARCH, at(0)) == pytest.approx((left_s - need_s, left_s))
        assert table.next_decisions_s(SEARCH, at(left_s - 1)) == pytest.approx((1 - need_s, 1))


def test_a_final_that_can_not_finish_reserves_nothing() -> None:
    """It is not started, and the search gets its time."""
    table = planner()
    table.learn(trial(60, stage=SEARCH, epochs=0.01))

    assert list(table.stages_without_time(SEARCH, at(60))) == [(FINAL, 6000.0)]
    assert table.closed_by(FINAL, at(60)) == "hours"
    assert table.left_s(SEARCH, at(60)) == 3540


def test_a_final_of_unknown_length_needs_the_time_of_a_search_trial() -> None:
    """A final needs at least a search trial's time, so none starts at the last moment."""
    table = planner()
    table.learn(trial(60, stage=SEARCH))

    assert [table.closed_by(FINAL, at(3600 - s)) for s in (61, 59)] == [None, "hours"]


def test_many_finals_leave_the_search_a_fifth() -> None:
    """Only as many finals as fit are trained; a single one may take more."""
    table = planner(n_finals=50)
    table.learn(trial(60, stage=SEARCH, epochs=0.1))

    assert table.left_s(SEARCH, at(0)) == pytest.approx(0.2 * 3600)
    table = planner(n_finals=50)
    table.learn(trial(60, stage=SEARCH, epochs=60 / 3000))
    assert table.left_s(SEARCH, at(0)) == pytest.approx(3600 - MARGIN * 3000)


def test_tests_and_export_have_a_reserve() -> None:
    """The reserve is a fiftieth, at most two minutes; later it is the measured time with a margin."""
    assert planner(has_selection=True).left_s(FINAL, at(0)) == 3600 - 72
    large = planner(has_selection=True, hours=10.0)
    assert large.left_s(FINAL, at(0)) == 36_000 - SELECTION_MAX_S
    large.learn_selection(10.0)
    assert large.left_s(FINAL, at(0)) == pytest.approx(36_000 - MARGIN * 10.0)


def test_a_stopped_trial_has_time_to_end() -> None:
    """With stop, 1 % of the hours lie between the stop of a trial and the tests: 2 s, or a tenth of very few hours."""
    for hours, kept_s in ((1.0, 36.0), (0.05, 2.0), (0.005, 1.8)):
        assert planner(hours=hours).left_s(FINAL, at(0)) == pytest.approx(3600 * hours)
        assert planner(hours=hours, at_deadline="stop").left_s(FINAL, at(0)) == pytest.approx(3600 * hours - kept_s)


def test_each_final_needs_its_own_estimate() -> None:
    """With stop, a final needs its search trial's time, by the declared ratio, then by the measured one."""
    table, long = planner(at_deadline="stop"), replace(trial(200, stage=SEARCH, epochs=0.1), number=1)
    table.learn(trial(60, stage=SEARCH, epochs=0.1))
    table.learn(long)

    assert (table.need_s(FINAL), table.need_s(FINAL, long)) == (600, 2000)
    assert [table.closed_by(FINAL, at(2000), parent) for parent in (None, long)] == [None, "hours"]
    final = replace(trial(300, stage=FINAL), proposal=Proposal(point={}, parents=(0,)), number=2)
    table.learn(final)
    assert (table.need_s(FINAL), table.need_s(FINAL, long)) == (300, 1000)


def test_trials_of_several_gpus_use_their_hours_faster() -> None:
    """With two GPUs for each trial, half as many trials of the same length fit into the GPU-hours."""
    left = []
    for gpus_per_trial in (1.0, 2.0):
        table = StagePlanner(Budget(gpu_hours=1.0), PolicyPlan((SEARCH,)), gpus_per_trial=gpus_per_trial)
        done = replace(trial(60, stage=SEARCH), cost={"gpu_seconds": gpus_per_trial * 60.0})
        table.learn(done)
        left.append(table.left_s(SEARCH, at(60.0, table.gpu_s(done))))

    assert left == [3540, 1740]


def test_gpu_hours_pass_as_fast_as_trials_run() -> None:
    """With three trials at a time the end comes three times as soon, and their remaining time counts once."""
    table = planner(hours=None, gpu_hours=1.0, n_finals=2)
    table.learn(trial(100, stage=SEARCH, epochs=0.5))

    kept_s = MARGIN * 2 * 200
    assert table.left_s(SEARCH, at(9e9, 300, 10, 20, 30)) == pytest.approx((3600 - 360 - kept_s) / 3)
    left_s = 3600 - kept_s - 100
    assert table.closed_by(SEARCH, at(0, left_s - 300, 0, 0, 0)) is None
    assert table.closed_by(SEARCH, at(0, left_s - 299, 0, 0, 0)) == "gpu_hours"


def test_the_rest_goes_back_to_the_search() -> None:
    """If no trial with a final fits any more, the search gets the rest, once."""
    table = planner(n_finals=1)
    table.learn(trial(60, stage=SEARCH))
    table.learn(trial(600, stage=FINAL, state=State.COMPLETE))

    assert table.closed_by(SEARCH, at(3600 - 700)) == "hours"
    assert (table.release_reserve(), table.release_reserve()) == (True, False)
    assert table.closed_by(SEARCH, at(3600 - 700)) is None


def test_running_trials_need_the_rest_of_their_kind() -> None:
    """With GPU-hours, a supernet epoch that has run 30 of 100 s keeps 70 s, although a subnet needs one."""
    epoch, subnet = frozenset({Policy.SHARE_PARAMS}), frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
    table = planner(hours=None, gpu_hours=1.0, n_finals=0, slots=2)
    for kind, seconds in ((epoch, 100), (subnet, 1)):
        table.learn(replace(trial(seconds, stage=SEARCH), policies=kind))
    reserve_s = 3600 - table.left_s(SEARCH, Usage(0.0, 0.0))

    for left_s, bound in ((70.5, "gpu_hours"), (71.5, None)):
        spent = Usage(0.0, 3600 - reserve_s - left_s - 30, [30.0], [epoch])
        assert table.closed_by(SEARCH, spent, kind=subnet) == bound
    assert table.need_s(SEARCH, None, epoch) == 100
    assert table.need_s(SEARCH) == table.need_s(SEARCH, None, subnet) == 1
