"""The loop, with trials on paper and real records: when it asks, what it submits, what it remembers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.budget import Budget
from nas.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, StoreError
from nas.executors.base import Broke, Event, Finished, Lost, Proposed, StopAsked
from nas.lineage import Lineage
from nas.loop import Loop, LoopSettings, OnParentFailure, trial_seed
from nas.policy import Policy, Stage
from nas.spaces.base import Point
from nas.spaces.parameter import Choice, ParameterSpace
from nas.stoppers.base import Stopper
from nas.stoppers.median import MedianStopper
from nas.store.checkpoint import Checkpoint, publish_checkpoint
from nas.store.records import Records
from nas.trial import Proposal, Reason, State, Trial
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.nas.scripted import (
    FAILED,
    FINAL,
    LOST,
    METRIC,
    SEARCH,
    SPACE,
    EchoTuner,
    End,
    ListTuner,
    ScriptedExecutor,
    asked,
    fresh_records,
    make_loop,
    paths_in_order,
    prefixes,
    score,
)


@pytest.fixture
def records() -> Records:
    return fresh_records()


def up_to(n_trials: int, **more: Any) -> LoopSettings:
    return LoopSettings(budget=Budget(trials=n_trials), **more)


def shuffled(running: Sequence[Trial]) -> int:
    """Picks by the trials' numbers alone, in an order that is not theirs."""
    return min(range(len(running)), key=lambda place: running[place].number * 7 % 11)


def by_number(records: Records) -> dict[int, Trial]:
    return {trial.number: trial for trial in records.load()[0]}


class TestAsking:
    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_fills_every_slot(self, records: Records, slots: int) -> None:
        """Before the first result the tuner is asked once for each slot, and then again for each slot that is free."""
        tuner = ListTuner(*[()] * 6)
        executor = ScriptedExecutor(records, slots)

        make_loop(records, executor, tuner, settings=up_to(6)).search(SEARCH)

        assert [lineage.n_finished for lineage in tuner.seen] == [max(0, n - slots + 1) for n in range(6)]
        assert len(executor.order) == 6

    def test_budget_ends_asking(self, records: Records) -> None:
        """No trial beyond the budget is proposed, also where more slots are free."""
        tuner = ListTuner(*[()] * 9)

        make_loop(records, ScriptedExecutor(records, 4), tuner, settings=up_to(3)).search(SEARCH)

        assert tuner.n_asks == len(by_number(records)) == 3

    def test_failed_trials_count(self, records: Records) -> None:
        """A failed trial is one of the budget's trials."""
        executor = ScriptedExecutor(records, ends={0: [FAILED], 2: [FAILED]})

        make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(4)).search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == ["FAILED", "COMPLETE", "FAILED", "COMPLETE"]

    def test_lost_attempts_do_not_count(self, records: Records) -> None:
        """An attempt whose worker died costs no trial of the budget."""
        executor = ScriptedExecutor(records, ends={0: [LOST], 1: [LOST]})

        make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(3)).search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == [State.COMPLETE] * 3
        assert len(executor.submitted) == 5

    def test_spent_hours_end_asking(self, records: Records) -> None:
        """When the hours are spent nothing more is proposed, and what runs may finish."""
        hours = iter([0.0, 0.0, 0.0, 2.0])
        executor = ScriptedExecutor(records, 2)
        chosen = LoopSettings(budget=Budget(hours=1.0))

        loop = make_loop(
            records, executor, ListTuner(*[()] * 9), settings=chosen, spent_hours=lambda: next(hours, 2.0)
        )
        loop.search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == [State.COMPLETE] * 2

    def test_spent_gpu_hours_of_earlier_sessions_count(self, records: Records) -> None:
        """GPU-hours are those of all trials on record."""
        trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}))
        records.propose(trial)
        records.commit(replace(trial, state=State.COMPLETE, cost={"gpu_seconds": 3600.0}, finished=1.0))
        tuner = ListTuner(())

        make_loop(
            records, ScriptedExecutor(records), tuner, settings=LoopSettings(budget=Budget(gpu_hours=1.0))
        ).search(SEARCH)

        assert tuner.n_asks == 0

    def test_wait_is_asked_again_after_a_result(self, records: Records) -> None:
        """After WAIT the tuner is asked again when it can learn of something new, and not before."""
        tuner = ListTuner((), WAIT, (), WAIT, WAIT, ())
        executor = ScriptedExecutor(records, 3)

        make_loop(records, executor, tuner, settings=up_to(3)).search(SEARCH)

        assert [lineage.n_finished for lineage in tuner.seen[:3]] == [0, 0, 1]
        assert len(executor.order) == 2

    def test_wait_while_trials_run_is_asked_once_a_result(self, records: Records) -> None:
        """Three results lead to three asks of a tuner that waits for all of them."""
        tuner = ListTuner((), (), (), WAIT, WAIT, WAIT, (), STOP)

        make_loop(records, ScriptedExecutor(records, 4), tuner).search(SEARCH)

        assert [lineage.n_finished for lineage in tuner.seen] == [0, 0, 0, 0, 1, 2, 3, 3]

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_wait_for_nothing_fails(self, records: Records, deterministic: bool) -> None:
        """WAIT while nothing runs ends the search, naming the tuner and its remedy."""
        tuner = ListTuner((), *[WAIT] * 9)
        executor = ScriptedExecutor(records, 2)

        with pytest.raises(SearchFailedError, match=r"ListTuner answers WAIT at proposal 1.*must answer STOP"):
            make_loop(records, executor, tuner, settings=LoopSettings(deterministic=deterministic)).search(SEARCH)
        assert executor.order == [0]

    def test_stop_ends_the_search(self, records: Records) -> None:
        """After STOP the tuner is not asked again, and what runs finishes."""
        tuner = ListTuner((), (), STOP, ())
        executor = ScriptedExecutor(records, 4)

        make_loop(records, executor, tuner, settings=up_to(9)).search(SEARCH)

        assert tuner.n_asks == 3
        assert executor.order == [0, 1]

    def test_tuner_sees_the_search_stage_only(self, records: Records) -> None:
        """Trials of other stages are in no lineage that a tuner sees."""
        executor = ScriptedExecutor(records)
        loop = make_loop(records, executor, ListTuner((), ()), settings=up_to(2))
        loop.search(SEARCH)
        loop.final(FINAL, loop.trials)
        tuner = ListTuner(())

        make_loop(records, ScriptedExecutor(records), tuner, settings=up_to(3)).search(SEARCH)

        assert [trial.number for trial in tuner.seen[0]] == [0, 1]

    def test_running_and_waiting_trials_are_visible(self, records: Records) -> None:
        """A tuner sees which trials run and which wait, and nothing of how the runs began."""
        tuner = ListTuner((), (), WAIT, (), STOP)

        make_loop(records, ScriptedExecutor(records, 3), tuner).search(SEARCH)

        assert [[t.state for t in lineage.pending] for lineage in tuner.seen] == [
            [],
            ["WAITING"],
            ["WAITING", "WAITING"],
            ["RUNNING"],
            ["RUNNING", "WAITING"],
        ]

    def test_seeds_follow_from_stage_and_index(self, records: Records) -> None:
        """Each trial's seed follows from the search's seed, its stage and its index, and all differ."""
        loop = make_loop(records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2, seed=3))
        loop.search(SEARCH)
        loop.final(FINAL, loop.trials)

        seeds = [trial.seed for trial in loop.trials]
        assert seeds == [trial_seed(3, stage, index) for stage in ("search", "final") for index in (0, 1)]
        assert len(set(seeds)) == 4

    def test_events_reach_the_observer(self, records: Records) -> None:
        """An observer hears of each proposal before its start, and of each result."""
        heard: list[Event] = []

        make_loop(
            records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2), observe=heard.append
        ).search(SEARCH)

        assert [type(event).__name__ for event in heard] == ["Proposed", "Started", "Finished"] * 2


class TestFamilies:
    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_child_starts_after_its_parents_result(self, records: Records, slots: int) -> None:
        """A chain of three, named while its parents still run, is started link by link."""
        tuner = ListTuner((), (0,), (1,), (2,))
        executor = ScriptedExecutor(records, slots)

        make_loop(records, executor, tuner, settings=up_to(4)).search(SEARCH)

        paths = paths_in_order(records.files)
        for child in (1, 2, 3):
            result = paths.index(f"trials/{child - 1:06d}.result.json")
            assert paths.index(f"trials/{child:06d}.start-1.json") > result
        assert executor.donors == {0: [], 1: [0], 2: [1], 3: [2]}
        assert [trial.generation for trial in by_number(records).values()] == [0, 1, 2, 3]

    @pytest.mark.parametrize("slots", [2, 4])
    def test_child_of_a_running_parent_waits(self, records: Records, slots: int) -> None:
        """Until its parent's result the child is WAITING, and holds no slot."""
        tuner = ListTuner((), WAIT, (), (1,), (), STOP)
        executor = ScriptedExecutor(records, slots, pick=lambda running: -1)

        make_loop(records, executor, tuner).search(SEARCH)

        after = {t.number: t.state for t in tuner.seen[4].pending}
        assert after[2] == State.WAITING
        assert executor.order.index(1) < executor.order.index(2)

    def test_blocked_children_leave_slots_to_others(self, records: Records) -> None:
        """Where a child waits for its parent, a founder proposed later runs beside the parent."""
        tuner = ListTuner((), (0,), ())
        executor = ScriptedExecutor(records, 2, pick=lambda running: -1)

        make_loop(records, executor, tuner, settings=up_to(3)).search(SEARCH)

        assert [trial.number for trial in executor.submitted] == [0, 2, 1]

    def test_no_more_children_are_blocked_than_slots(self, records: Records) -> None:
        """A tuner that names nothing but running parents is not asked without end."""
        tuner = ListTuner((), *[(0,)] * 50)
        executor = ScriptedExecutor(records, 3)

        make_loop(records, executor, tuner, settings=up_to(20)).search(SEARCH)

        assert max(sum(t.state == State.WAITING for t in lineage.pending) for lineage in tuner.seen) <= 3
        assert len(executor.order) == 20

    def test_child_of_several_waits_for_all(self, records: Records) -> None:
        """A child of two parents starts after both, and takes the weights of both, best first."""
        tuner = ListTuner((), (), Proposal(point={"x": 2}, parents=(1, 0)))
        executor = ScriptedExecutor(records, 4)

        make_loop(records, executor, tuner).search(SEARCH)

        assert executor.donors[2] == [1, 0]
        assert executor.order == [0, 1, 2]

    def test_donor_that_is_no_parent_is_waited_for(self, records: Records) -> None:
        """A running donor blocks the child as a parent does."""
        tuner = ListTuner((), (), Proposal(point={"x": 2}, parents=(0,), donors=(1,)))
        executor = ScriptedExecutor(records, 4)

        make_loop(records, executor, tuner).search(SEARCH)

        assert executor.donors[2] == [1]
        assert executor.order == [0, 1, 2]


WITHOUT_WEIGHTS = {
    "failed": FAILED,
    "stopped": End(state=State.STOPPED, reason=Reason.DEADLINE, has_weights=False),
    "complete": End(has_weights=False),
}


class TestDonors:
    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("end", WITHOUT_WEIGHTS.values(), ids=WITHOUT_WEIGHTS.keys())
    @pytest.mark.parametrize(
        ("choice", "donors", "stand_in"), [("ancestor", [0], 0), ("scratch", [], None)], ids=["ancestor", "scratch"]
    )
    def test_parent_without_weights_is_replaced(
        self, records: Records, choice: OnParentFailure, donors: list[int], stand_in: int | None, end: End, slots: int
    ) -> None:
        """A parent without weights is replaced by its nearest ancestor with some, or by nothing; the record says which."""
        tuner = ListTuner((), (0,), (1,))
        executor = ScriptedExecutor(records, slots, ends={1: [end]})

        make_loop(records, executor, tuner, settings=LoopSettings(on_parent_failure=choice)).search(SEARCH)

        child = by_number(records)[2]
        assert child.state == State.COMPLETE
        assert executor.donors[2] == donors
        assert child.donor == stand_in
        assert child.inheritance == {"replaced": {"1": stand_in}}

    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("end", WITHOUT_WEIGHTS.values(), ids=WITHOUT_WEIGHTS.keys())
    def test_parent_without_weights_fails_the_child(self, records: Records, end: End, slots: int) -> None:
        """With on_parent_failure=fail the child is FAILED(parent), naming the donor, and never started."""
        tuner = ListTuner((), (0,), (1,), (2,))
        executor = ScriptedExecutor(records, slots, ends={1: [end]})

        make_loop(records, executor, tuner, settings=LoopSettings(on_parent_failure="fail")).search(SEARCH)

        trials = by_number(records)
        assert [(t.state, t.reason) for t in (trials[2], trials[3])] == [(State.FAILED, Reason.PARENT)] * 2
        assert "donor 1 has no weights" in (trials[2].error or "")
        assert executor.order == [0, 1]
        assert not any("000002.start" in path for path in paths_in_order(records.files))

    def test_founder_line_without_weights_starts_afresh(self, records: Records) -> None:
        """Where no ancestor has weights the child starts from nothing, and its record says so."""
        tuner = ListTuner((), (0,), (1,))
        executor = ScriptedExecutor(records, ends={0: [FAILED], 1: [FAILED]})

        make_loop(records, executor, tuner).search(SEARCH)

        assert executor.donors[2] == []
        assert by_number(records)[2].inheritance == {"replaced": {"1": None}}

    def test_stopped_parent_with_weights_is_a_donor(self, records: Records) -> None:
        """What a stopped trial has saved is inherited."""
        executor = ScriptedExecutor(records, ends={0: [End(state=State.STOPPED, reason=Reason.STOPPER)]})

        make_loop(records, executor, ListTuner((), (0,))).search(SEARCH)

        assert executor.donors[1] == [0]
        assert by_number(records)[1].inheritance == {}

    @pytest.mark.parametrize("choice", ["ancestor", "scratch", "fail"])
    def test_no_donors_without_share_params(self, records: Records, choice: OnParentFailure) -> None:
        """Where SHARE_PARAMS is off nothing is inherited, and a parent without weights does not matter."""
        executor = ScriptedExecutor(records, ends={0: [FAILED]})
        chosen = LoopSettings(on_parent_failure=choice)

        make_loop(records, executor, ListTuner((), (0,), (1,)), settings=chosen).search(Stage(name="search"))

        assert executor.donors == {0: [], 1: [], 2: []}
        assert [trial.donor for trial in by_number(records).values()] == [None] * 3
        assert by_number(records)[1].state == State.COMPLETE

    def test_tuner_may_switch_policies(self, records: Records) -> None:
        """A proposal's own policies go before the stage's."""
        off = Proposal(point={"x": 1}, parents=(0,), policies=frozenset())
        executor = ScriptedExecutor(records)

        make_loop(records, executor, ListTuner((), off)).search(SEARCH)

        assert by_number(records)[1].policies == frozenset()
        assert executor.donors[1] == []

    def test_empty_donors_start_afresh(self, records: Records) -> None:
        """A proposal with parents and donors=() inherits nothing."""
        executor = ScriptedExecutor(records)

        make_loop(records, executor, ListTuner((), Proposal(point={"x": 1}, parents=(0,), donors=()))).search(SEARCH)

        assert executor.donors[1] == []
        assert by_number(records)[1].generation == 1

    def test_one_stand_in_is_offered_once(self, records: Records) -> None:
        """Two donors whose stand-in is the same ancestor give it once."""
        tuner = ListTuner((), (0,), (0,), Proposal(point={"x": 3}, parents=(1,), donors=(1, 2, 0)))
        executor = ScriptedExecutor(records, ends={1: [FAILED], 2: [FAILED]})

        make_loop(records, executor, tuner).search(SEARCH)

        assert executor.donors[3] == [0]
        assert by_number(records)[3].inheritance == {"replaced": {"1": 0, "2": 0}}

    def test_donor_of_another_search(self, records: Records) -> None:
        """A donor of another search is offered by its name, or replaced by nothing where it has no weights."""
        checkpoint = publish_checkpoint(records.files, "000007-ab", None)

        def sibling(donor: str) -> Checkpoint | None:
            return checkpoint if donor == "other:7" else None

        tuner = ListTuner(
            Proposal(point={"x": 0}, donors=("other:7",)), Proposal(point={"x": 1}, donors=("other:8", "other:7"))
        )
        executor = ScriptedExecutor(records)

        make_loop(records, executor, tuner, sibling=sibling).search(SEARCH)

        assert executor.donors == {0: ["other:7"], 1: ["other:7"]}
        assert by_number(records)[0].donor == "other:7"
        assert by_number(records)[1].inheritance == {"replaced": {"other:8": None}}


class TestFailures:
    def test_failures_in_a_row_end_the_search(self, records: Records) -> None:
        """max_failures failures in a row end the search, with the last one's reason and message."""
        executor = ScriptedExecutor(records, ends={number: [FAILED] for number in range(9)})

        with pytest.raises(SearchFailedError, match=r"3 trials failed in a row .*trial 2: exception: it broke"):
            make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(9, max_failures=3)).search(SEARCH)
        assert len(by_number(records)) == 3

    def test_success_in_between_resets_the_count(self, records: Records) -> None:
        """Failures that are not in a row end nothing."""
        executor = ScriptedExecutor(records, ends={number: [FAILED] for number in (0, 1, 3, 4, 6, 7)})

        make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(9, max_failures=3)).search(SEARCH)

        assert len(by_number(records)) == 9

    def test_failing_search_interrupts_what_runs(self, records: Records) -> None:
        """When failures end the search, running trials are told, and have no result."""
        executor = ScriptedExecutor(records, 3, ends={0: [FAILED], 1: [FAILED]})

        with pytest.raises(SearchFailedError):
            make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(9, max_failures=2)).search(SEARCH)
        assert [trial.is_finished for trial in by_number(records).values()] == [True, True, False, False]

    def test_lost_trial_runs_again(self, records: Records) -> None:
        """A trial whose worker died runs again as attempt 2, before any other."""
        executor = ScriptedExecutor(records, ends={0: [LOST]})

        make_loop(records, executor, ListTuner((), ()), settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(0, 1), (0, 2), (1, 1)]
        assert by_number(records)[0].attempt == 2
        assert by_number(records)[0].state == State.COMPLETE

    @pytest.mark.parametrize("max_attempts", [1, 2, 3])
    def test_trial_is_lost_after_max_attempts(self, records: Records, max_attempts: int) -> None:
        """A trial whose worker died max_attempts times is FAILED(lost), with what was said last, and the search goes on."""
        executor = ScriptedExecutor(records, ends={0: [LOST] * 9})

        make_loop(
            records, executor, ListTuner((), ()), settings=up_to(2, max_attempts=max_attempts)
        ).search(SEARCH)

        lost = by_number(records)[0]
        assert (lost.state, lost.reason, lost.attempt) == (State.FAILED, Reason.LOST, max_attempts)
        assert lost.error == "its worker was killed by SIGKILL"
        assert by_number(records)[1].state == State.COMPLETE

    def test_lost_trial_keeps_its_reports(self, records: Records) -> None:
        """What the last attempt of a lost trial reported stays on its record."""
        executor = ScriptedExecutor(records, ends={0: [End(reports=(0.1, 0.2), is_lost=True)] * 2})

        make_loop(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)

        assert [step for step, _ in by_number(records)[0].curve] == [1, 2]

    def test_second_attempt_begins_its_own_curve(self, records: Records) -> None:
        """What a lost attempt reported is not shown to the stopper as the next one's."""
        seen: list[int] = []

        class Watching(Stopper):
            def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
                seen.append(len(trial.curve))
                return False

        executor = ScriptedExecutor(
            records, ends={0: [End(reports=(0.1, 0.2), is_lost=True), End(reports=(0.3, 0.4, 0.5))]}
        )

        make_loop(records, executor, ListTuner(()), stopper=Watching((METRIC,))).search(SEARCH)

        assert seen == [1, 2, 1, 2, 3]

    def test_result_of_a_lost_trial_is_adopted(self, records: Records) -> None:
        """A worker that died after its result was durable has lost nothing: the result counts, and nothing is repeated."""
        executor = ScriptedExecutor(records, ends={0: [End(is_lost=True, commits=True)]})

        make_loop(records, executor, ListTuner((), (0,)), settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(0, 1), (1, 1)]
        assert by_number(records)[0].state == State.COMPLETE
        assert executor.donors[1] == [0]

    def test_what_breaks_the_executor_ends_the_search(self, records: Records) -> None:
        """An error of whatever runs trials is raised as it is; the other trials are interrupted."""
        executor = ScriptedExecutor(records, 2)
        error = StoreError("the disk is full")
        executor.post(Broke(error, 0))

        with pytest.raises(StoreError, match="disk is full"):
            make_loop(records, executor, ListTuner((), ())).search(SEARCH)
        assert not any(trial.is_finished for trial in by_number(records).values())

    def test_broken_job_is_not_waited_for(self, records: Records) -> None:
        """When an executor breaks, the loop does not wait for the end of the job that broke it."""
        executor = ScriptedExecutor(records, 1)
        executor.post(Broke(StoreError("the disk is full"), 0))
        executor.stop = lambda trial, why: pytest.fail("nothing runs any more")  # type: ignore[method-assign]
        began = executor.now_s()

        with pytest.raises(StoreError):
            make_loop(records, executor, ListTuner(())).search(SEARCH)
        assert executor.now_s() - began < 3


class TestInterrupts:
    def test_stop_ends_the_session(self, records: Records) -> None:
        """A stop raises, with its signal; running trials get no result, and what is finished is kept."""
        executor = ScriptedExecutor(records, 2, stop_after=3)

        with pytest.raises(SearchInterruptedError, match="the test says so"):
            make_loop(records, executor, ListTuner(*[()] * 9), settings=up_to(9)).search(SEARCH)
        assert [trial.is_finished for trial in by_number(records).values()] == [True, True, True, False, False]

    def test_signal_is_passed_on(self, records: Records) -> None:
        """The interruption knows the signal, for the exit status."""
        executor = ScriptedExecutor(records)
        executor.post(StopAsked("SIGTERM", 15))

        with pytest.raises(SearchInterruptedError) as caught:
            make_loop(records, executor, ListTuner(())).search(SEARCH)
        assert caught.value.signal == 15

    def test_interrupted_trial_runs_in_the_next_session(self, records: Records) -> None:
        """The next session runs it as attempt 2, as it was proposed, under its own id, and does not ask for it again."""
        with pytest.raises(SearchInterruptedError):
            make_loop(
                records, ScriptedExecutor(records, stop_after=1), ListTuner((), (0,)), settings=up_to(2)
            ).search(SEARCH)
        before = by_number(records)[1]
        tuner = ListTuner(())
        executor = ScriptedExecutor(records, session=2)

        make_loop(records, executor, tuner, settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(1, 2)]
        assert executor.donors[1] == [0]
        assert by_number(records)[1].proposal == before.proposal
        assert tuner.n_asks == 0

    def test_result_during_the_interrupt_is_kept(self, records: Records) -> None:
        """A trial that finishes while the session ends has its result, and does not run again."""
        executor = ScriptedExecutor(records, 1)
        heard: list[Event] = []

        def finish(trial: Trial, why: str) -> None:
            if executor._running.pop(trial.number, None) is not None:
                executor.post(Finished(records.commit(replace(trial, state=State.COMPLETE, metrics={"accuracy": 1}))))

        executor.stop = finish  # type: ignore[method-assign, assignment]
        executor.post(StopAsked("SIGINT", 2))

        with pytest.raises(SearchInterruptedError):
            make_loop(records, executor, ListTuner(()), observe=heard.append).search(SEARCH)
        assert by_number(records)[0].state == State.COMPLETE
        assert isinstance(heard[-1], Finished)

    def test_hanging_trials_are_waited_for_within_a_bound(self, records: Records) -> None:
        """A trial that does not end when told does not hold the session for ever."""
        executor = ScriptedExecutor(records, 1)
        executor.stop = lambda trial, why: None  # type: ignore[method-assign]
        executor.next_event = lambda until_s: _tick(executor, until_s)  # type: ignore[method-assign]
        executor.post(StopAsked("SIGINT", 2))

        with pytest.raises(SearchInterruptedError):
            make_loop(records, executor, ListTuner(())).search(SEARCH)
        assert 15 < executor.now_s() - 1000 < 30

    def test_attempts_lost_with_the_session_do_not_count(self, records: Records) -> None:
        """However often the session dies, a trial still has max_attempts losses of its own."""
        for session in (1, 2, 3):
            executor = ScriptedExecutor(records, session=session, stop_after=0)
            with pytest.raises(SearchInterruptedError):
                make_loop(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)
        executor = ScriptedExecutor(records, session=4, ends={0: [LOST]})

        make_loop(records, executor, ListTuner(()), settings=up_to(1, max_attempts=2)).search(SEARCH)

        assert [trial.attempt for trial in executor.submitted] == [4, 5]
        assert by_number(records)[0].state == State.COMPLETE

    def test_losses_of_earlier_sessions_count(self, records: Records) -> None:
        """A worker that died in one session and again in the next has died twice."""
        executor = ScriptedExecutor(records, 2, ends={0: [LOST]}, stop_after=1, pick=lambda running: 0)
        with pytest.raises(SearchInterruptedError):
            make_loop(
                records, _LosesThenStops(executor), ListTuner(()), settings=up_to(1)
            ).search(SEARCH)
        executor = ScriptedExecutor(records, session=2, ends={0: [LOST] * 9})

        make_loop(records, executor, ListTuner(()), settings=up_to(1, max_attempts=2)).search(SEARCH)

        assert [trial.attempt for trial in executor.submitted] == [3]
        assert by_number(records)[0].reason == Reason.LOST
