"""The search controller with scripted trials and real records: asking, submitting, resuming."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, StorageError
from nas.core.lineage import Lineage
from nas.core.point import Point
from nas.core.policy import Policy, Stage
from nas.core.trial import OnMissingWeights, Proposal, Reason, State, Trial
from nas.executors.events import Event, ExecutorFailed, Finished, Notice, Resumed, StopKind, StopRequested
from nas.search.admission import retrain, trial_seed
from nas.search.controller import ControllerSettings, SearchController
from nas.search.crash_tracker import CrashTracker
from nas.search.initial_tuner import InitialTuner
from nas.search.search_init import SearchInit
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.stoppers.base import Stopper
from nas.stoppers.median import MedianStopper
from nas.storage.checkpoints import publish_checkpoint
from nas.storage.records import Records
from nas.training.messages import Assignment
from nas.tuners.base import STOP, WAIT, Answer, Tuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from nas.tuners.shared.constrained import ConstrainedTuner
from nas.tuners.shared.stateful import StatefulTuner
from tests.support.scripted_executor import (
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
    cut_after,
    forget_all_records,
    fresh_records,
    make_controller,
    paths_in_order,
    prefixes,
    score,
)


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    yield
    forget_all_records()


@pytest.fixture
def records() -> Records:
    return fresh_records()


def up_to(n_trials: int, **more: Any) -> ControllerSettings:
    return ControllerSettings(budget=Budget(trials=n_trials), **more)


def shuffled(running: Sequence[Trial]) -> int:
    """Picks the next trial by a hash of the trials' numbers."""
    return min(range(len(running)), key=lambda place: running[place].number * 7 % 11)


class EndlessExecutor(ScriptedExecutor):
    """Its trials end only when they are stopped; its clock jumps by two hours after so many looks."""

    def __init__(self, records: Records, n_looks: int) -> None:
        end = End(state=State.STOPPED, reason=Reason.DEADLINE)
        super().__init__(records, ends={number: [end] for number in range(9)})
        self._n_looks = n_looks

    def now_s(self) -> float:
        self._n_looks -= 1
        if self._n_looks == 0:
            self._clock += 7200.0
        return self._clock

    def stop(self, trial: Trial, kind: StopKind) -> None:
        if (pending := self._running.pop(trial.number, None)) is not None:
            self._posted.append(Finished(replace(self._commit(pending), cost={"gpu_seconds": 7200.0})))

    def next_event(self, until_s: float | None) -> Event | None:
        if not self._posted:
            assert until_s is not None, "the controller waits for a trial that never ends"
            self._clock = max(self._clock, until_s)
            return None
        return super().next_event(until_s)


class ResumingExecutor(EndlessExecutor):
    """Its trials continue attempts of 3,000 s."""

    def submit(self, assignment: Assignment) -> None:
        super().submit(assignment)
        self._posted.append(Resumed(assignment.trial.number, {"seconds": 3000.0, "gpu_seconds": 3000.0}))


class PromptTuner(ListTuner, StatefulTuner):
    """Keeps state; its first answer is there just after it was asked."""

    is_busy = False

    def start(self, lineage: Lineage, on_ready: Callable[[], None], on_error: Callable[[BaseException], None]) -> None:
        self.tell = on_ready

    def ask(self, lineage: Lineage, number: int, job: int) -> Any:
        answer = super().ask(lineage, number, job)
        if answer is WAIT:
            self.tell()
        return answer

    def add_result(self, trial: Trial) -> None: ...

    def add_extra_result(self, trial: Trial, result: str) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


class Explaining(ListTuner):
    """Says why it stops."""

    def stop_reason(self, lineage: Lineage) -> str:
        return f"{lineage.n_finished} trial is enough"


def constrained(tuner: Tuner) -> Tuner:
    return ConstrainedTuner(tuner, lambda point: {"size": 1.0}, {"size": 2.0})


def with_init(tuner: Tuner) -> Tuner:
    return InitialTuner(tuner, SearchInit())


def by_number(records: Records) -> dict[int, Trial]:
    return {trial.number: trial for trial in records.load()[0]}


class TestAsking:
    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_fills_every_slot(self, records: Records, slots: int) -> None:
        """The tuner is asked once per free slot, before the first result and after it."""
        tuner = ListTuner(*[()] * 6)
        executor = ScriptedExecutor(records, slots)

        make_controller(records, executor, tuner, settings=up_to(6)).search(SEARCH)

        assert [lineage.n_finished for lineage in tuner.seen] == [max(0, n - slots + 1) for n in range(6)]
        assert len(executor.order) == 6

    def test_budget_ends_asking(self, records: Records) -> None:
        """No trial beyond the budget is proposed, even if more slots are free."""
        tuner = ListTuner(*[()] * 9)

        make_controller(records, ScriptedExecutor(records, 4), tuner, settings=up_to(3)).search(SEARCH)

        assert tuner.n_asks == len(by_number(records)) == 3

    def test_failed_trials_count(self, records: Records) -> None:
        """A failed trial counts towards the budget."""
        executor = ScriptedExecutor(records, ends={0: [FAILED], 2: [FAILED]})

        make_controller(records, executor, ListTuner(*[()] * 9), settings=up_to(4)).search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == ["FAILED", "COMPLETE", "FAILED", "COMPLETE"]

    def test_lost_attempts_do_not_count(self, records: Records) -> None:
        """A lost attempt does not count towards the budget."""
        executor = ScriptedExecutor(records, ends={0: [LOST], 1: [LOST]})

        make_controller(records, executor, ListTuner(*[()] * 9), settings=up_to(3)).search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == [State.COMPLETE] * 3
        assert len(executor.submitted) == 5

    def test_spent_hours_end_asking(self, records: Records) -> None:
        """When the hours are used up, nothing more is proposed, and running trials may finish."""
        executor = ScriptedExecutor(records, 2)
        chosen = ControllerSettings(budget=Budget(hours=1.0, at_deadline="finish"))

        def spent_hours() -> float:
            return len(executor.submitted)

        controller = make_controller(records, executor, ListTuner(*[()] * 9), settings=chosen, spent_hours=spent_hours)
        controller.search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == [State.COMPLETE, State.WAITING]
        assert len(executor.submitted) == 1

    @pytest.mark.parametrize("bound", ["hours", "gpu_hours"])
    def test_deadline_between_any_two_looks_at_the_clock(self, bound: str) -> None:
        """A trial that would never end is stopped, wherever in the controller's loop the time is used up."""
        n_stopped = 0
        for n_looks in range(1, 60):
            records = fresh_records()
            executor = EndlessExecutor(records, n_looks)
            chosen = ControllerSettings(budget=Budget(**{bound: 1.0}, at_deadline="stop"))

            def spent_hours(executor: EndlessExecutor = executor) -> float:
                return (executor.now_s() - 1_000.0) / 3600

            tuner = ListTuner(*[()] * 9)
            make_controller(records, executor, tuner, settings=chosen, spent_hours=spent_hours).search(SEARCH)

            states = [trial.state for trial in by_number(records).values()]
            assert states in ([], [State.WAITING], [State.STOPPED])
            n_stopped += states == [State.STOPPED]
        assert n_stopped > 10

    def test_spent_gpu_hours_of_earlier_sessions_count(self, records: Records) -> None:
        """GPU-hours count the trials of all sessions."""
        trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}))
        records.propose(trial)
        records.commit(replace(trial, state=State.COMPLETE, cost={"gpu_seconds": 3600.0}, finished=1.0))
        tuner = ListTuner(())

        make_controller(
            records, ScriptedExecutor(records), tuner, settings=ControllerSettings(budget=Budget(gpu_hours=1.0))
        ).search(SEARCH)

        assert tuner.n_asks == 0

    def test_gpu_hours_count_resumed_attempts_of_running_trials(self, records: Records) -> None:
        """A running trial is stopped when it and the attempts that it resumed have used up the GPU-hours."""
        executor = ResumingExecutor(records, n_looks=0)
        chosen = ControllerSettings(budget=Budget(gpu_hours=1.0, at_deadline="stop"))
        began_s = executor.now_s()

        make_controller(records, executor, ListTuner(*[()] * 9), settings=chosen).search(SEARCH)

        [trial] = by_number(records).values()
        assert trial.finished is not None
        assert trial.finished - began_s == pytest.approx(600.0, abs=10.0)

    def test_an_answer_just_after_the_ask_is_taken(self, records: Records) -> None:
        """A stateful tuner that says WAIT, and at once that it may answer, is asked again."""
        make_controller(records, ScriptedExecutor(records), PromptTuner(WAIT, (), WAIT, (), STOP)).search(SEARCH)

        assert [trial.state for trial in by_number(records).values()] == [State.COMPLETE] * 2

    def test_wait_is_asked_again_after_a_result(self, records: Records) -> None:
        """After WAIT the tuner is asked again only when there is a new result."""
        tuner = ListTuner((), (), (), WAIT, WAIT, WAIT, (), STOP)

        make_controller(records, ScriptedExecutor(records, 4), tuner).search(SEARCH)

        assert [lineage.n_finished for lineage in tuner.seen] == [0, 0, 0, 0, 1, 2, 3, 3]

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_wait_for_nothing_fails(self, records: Records, deterministic: bool) -> None:
        """WAIT while nothing runs ends the search; the error names the tuner and a remedy."""
        tuner = ListTuner((), *[WAIT] * 9)
        executor = ScriptedExecutor(records, 2)

        with pytest.raises(SearchFailedError, match=r"ListTuner answers WAIT at proposal 1.*must answer STOP"):
            make_controller(records, executor, tuner, settings=ControllerSettings(deterministic=deterministic)).search(
                SEARCH
            )
        assert executor.order == [0]

    def test_stop_ends_the_search(self, records: Records) -> None:
        """After STOP the tuner is not asked again, and running trials finish."""
        tuner = ListTuner((), (), STOP, ())
        executor = ScriptedExecutor(records, 4)

        make_controller(records, executor, tuner, settings=up_to(9)).search(SEARCH)

        assert tuner.n_asks == 3
        assert executor.order == [0, 1]

    @pytest.mark.parametrize("wrap", [lambda tuner: tuner, constrained, with_init])
    def test_the_reason_of_a_stop_is_shown(self, records: Records, wrap: Callable[[Tuner], Tuner]) -> None:
        """A tuner that stops says why, with the results so far, also through a tuner that wraps it."""
        observed: list[Event] = []
        executor = ScriptedExecutor(records, 1)

        make_controller(records, executor, wrap(Explaining((), STOP)), observe=observed.append).search(SEARCH)

        texts = [event.text for event in observed if isinstance(event, Notice)]
        assert texts == ["Explaining has no more proposals: 1 trial is enough"]

    def test_tuner_sees_the_search_stage_only(self, records: Records) -> None:
        """A tuner sees no trials of other stages."""
        executor = ScriptedExecutor(records)
        controller = make_controller(records, executor, ListTuner((), ()), settings=up_to(2))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials)
        tuner = ListTuner(())

        make_controller(records, ScriptedExecutor(records), tuner, settings=up_to(3)).search(SEARCH)

        assert [trial.number for trial in tuner.seen[0]] == [0, 1]

    @pytest.mark.parametrize(("slots", "n_finals", "each"), [(1, 2, 1), (4, 1, 4), (4, 3, 1), (5, 2, 2), (2, None, 1)])
    def test_finals_share_the_threads_of_idle_slots(self, slots: int, n_finals: int | None, each: int) -> None:
        """Finals divide the threads of all slots. Search trials and deterministic finals use one slot's threads."""
        for deterministic in (False, True):
            records = fresh_records()
            executor = ScriptedExecutor(records, slots)
            settings = up_to(3, deterministic=deterministic)
            controller = make_controller(records, executor, ListTuner((), (), ()), settings=settings)
            controller.search(SEARCH)
            controller.train_finalists(FINAL, controller.trials[:1], n_trials=n_finals)

            assert [executor.n_slots[number] for number in range(4)] == [1, 1, 1, 1 if deterministic else each]

    def test_surplus_finals_use_one_slots_threads_each(self, records: Records) -> None:
        """Four finals left by an earlier session on four slots use one slot's threads each."""
        executor = ScriptedExecutor(records, 4, stop_after=5)
        controller = make_controller(records, executor, ListTuner((), (), (), ()), settings=up_to(4))
        controller.search(SEARCH)
        with pytest.raises(SearchInterruptedError):
            controller.train_finalists(FINAL, controller.trials, n_trials=4)
        again = ScriptedExecutor(records, 4, session=2)
        make_controller(records, again, ListTuner(), settings=up_to(4)).train_finalists(FINAL, [], n_trials=1)

        assert again.n_slots == {5: 1, 6: 1, 7: 1}

    def test_running_and_waiting_trials_are_visible(self, records: Records) -> None:
        """A tuner sees running and waiting trials, without the details of their start."""
        tuner = ListTuner((), (), WAIT, (), STOP)

        make_controller(records, ScriptedExecutor(records, 3), tuner).search(SEARCH)

        assert [[t.state for t in lineage.pending] for lineage in tuner.seen] == [
            [],
            ["WAITING"],
            ["WAITING", "WAITING"],
            ["RUNNING"],
            ["RUNNING", "WAITING"],
        ]

    def test_seeds_follow_from_stage_and_index(self, records: Records) -> None:
        """Each trial's seed depends on the search's seed, its stage and its index, and all differ."""
        controller = make_controller(records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2, seed=3))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials)

        seeds = [trial.seed for trial in controller.trials]
        assert seeds == [trial_seed(3, stage, index) for stage in ("search", "final") for index in (0, 1)]
        assert len(set(seeds)) == 4

    def test_events_reach_the_observer(self, records: Records) -> None:
        """An observer receives each proposal before its start, and each result."""
        heard: list[Event] = []

        make_controller(
            records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2), observe=heard.append
        ).search(SEARCH)

        assert [type(event).__name__ for event in heard] == ["Proposed", "Started", "Finished"] * 2


class TestFamilies:
    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_child_starts_after_its_parents_result(self, records: Records, slots: int) -> None:
        """In a chain of three, proposed while the parents run, each trial starts after its parent."""
        tuner = ListTuner((), (0,), (1,), (2,))
        executor = ScriptedExecutor(records, slots)

        make_controller(records, executor, tuner, settings=up_to(4)).search(SEARCH)

        paths = paths_in_order(records.files)
        for child in (1, 2, 3):
            result = paths.index(f"trials/{child - 1:06d}.result.json")
            assert paths.index(f"trials/{child:06d}.start-1.json") > result
        assert executor.donors == {0: [], 1: [0], 2: [1], 3: [2]}
        assert [trial.generation for trial in by_number(records).values()] == [0, 1, 2, 3]

    @pytest.mark.parametrize("slots", [2, 4])
    def test_child_of_a_running_parent_waits(self, records: Records, slots: int) -> None:
        """A child is WAITING and uses no slot until its parent has a result."""
        tuner = ListTuner((), WAIT, (), (1,), (), STOP)
        executor = ScriptedExecutor(records, slots, pick=lambda running: -1)

        make_controller(records, executor, tuner).search(SEARCH)

        after = {t.number: t.state for t in tuner.seen[4].pending}
        assert after[2] == State.WAITING
        assert executor.order.index(1) < executor.order.index(2)

    def test_blocked_children_leave_slots_to_others(self, records: Records) -> None:
        """While a child waits for its parent, a point proposed later runs beside the parent."""
        tuner = ListTuner((), (0,), ())
        executor = ScriptedExecutor(records, 2, pick=lambda running: -1)

        make_controller(records, executor, tuner, settings=up_to(3)).search(SEARCH)

        assert [trial.number for trial in executor.submitted] == [0, 2, 1]

    def test_no_more_children_are_blocked_than_slots(self, records: Records) -> None:
        """A tuner that names only running parents is asked for at most as many children as slots."""
        tuner = ListTuner((), *[(0,)] * 50)
        executor = ScriptedExecutor(records, 3)

        make_controller(records, executor, tuner, settings=up_to(20)).search(SEARCH)

        assert max(sum(t.state == State.WAITING for t in lineage.pending) for lineage in tuner.seen) <= 3
        assert len(executor.order) == 20

    def test_child_of_several_waits_for_all(self, records: Records) -> None:
        """A child of two parents starts after both, and inherits from both, best first."""
        tuner = ListTuner((), (), Proposal(point={"x": 2}, parents=(1, 0)))
        executor = ScriptedExecutor(records, 4)

        make_controller(records, executor, tuner).search(SEARCH)

        assert executor.donors[2] == [1, 0]
        assert executor.order == [0, 1, 2]

    def test_donor_other_than_the_parent_is_waited_for(self, records: Records) -> None:
        """A child waits for a running donor as it does for a parent."""
        tuner = ListTuner((), (), Proposal(point={"x": 2}, parents=(0,), donors=(1,)))
        executor = ScriptedExecutor(records, 4)

        make_controller(records, executor, tuner).search(SEARCH)

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
        self, records: Records, choice: OnMissingWeights, donors: list[int], stand_in: int | None, end: End, slots: int
    ) -> None:
        """The nearest ancestor with weights, if any, replaces a parent without weights, and the record says so."""
        tuner = ListTuner((), (0,), (1,))
        executor = ScriptedExecutor(records, slots, ends={1: [end]})

        make_controller(records, executor, tuner, settings=ControllerSettings(on_missing_weights=choice)).search(SEARCH)

        child = by_number(records)[2]
        assert child.state == State.COMPLETE
        assert executor.donors[2] == donors
        assert child.resolved_donor == stand_in
        assert child.inheritance == {"replaced": {"1": stand_in}}

    @pytest.mark.parametrize("slots", [1, 3])
    @pytest.mark.parametrize("end", WITHOUT_WEIGHTS.values(), ids=WITHOUT_WEIGHTS.keys())
    def test_parent_without_weights_fails_the_child(self, records: Records, end: End, slots: int) -> None:
        """With on_missing_weights=fail the child is FAILED(parent), names the donor, and never starts."""
        tuner = ListTuner((), (0,), (1,), (2,))
        executor = ScriptedExecutor(records, slots, ends={1: [end]})

        make_controller(records, executor, tuner, settings=ControllerSettings(on_missing_weights="fail")).search(SEARCH)

        trials = by_number(records)
        assert [(t.state, t.reason) for t in (trials[2], trials[3])] == [(State.FAILED, Reason.PARENT)] * 2
        assert "donor 1 has no weights" in (trials[2].error or "")
        assert executor.order == [0, 1]
        assert not any("000002.start" in path for path in paths_in_order(records.files))

    @pytest.mark.parametrize("scores", [True, False], ids=["scores", "trains"])
    def test_no_other_weights_are_scored_in_a_later_stage(self, records: Records, scores: bool) -> None:
        """A warm final without its trial's weights starts from scratch; one that only scores is FAILED(parent)."""
        more = {Policy.SKIP_TRAIN} if scores else set()
        recheck = Stage(name="recheck", policies=SEARCH.policies | more, warm=True)
        executor = ScriptedExecutor(records, ends={1: [End(has_weights=False)]})
        controller = make_controller(records, executor, ListTuner((), (0,)))
        controller.search(SEARCH)

        controller.train_finalists(recheck, controller.trials[:2])

        first, second = (t for t in by_number(records).values() if t.stage == "recheck")
        assert (first.state, executor.donors[first.number]) == (State.COMPLETE, [0])
        if scores:
            assert (second.state, second.reason) == (State.FAILED, Reason.PARENT)
            assert second.error == "donor 1 has no weights, and SKIP_TRAIN trains none"
        else:
            assert (second.state, executor.donors[second.number]) == (State.COMPLETE, [])
            assert second.inheritance == {"replaced": {"1": None}}

    def test_child_without_any_ancestors_weights_starts_from_scratch(self, records: Records) -> None:
        """If no ancestor has weights, the child starts from scratch, and its record says so."""
        tuner = ListTuner((), (0,), (1,))
        executor = ScriptedExecutor(records, ends={0: [FAILED], 1: [FAILED]})

        make_controller(records, executor, tuner).search(SEARCH)

        assert executor.donors[2] == []
        assert by_number(records)[2].inheritance == {"replaced": {"1": None}}

    def test_stopped_parent_with_weights_is_a_donor(self, records: Records) -> None:
        """A child inherits the weights that a stopped trial saved."""
        executor = ScriptedExecutor(records, ends={0: [End(state=State.STOPPED, reason=Reason.STOPPER)]})

        make_controller(records, executor, ListTuner((), (0,))).search(SEARCH)

        assert executor.donors[1] == [0]
        assert by_number(records)[1].inheritance == {}

    @pytest.mark.parametrize("choice", ["ancestor", "scratch", "fail"])
    def test_no_donors_without_share_params(self, records: Records, choice: OnMissingWeights) -> None:
        """Without SHARE_PARAMS nothing is inherited, and a parent without weights does not matter."""
        executor = ScriptedExecutor(records, ends={0: [FAILED]})
        chosen = ControllerSettings(on_missing_weights=choice)

        make_controller(records, executor, ListTuner((), (0,), (1,)), settings=chosen).search(Stage(name="search"))

        assert executor.donors == {0: [], 1: [], 2: []}
        assert [trial.resolved_donor for trial in by_number(records).values()] == [None] * 3
        assert by_number(records)[1].state == State.COMPLETE

    def test_tuner_may_switch_policies(self, records: Records) -> None:
        """A proposal's own policies take precedence over the stage's."""
        off = Proposal(point={"x": 1}, parents=(0,), policies=frozenset())
        executor = ScriptedExecutor(records)

        make_controller(records, executor, ListTuner((), off)).search(SEARCH)

        assert by_number(records)[1].policies == frozenset()
        assert executor.donors[1] == []

    def test_empty_donors_start_from_scratch(self, records: Records) -> None:
        """A proposal with parents and donors=() inherits nothing."""
        executor = ScriptedExecutor(records)

        make_controller(records, executor, ListTuner((), Proposal(point={"x": 1}, parents=(0,), donors=()))).search(
            SEARCH
        )

        assert executor.donors[1] == []
        assert by_number(records)[1].generation == 1

    def test_replacement_of_two_donors_is_used_once(self, records: Records) -> None:
        """If one ancestor replaces two donors, it is used once."""
        tuner = ListTuner((), (0,), (0,), Proposal(point={"x": 3}, parents=(1,), donors=(1, 2, 0)))
        executor = ScriptedExecutor(records, ends={1: [FAILED], 2: [FAILED]})

        make_controller(records, executor, tuner).search(SEARCH)

        assert executor.donors[3] == [0]
        assert by_number(records)[3].inheritance == {"replaced": {"1": 0, "2": 0}}

    def test_donor_of_another_search(self, records: Records) -> None:
        """A donor of another search is given by its name, or left out if it has no weights."""
        checkpoint = publish_checkpoint(records.files, "000007-ab", None)

        def other_search_checkpoint(donor: str) -> Checkpoint | None:
            return checkpoint if donor == "other:7" else None

        tuner = ListTuner(
            Proposal(point={"x": 0}, donors=("other:7",)), Proposal(point={"x": 1}, donors=("other:8", "other:7"))
        )
        executor = ScriptedExecutor(records)

        make_controller(records, executor, tuner, other_search_checkpoint=other_search_checkpoint).search(SEARCH)

        assert executor.donors == {0: ["other:7"], 1: ["other:7"]}
        assert by_number(records)[0].resolved_donor == "other:7"
        assert by_number(records)[1].inheritance == {"replaced": {"other:8": None}}


class TestFailures:
    @pytest.mark.parametrize(
        ("deterministic", "remedy"), [(False, "run the search with retry=failed"), (True, "choose another name")]
    )
    def test_failures_in_a_row_end_the_search(self, records: Records, deterministic: bool, remedy: str) -> None:
        """max_failures consecutive failures end the search with the last one's reason, message and remedy."""
        executor = ScriptedExecutor(records, ends={number: [FAILED] for number in range(9)})
        settings = up_to(9, max_failures=3, deterministic=deterministic)
        told = rf"3 trials failed in a row .*trial 2: exception: it broke\. Fix the problem, then {remedy}"

        with pytest.raises(SearchFailedError, match=told):
            make_controller(records, executor, ListTuner(*[()] * 9), settings=settings).search(SEARCH)
        assert len(by_number(records)) == 3

    @pytest.mark.parametrize("works", [True, False])
    def test_equal_first_failures_wait_for_an_earlier_trial(self, records: Records, works: bool) -> None:
        """While trial 0 still trains, three equal failures don't end the search; if it fails too, they do."""
        ends = {number: [FAILED] for number in range(1 if works else 0, 5)}
        newest_first = ScriptedExecutor(records, 2, ends=ends, pick=lambda running: -1 if running[-1].number < 5 else 0)
        controller = make_controller(records, newest_first, ListTuner(*[()] * 6), settings=up_to(6))

        if works:
            controller.search(SEARCH)
        else:
            with pytest.raises(SearchFailedError, match="the first 5 trials failed with the same error"):
                controller.search(SEARCH)

        assert newest_first.order[:4] == [1, 2, 3, 4]

    def test_success_in_between_resets_the_count(self, records: Records) -> None:
        """Failures with a success in between do not end the search."""
        executor = ScriptedExecutor(records, ends={number: [FAILED] for number in (0, 1, 3, 4, 6, 7)})

        make_controller(records, executor, ListTuner(*[()] * 9), settings=up_to(9, max_failures=3)).search(SEARCH)

        assert len(by_number(records)) == 9

    def test_failing_search_interrupts_running_trials(self, records: Records) -> None:
        """When failures end the search, running trials are interrupted and get no result."""
        executor = ScriptedExecutor(records, 3, ends={0: [FAILED], 1: [FAILED]})

        with pytest.raises(SearchFailedError):
            make_controller(records, executor, ListTuner(*[()] * 9), settings=up_to(9, max_failures=2)).search(SEARCH)
        assert [trial.is_finished for trial in by_number(records).values()] == [True, True, False, False]

    def test_lost_trial_runs_again(self, records: Records) -> None:
        """A trial of a lost worker runs again as attempt 2, before any other."""
        executor = ScriptedExecutor(records, ends={0: [LOST]})

        make_controller(records, executor, ListTuner((), ()), settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(0, 1), (0, 2), (1, 1)]
        assert by_number(records)[0].attempt == 2
        assert by_number(records)[0].state == State.COMPLETE

    @pytest.mark.parametrize("max_attempts", [1, 2, 3])
    def test_trial_is_lost_after_max_attempts(self, records: Records, max_attempts: int) -> None:
        """A trial that lost max_attempts workers is FAILED(lost), and the search continues."""
        executor = ScriptedExecutor(records, ends={0: [LOST] * 9})

        make_controller(records, executor, ListTuner((), ()), settings=up_to(2, max_attempts=max_attempts)).search(
            SEARCH
        )

        lost = by_number(records)[0]
        assert (lost.state, lost.reason, lost.attempt) == (State.FAILED, Reason.LOST, max_attempts)
        assert lost.error == "its worker was killed by SIGKILL"
        assert by_number(records)[1].state == State.COMPLETE

    def test_start_of_an_orphan_does_not_use_up_the_next_attempt(self, records: Records) -> None:
        """An order of a killed driver starts attempt 1, so the lost one was attempt 2, and the next is attempt 3."""

        class Shifted(ScriptedExecutor):
            def submit(self, assignment: Assignment) -> None:
                if (trial := assignment.trial).attempt == 1:
                    records.start(trial, {"session": 1, "host": "here", "pid": 1, "time": 1.0})
                    assignment = replace(assignment, trial=replace(trial, attempt=2))  # as ``Attempt.begin`` does
                super().submit(assignment)

        executor = Shifted(records, session=2, ends={0: [LOST]})

        make_controller(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)

        assert [trial.attempt for trial in executor.submitted] == [2, 3]
        assert by_number(records)[0].state == State.COMPLETE

    def test_lost_trial_keeps_its_reports(self, records: Records) -> None:
        """The reports of a lost trial's last attempt stay in its record."""
        executor = ScriptedExecutor(records, ends={0: [End(reports=(0.1, 0.2), is_lost=True)] * 2})

        make_controller(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)

        assert [step for step, _ in by_number(records)[0].curve] == [1, 2]

    def test_second_attempt_begins_its_own_curve(self, records: Records) -> None:
        """The stopper does not see a lost attempt's reports in the next attempt's curve."""
        seen: list[int] = []

        class Watching(Stopper):
            def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
                seen.append(len(trial.curve))
                return False

        executor = ScriptedExecutor(
            records, ends={0: [End(reports=(0.1, 0.2), is_lost=True), End(reports=(0.3, 0.4, 0.5))]}
        )

        make_controller(records, executor, ListTuner(()), stopper=Watching((METRIC,))).search(SEARCH)

        assert seen == [1, 2, 1, 2, 3]

    def test_result_of_a_lost_trial_is_adopted(self, records: Records) -> None:
        """If a worker was lost after its result was durable, that result counts and nothing runs again."""
        executor = ScriptedExecutor(records, ends={0: [End(is_lost=True, commits=True)]})

        make_controller(records, executor, ListTuner((), (0,)), settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(0, 1), (1, 1)]
        assert by_number(records)[0].state == State.COMPLETE
        assert executor.donors[1] == [0]

    def test_executor_error_ends_the_search(self, records: Records) -> None:
        """An executor's error is raised unchanged, and the other trials are interrupted."""
        executor = ScriptedExecutor(records, 2)
        error = StorageError("the disk is full")
        executor.post(ExecutorFailed(error, 0))

        with pytest.raises(StorageError, match="disk is full"):
            make_controller(records, executor, ListTuner((), ())).search(SEARCH)
        assert not any(trial.is_finished for trial in by_number(records).values())

    def test_broken_job_is_not_waited_for(self, records: Records) -> None:
        """When an executor fails, the controller does not wait for the job that caused it."""
        executor = ScriptedExecutor(records, interrupted="hang")
        executor.post(ExecutorFailed(StorageError("the disk is full"), 0))
        began_s = executor.now_s()

        with pytest.raises(StorageError):
            make_controller(records, executor, ListTuner(())).search(SEARCH)
        assert executor.now_s() - began_s < 3


class TestInterrupts:
    def test_stop_ends_the_session(self, records: Records) -> None:
        """A stop request raises with its signal. Running trials get no result, and finished ones are kept."""
        executor = ScriptedExecutor(records, 2, stop_after=3)

        with pytest.raises(SearchInterruptedError, match="the test says so"):
            make_controller(records, executor, ListTuner(*[()] * 9), settings=up_to(9)).search(SEARCH)
        assert [trial.is_finished for trial in by_number(records).values()] == [True, True, True, False, False]

    def test_signal_is_passed_on(self, records: Records) -> None:
        """The interruption carries the signal for the exit status."""
        executor = ScriptedExecutor(records)
        executor.post(StopRequested("SIGTERM", 15))

        with pytest.raises(SearchInterruptedError) as caught:
            make_controller(records, executor, ListTuner(())).search(SEARCH)
        assert caught.value.signal == 15

    def test_interrupted_trial_runs_in_the_next_session(self, records: Records) -> None:
        """The next session runs an interrupted trial as attempt 2 under its id, without asking the tuner again."""
        with pytest.raises(SearchInterruptedError):
            make_controller(
                records, ScriptedExecutor(records, stop_after=1), ListTuner((), (0,)), settings=up_to(2)
            ).search(SEARCH)
        before = by_number(records)[1]
        tuner = ListTuner(())
        executor = ScriptedExecutor(records, session=2)

        make_controller(records, executor, tuner, settings=up_to(2)).search(SEARCH)

        assert [(trial.number, trial.attempt) for trial in executor.submitted] == [(1, 2)]
        assert executor.donors[1] == [0]
        assert by_number(records)[1].proposal == before.proposal
        assert tuner.n_asks == 0

    def test_result_during_the_interrupt_is_kept(self, records: Records) -> None:
        """A trial that finishes while the session ends keeps its result, and does not run again."""
        executor = ScriptedExecutor(records, interrupted="finish")
        heard: list[Event] = []
        executor.post(StopRequested("SIGINT", 2))

        with pytest.raises(SearchInterruptedError):
            make_controller(records, executor, ListTuner(()), observe=heard.append).search(SEARCH)
        assert by_number(records)[0].state == State.COMPLETE
        assert isinstance(heard[-1], Finished)

    def test_hanging_trials_are_waited_for_within_a_bound(self, records: Records) -> None:
        """A trial that ignores the stop request delays the session's end only for a bounded time."""
        executor = ScriptedExecutor(records, interrupted="hang")
        executor.post(StopRequested("SIGINT", 2))
        began_s = executor.now_s()

        with pytest.raises(SearchInterruptedError):
            make_controller(records, executor, ListTuner(())).search(SEARCH)
        assert 15 < executor.now_s() - began_s < 30

    def test_attempts_lost_with_the_session_do_not_count(self, records: Records) -> None:
        """Attempts lost with their session do not count towards max_attempts."""
        for session in (1, 2, 3):
            executor = ScriptedExecutor(records, session=session, stop_after=0)
            with pytest.raises(SearchInterruptedError):
                make_controller(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)
        executor = ScriptedExecutor(records, session=4, ends={0: [LOST]})

        make_controller(records, executor, ListTuner(()), settings=up_to(1, max_attempts=2)).search(SEARCH)

        assert [trial.attempt for trial in executor.submitted] == [4, 5]
        assert by_number(records)[0].state == State.COMPLETE

    def test_losses_of_earlier_sessions_count(self, records: Records) -> None:
        """A worker lost in one session and one lost in the next make two losses."""
        executor = ScriptedExecutor(records, ends={0: [End(is_lost=True, stops=True)]})
        with pytest.raises(SearchInterruptedError):
            make_controller(records, executor, ListTuner(()), settings=up_to(1)).search(SEARCH)
        executor = ScriptedExecutor(records, session=2, ends={0: [LOST] * 9})

        make_controller(records, executor, ListTuner(()), settings=up_to(1, max_attempts=2)).search(SEARCH)

        assert [trial.attempt for trial in executor.submitted] == [3]
        assert by_number(records)[0].reason == Reason.LOST


class TestResume:
    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_proposals_record_the_learned_results(self, records: Records, slots: int) -> None:
        """The learned lists, joined, are the results in the order in which they came."""
        executor = ScriptedExecutor(records, slots, pick=shuffled)

        make_controller(records, executor, EchoTuner(), settings=up_to(12)).search(SEARCH)

        learned = [number for trial in records.load()[0] for number in trial.learned]
        assert learned == executor.order[: len(learned)]
        assert len(learned) >= 12 - 2 * slots

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_search_killed_anywhere_proposes_the_same(self, records: Records, slots: int) -> None:
        """A search cut after any file and resumed proposes the same from the same lineage."""
        ends = {number: [FAILED] for number in (2, 3, 7)}
        controller = make_controller(
            records, ScriptedExecutor(records, slots, pick=shuffled, ends=ends), EchoTuner(), settings=up_to(10)
        )
        controller.search(SEARCH)
        undisturbed = asked(controller.trials)

        n_cuts = 0
        for cut in prefixes(records):
            executor = ScriptedExecutor(cut, slots, pick=shuffled, ends=ends, session=2)
            make_controller(cut, executor, EchoTuner(), settings=up_to(10)).search(SEARCH)
            assert asked(cut.load()[0]) == undisturbed
            n_cuts += 1
        assert n_cuts > 30

    def test_finished_trials_are_never_repeated(self, records: Records) -> None:
        """Resumed from any cut, each durable result is kept, and no trial gets two."""
        make_controller(records, ScriptedExecutor(records, 2), EchoTuner(), settings=up_to(5)).search(SEARCH)

        for cut in prefixes(records):
            done = {number for number, trial in by_number(cut).items() if trial.is_finished}
            executor = ScriptedExecutor(cut, 2, session=2)
            make_controller(cut, executor, EchoTuner(), settings=up_to(5)).search(SEARCH)
            assert sorted([*done, *executor.order]) == list(range(5))

    def test_unlisted_results_are_learned_by_time(self, records: Records) -> None:
        """Results that no proposal lists are learned by time, and at equal times by number."""
        for number, finished in enumerate([30.0, 10.0, 20.0, 20.0]):
            trial = Trial(number=number, index=number, proposal=Proposal(point={"x": number}))
            records.propose(trial)
            records.commit(replace(trial, state=State.COMPLETE, metrics={"accuracy": 1}, finished=finished))
        tuner = ListTuner(())

        make_controller(records, ScriptedExecutor(records), tuner, settings=up_to(5)).search(SEARCH)

        assert [trial.number for trial in tuner.seen[0].finished] == [1, 2, 3, 0]
        assert by_number(records)[4].learned == (1, 2, 3, 0)

    @pytest.mark.parametrize(("slots", "deterministic"), [(1, False), (1, True), (2, True), (4, True)])
    def test_extended_search_proposes_the_same(self, slots: int, deterministic: bool) -> None:
        """A search of 6 with finals, extended by 6, proposes what one of 12 proposes."""
        whole, parts = fresh_records(), fresh_records()
        six, twelve = (up_to(n_trials, deterministic=deterministic) for n_trials in (6, 12))
        make_controller(whole, ScriptedExecutor(whole, slots), EchoTuner(), settings=twelve).search(SEARCH)

        controller = make_controller(parts, ScriptedExecutor(parts, slots), EchoTuner(), settings=six)
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials[:2])
        make_controller(parts, ScriptedExecutor(parts, slots, session=2), EchoTuner(), settings=twelve).search(SEARCH)

        assert asked(parts.load()[0]) == asked(whole.load()[0])
        assert len(parts.load()[0]) == 14

    def test_unfinished_finals_do_not_block_a_larger_search(self, records: Records) -> None:
        """Unfinished finals of an earlier session use no slot of the extended search stage."""
        executor = ScriptedExecutor(records, stop_after=2)
        controller = make_controller(records, executor, ListTuner((), ()), settings=up_to(2))
        controller.search(SEARCH)
        with pytest.raises(SearchInterruptedError):
            controller.train_finalists(FINAL, controller.trials)

        controller = make_controller(records, ScriptedExecutor(records, session=2), ListTuner(()), settings=up_to(3))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, [])

        assert all(trial.state == State.COMPLETE for trial in controller.trials)
        assert [trial.stage for trial in controller.trials] == ["search", "search", "final", "final", "search"]


picks = st.lists(st.integers(0, 7), min_size=1, max_size=12)
durations = st.integers(1, 4)


def in_order_of(choices: Sequence[int]) -> Callable[[Sequence[Trial]], int]:
    """Picks trials as Hypothesis drew them, again and again."""
    left: list[int] = []

    def pick(running: Sequence[Trial]) -> int:
        if not left:
            left.extend(choices)
        return left.pop(0)

    return pick


class PatientTuner(EchoTuner):
    """Proposes from all earlier trials. Before each fifth proposal it waits until it knows every result.

    Args:
        duration: The relative duration of each fourth proposal.
    """

    def __init__(self, duration: int = 1) -> None:
        super().__init__()
        self.duration = duration

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        answer = WAIT if number % 5 == 4 and lineage.pending else super().ask(lineage, number, job)
        is_long = number % 4 == 1 and isinstance(answer, Proposal)
        return replace(answer, relative_duration=self.duration) if is_long else answer


class OddStopper(Stopper):
    """Stops by a hash of the lineage, so that any difference shows."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        seen = [(t.index, t.state, len(t.curve)) for t in lineage]
        return len(trial.curve) > 1 and (sum(index + n for index, _, n in seen) + trial.index) % 3 == 0


class TestDeterministic:
    @settings(max_examples=40, deadline=None)
    @given(picks=picks, slots=st.integers(1, 4), failing=st.sets(st.integers(0, 11), max_size=4), duration=durations)
    def test_order_of_finishing_does_not_matter(
        self, picks: list[int], slots: int, failing: set[int], duration: int
    ) -> None:
        """With deterministic=true the proposals are the same in any order of finishing, losses included."""
        forget_all_records()
        ends = {number: [FAILED] for number in failing} | {5: [LOST]}
        chosen = up_to(12, deterministic=True, max_failures=99)
        tables = []
        for pick in (in_order_of([0]), in_order_of(picks)):
            records = fresh_records()
            executor = ScriptedExecutor(records, slots, pick=pick, ends=ends)
            make_controller(records, executor, PatientTuner(duration), settings=chosen).search(SEARCH)
            tables.append(asked(records.load()[0]))

        assert tables[0] == tables[1]

    @settings(max_examples=40, deadline=None)
    @given(picks=picks, again=picks, slots=st.integers(1, 4), duration=durations, data=st.data())
    def test_kills_do_not_matter(
        self, picks: list[int], again: list[int], slots: int, duration: int, data: st.DataObject
    ) -> None:
        """A deterministic search gives the same trials if it is killed after any file and finishes in another order."""
        forget_all_records()
        chosen = up_to(10, deterministic=True)
        records = fresh_records()
        executor = ScriptedExecutor(records, slots, pick=in_order_of(picks))
        make_controller(records, executor, PatientTuner(duration), settings=chosen).search(SEARCH)
        cut = cut_after(records, data.draw(st.integers(0, len(paths_in_order(records.files)))))

        executor = ScriptedExecutor(cut, slots, pick=in_order_of(again), session=2)
        make_controller(cut, executor, PatientTuner(duration), settings=chosen).search(SEARCH)

        assert asked(cut.load()[0]) == asked(records.load()[0])

    @settings(max_examples=40, deadline=None)
    @given(picks=picks, slots=st.integers(1, 4))
    def test_stoppers_decision_does_not_depend_on_the_order(self, picks: list[int], slots: int) -> None:
        """A stopper sees the trial's own lineage, so the same trials stop at the same reports."""
        forget_all_records()
        chosen = up_to(10, deterministic=True)
        tables = []
        for pick in (in_order_of([0]), in_order_of(picks)):
            records = fresh_records()
            ends = {number: [End(reports=(0.1, 0.2, 0.3, 0.4))] for number in range(10)}
            executor = ScriptedExecutor(records, slots, pick=pick, ends=ends)
            make_controller(records, executor, EchoTuner(), settings=chosen, stopper=OddStopper((METRIC,))).search(
                SEARCH
            )
            tables.append([(trial.state, trial.curve) for trial in records.load()[0]])

        assert tables[0] == tables[1]

    @settings(max_examples=40, deadline=None)
    @given(picks=picks, slots=st.integers(1, 4), failing=st.sets(st.integers(0, 11), min_size=6))
    def test_failures_count_in_order_of_index(self, picks: list[int], slots: int, failing: set[int]) -> None:
        """Which failure ends the search depends on the trials' order alone."""
        forget_all_records()
        ends = {number: [FAILED] for number in failing}
        in_a_row = [n for n in range(2, 12) if {n - 2, n - 1, n} <= failing]
        ended_by = []
        for pick in (in_order_of([0]), in_order_of(picks)):
            records = fresh_records()
            executor = ScriptedExecutor(records, slots, pick=pick, ends=ends)
            controller = make_controller(
                records, executor, EchoTuner(), settings=up_to(12, deterministic=True, max_failures=3)
            )
            try:
                controller.search(SEARCH)
                ended_by.append("")
            except SearchFailedError as error:
                ended_by.append(str(error).partition("). ")[2].partition(". Fix")[0])

        assert ended_by == [f"The last, trial {in_a_row[0]}: exception: it broke" if in_a_row else ""] * 2

    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_ask_sees_the_trials_up_to_its_number_minus_slots(self, records: Records, slots: int) -> None:
        """Ask n sees the results of trials 0 to n - slots, and later trials as RUNNING."""
        tuner = ListTuner(*[()] * 8)
        executor = ScriptedExecutor(records, slots, pick=lambda running: -1)

        make_controller(records, executor, tuner, settings=up_to(8, deterministic=True)).search(SEARCH)

        for n, lineage in enumerate(tuner.seen):
            assert [trial.number for trial in lineage.finished] == list(range(max(0, n - slots + 1)))
            assert [trial.state for trial in lineage.pending] == ["RUNNING"] * (n - lineage.n_finished)
            assert all(trial.slot is None and not trial.curve for trial in lineage.pending)

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_trial_has_the_slot_of_its_index(self, records: Records, slots: int) -> None:
        """Trial n runs in slot n mod slots, also in the final stage."""
        executor = ScriptedExecutor(records, slots, pick=shuffled, ends={1: [LOST]})
        controller = make_controller(records, executor, ListTuner(*[()] * 7), settings=up_to(7, deterministic=True))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials[:4])

        assert all(trial.slot == trial.index % slots for trial in executor.submitted)

    def test_wait_grows_the_view_by_one(self, records: Records) -> None:
        """After each WAIT the tuner sees one more trial, in order of number."""
        tuner = ListTuner((), (), (), WAIT, WAIT, (), STOP)
        executor = ScriptedExecutor(records, 3, pick=lambda running: -1)

        make_controller(records, executor, tuner, settings=ControllerSettings(deterministic=True)).search(SEARCH)

        assert [[t.number for t in lineage.finished] for lineage in tuner.seen[3:6]] == [[0], [0, 1], [0, 1, 2]]

    def test_long_trial_is_seen_later(self, records: Records) -> None:
        """The other slot runs as many trials beside a long one as its relative duration says, on any free slot."""
        long = Proposal(point={"x": 1}, relative_duration=4)
        tuner = ListTuner((), long, *[()] * 7)
        executor = ScriptedExecutor(records, 2, pick=lambda running: running[0].number == 1)

        make_controller(records, executor, tuner, settings=up_to(9, deterministic=True)).search(SEARCH)

        seen = [[trial.number for trial in lineage.finished] for lineage in tuner.seen]
        assert seen[:6] == [[], [], [0], [0], [0, 2], [0, 2, 3]]
        assert seen[6:] == [[0, 2, 3, 1, 4], [0, 2, 3, 1, 4, 5], [0, 2, 3, 1, 4, 5, 6]]
        assert by_number(records)[1].proposal == long
        assert all(trial.slot == 0 for trial in by_number(records).values() if 1 < trial.number < 6)

    def test_child_of_a_trial_shown_as_running_waits(self, records: Records) -> None:
        """A tuner may name a parent shown as RUNNING, and the child inherits its weights."""
        executor = ScriptedExecutor(records, 3, pick=lambda running: -1)

        make_controller(
            records, executor, ListTuner((), (0,), (1,), (2,)), settings=up_to(4, deterministic=True)
        ).search(SEARCH)

        assert executor.donors == {0: [], 1: [0], 2: [1], 3: [2]}


class TestTunersMistakes:
    @pytest.mark.parametrize("point", [{"x": -1}, {"y": 1}, {"x": "1"}, {}])
    def test_point_outside_the_space(self, records: Records, point: Point) -> None:
        """A point outside the space ends the search; the error names proposal, tuner and parameter."""
        tuner = ListTuner((), Proposal(point=point))

        with pytest.raises(SearchFailedError, match=r"proposal 1 of ListTuner: the point is not in the space: .*[xy]"):
            make_controller(records, ScriptedExecutor(records), tuner).search(SEARCH)
        assert len(by_number(records)) == 1

    @pytest.mark.parametrize("parent", [1, 7])
    def test_unknown_parent(self, records: Records, parent: int) -> None:
        """A parent that was never proposed ends the search; the error names it."""
        tuner = ListTuner((), (parent,))

        with pytest.raises(SearchFailedError, match=rf"proposal 1 of ListTuner names parent or donor {parent}, but"):
            make_controller(records, ScriptedExecutor(records), tuner).search(SEARCH)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"parents": (-1,)}, r"parents=\(-1,\): must be"),
            ({"parents": ("0",)}, r"parents=\('0',\): must be"),
            ({"parents": (False,)}, r"parents=\(False,\): must be"),
            ({"parents": (0, 0)}, r"parents=\(0, 0\): must be .* each once"),
            ({"parents": (0,), "donors": (0, 0)}, r"donors=\(0, 0\): must be .* each once"),
            ({"fidelity": 7}, r"fidelity=7: must be"),
            ({"policies": {"FAST"}}, r"policies=\{'FAST'\}: must be a frozenset"),
            ({"reason": 3}, "reason=3: must be a text"),
            ({"reason": None}, "reason=None: must be a text"),
            ({"proxies": {"flops": "x"}}, r"proxies\.flops='x': must be a number"),
            ({"proxies": {"flops": math.nan}}, r"proxies\.flops=nan: must be a number"),
            ({"proxies": {"flops": numpy.float32(1)}}, r"proxies\.flops=.*1.*: must be a number"),
            ({"proxies": {1: 1.0}}, r"proxies=\{1: 1\.0\}: must be numbers by name"),
            ({"proxies": 3}, "proxies=3: must be numbers by name"),
        ],
        ids=str,
    )
    def test_invalid_proposal_fields_are_refused(self, records: Records, fields: dict[str, Any], said: str) -> None:
        """An invalid field ends the search; the error names tuner, proposal, field and value."""

        class Mistaken(ListTuner):
            def ask(self, lineage: Lineage, number: int, job: int) -> Any:
                return Proposal(point={"x": 1}, **fields) if number else super().ask(lineage, number, job)

        with pytest.raises(SearchFailedError, match=f"^proposal 1 of Mistaken: proposal\\.{said}"):
            make_controller(records, ScriptedExecutor(records), Mistaken(())).search(SEARCH)
        assert len(by_number(records)) == 1

    def test_answer_that_readers_refuse_is_never_durable(self, records: Records) -> None:
        """A number that records can't hold ends the search before the proposal is recorded."""
        tuner = ListTuner((), Proposal(point={"x": 1}, relative_duration=2**63))
        said = r"trial 1 can't be recorded: relative_duration=9223372036854775808: .*: Proposal\(point=\{'x': 1\}"

        with pytest.raises(ConfigurationError, match=said):
            make_controller(records, ScriptedExecutor(records), tuner).search(SEARCH)
        assert len(by_number(records)) == 1

    def test_undeclared_policy(self, records: Records) -> None:
        """A policy that the problem does not declare ends the search; the error lists the declared ones."""
        wishful = Proposal(point={"x": 1}, policies=frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN}))
        said = r"proposal 0 of ListTuner asks for SKIP_TRAIN, but the problem declares SHARE_PARAMS\. Add them"

        with pytest.raises(SearchFailedError, match=said):
            make_controller(records, ScriptedExecutor(records), ListTuner(wishful), declared=SEARCH.policies).search(
                SEARCH
            )
        assert by_number(records) == {}

    def test_unknown_donor(self, records: Records) -> None:
        """An unknown donor ends the search as an unknown parent does."""
        tuner = ListTuner(Proposal(point={"x": 1}, donors=(3,)))

        with pytest.raises(SearchFailedError, match="names parent or donor 3"):
            make_controller(records, ScriptedExecutor(records), tuner).search(SEARCH)

    def test_trial_of_another_stage_is_unknown(self, records: Records) -> None:
        """A trial of the final stage can't be a parent."""
        controller = make_controller(records, ScriptedExecutor(records), ListTuner(()), settings=up_to(1))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials)

        with pytest.raises(SearchFailedError, match="names parent or donor 1"):
            make_controller(records, ScriptedExecutor(records), ListTuner((1,))).search(SEARCH)

    def test_malformed_donor_is_never_durable(self, records: Records) -> None:
        """An invalid donor name ends the search before the proposal is recorded, so the search can resume."""

        def other_search_checkpoint(donor: str) -> Checkpoint | None:
            raise ConfigurationError(f"donor {donor!r} must be a trial's number or 'search:number'")

        tuner = ListTuner(Proposal(point={"x": 1}, donors=("nonsense",)))

        with pytest.raises(SearchFailedError, match=r"proposal 0 of ListTuner: donor 'nonsense' must be"):
            make_controller(
                records, ScriptedExecutor(records), tuner, other_search_checkpoint=other_search_checkpoint
            ).search(SEARCH)
        assert by_number(records) == {}

    @pytest.mark.parametrize(
        "proposal",
        [Proposal(point={"x": (1, 2)}), Proposal(point={"x": 1}, derivation={1, 2}), Proposal(point={"x": math.nan})],
        ids=["tuple", "set", "nan"],
    )
    def test_values_outside_json_are_refused(self, records: Records, proposal: Proposal) -> None:
        """A point or derivation that JSON can't hold ends the search; the error names the tuner."""
        with pytest.raises(SearchFailedError, match=r"proposal 0 of ListTuner: must be plain JSON data"):
            make_controller(records, ScriptedExecutor(records), ListTuner(proposal)).search(SEARCH)

    @pytest.mark.parametrize("answer", [None, {"x": 1}, True])
    def test_answers_of_other_types_are_refused(self, records: Records, answer: object) -> None:
        """Any answer but a Proposal, WAIT or STOP ends the search; the error shows it."""
        with pytest.raises(SearchFailedError, match=r"ListTuner answered .* at proposal 0; it must answer"):
            make_controller(records, ScriptedExecutor(records), ListTuner(answer)).search(SEARCH)

    def test_own_error_of_the_tuner_is_raised(self, records: Records) -> None:
        """A tuner's own exception keeps its type."""

        class Broken(EchoTuner):
            def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
                raise ZeroDivisionError("in ask")

        with pytest.raises(ZeroDivisionError, match="in ask"):
            make_controller(records, ScriptedExecutor(records), Broken()).search(SEARCH)


class TestTuners:
    def test_tuner_may_change_its_point(self, records: Records) -> None:
        """A trial keeps its point and derivation if the tuner changes and proposes them again."""
        point: Point = {}

        class Reusing(EchoTuner):
            def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
                point["x"] = number
                return Proposal(point=point, derivation=[point])

        controller = make_controller(records, ScriptedExecutor(records), Reusing(), settings=up_to(3))
        controller.search(SEARCH)

        assert [trial.point for trial in controller.trials] == [{"x": 0}, {"x": 1}, {"x": 2}]
        assert [trial.proposal for trial in controller.trials] == [trial.proposal for trial in records.load()[0]]

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_slots_above_the_population(self, records: Records, deterministic: bool) -> None:
        """Evolution with more slots than population proposes initial points, then children of finished trials."""
        tuner = EvolutionTuner(SPACE, (METRIC,), population_size=3, sample_size=2)
        executor = ScriptedExecutor(records, 8, pick=shuffled)

        make_controller(records, executor, tuner, settings=up_to(24, deterministic=deterministic)).search(SEARCH)

        children = [trial for trial in by_number(records).values() if trial.parents]
        assert len(executor.order) == 24
        assert len(children) >= 12

    def test_running_initial_points_are_counted(self, records: Records) -> None:
        """Running initial points count: with as many slots as population, no more are proposed."""
        tuner = EvolutionTuner(SPACE, (METRIC,), population_size=4, sample_size=2)

        make_controller(records, ScriptedExecutor(records, 4), tuner, settings=up_to(12)).search(SEARCH)

        assert [bool(trial.parents) for trial in records.load()[0]] == [False] * 4 + [True] * 8

    def test_failures_do_not_shrink_the_population(self, records: Records) -> None:
        """Failed initial points are replaced, and no child comes before the population is full of scored trials."""
        ends = {number: [FAILED] for number in (0, 2, 3)}
        tuner = EvolutionTuner(SPACE, (METRIC,), population_size=4, sample_size=4)

        make_controller(records, ScriptedExecutor(records, ends=ends), tuner, settings=up_to(9)).search(SEARCH)

        assert [bool(trial.parents) for trial in by_number(records).values()] == [False] * 7 + [True] * 2

    def test_best_of_the_sample_is_the_parent(self, records: Records) -> None:
        """If the sample is the population, the parent is the best of the newest scored trials."""
        tuner = EvolutionTuner(SPACE, (METRIC,), population_size=4, sample_size=4)

        make_controller(records, ScriptedExecutor(records), tuner, settings=up_to(12)).search(SEARCH)

        trials = records.load()[0]
        for child in trials[4:]:
            living = trials[child.number - 4 : child.number]
            assert child.parents == (max(living, key=lambda t: score(t.point)).number,)

    def test_random_search_stops_with_the_space(self, records: Records) -> None:
        """Random search proposes each point of a small space once, then STOP."""
        space = ParameterSpace({"x": Choice(1, 2, 3, 4, 5)})

        SearchController(
            records, ScriptedExecutor(records, 3), up_to(99), tuner=RandomTuner(space, (METRIC,)), space=space
        ).search(SEARCH)

        assert sorted(trial.point["x"] for trial in records.load()[0]) == [1, 2, 3, 4, 5]


class TestStopper:
    def test_hopeless_trial_is_stopped(self, records: Records) -> None:
        """A trial worse than the median of the others is STOPPED with its last report."""
        ends = {n: [End(reports=(0.5, 0.6, 0.7))] for n in range(5)} | {5: [End(reports=(0.1, 0.2, 0.3))]}
        executor = ScriptedExecutor(records, ends=ends)
        stopper = MedianStopper((METRIC,), warmup_steps=1, min_trials=5)

        make_controller(records, executor, ListTuner(*[()] * 6), settings=up_to(6), stopper=stopper).search(SEARCH)

        stopped = by_number(records)[5]
        assert (stopped.state, stopped.reason) == (State.STOPPED, Reason.STOPPER)
        assert stopped.metrics == {"accuracy": 0.2}
        assert [trial.state for trial in records.load()[0][:5]] == [State.COMPLETE] * 5

    @pytest.mark.parametrize("answer", [numpy.bool_(True), numpy.array([True])])
    def test_an_answer_of_numpy_counts(self, records: Records, answer: object) -> None:
        """A worker waits for a bool, so the controller sends no other type."""

        class Numeric(Stopper):
            should_stop = staticmethod(lambda lineage, trial: answer)

        ends = {0: [End(reports=(0.5, 0.6))]}
        executor, stopper = ScriptedExecutor(records, ends=ends), Numeric((METRIC,))
        make_controller(records, executor, ListTuner(()), settings=up_to(1), stopper=stopper).search(SEARCH)

        assert by_number(records)[0].state == State.STOPPED

    @pytest.mark.parametrize("answer", [None, "no", numpy.array([True, False])])
    def test_any_other_answer_ends_the_search(self, records: Records, answer: object) -> None:
        """A stopper that answers nonsense ends the search in one line, instead of a worker that waits forever."""

        class Forgetful(Stopper):
            should_stop = staticmethod(lambda lineage, trial: answer)

        executor = ScriptedExecutor(records, ends={0: [End(reports=(0.5,))]})
        controller = make_controller(records, executor, ListTuner(()), settings=up_to(1), stopper=Forgetful((METRIC,)))

        with pytest.raises(SearchFailedError, match=r"stopper Forgetful answered .*; it must answer True or False"):
            controller.search(SEARCH)

    def test_final_trials_are_not_stopped(self, records: Records) -> None:
        """A stopper is not asked about trials of the final stage."""

        class Eager(Stopper):
            def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
                return True

        ends = {1: [End(reports=(0.1, 0.2))]}
        controller = make_controller(
            records,
            ScriptedExecutor(records, ends=ends),
            ListTuner(()),
            settings=up_to(1),
            stopper=Eager((METRIC,)),
        )
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials)

        assert controller.trials[1].state == State.COMPLETE

    def test_stopper_sees_the_reports_so_far(self, records: Records) -> None:
        """At each report the stopper sees the trial with all its reports, and a lineage without it."""
        seen: list[tuple[list[float], list[int]]] = []

        class Watching(Stopper):
            def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
                seen.append(([metrics["accuracy"] for _, metrics in trial.curve], [t.number for t in lineage]))
                return False

        ends = {1: [End(reports=(0.1, 0.0))]}

        make_controller(
            records, ScriptedExecutor(records, ends=ends), ListTuner((), ()), stopper=Watching((METRIC,))
        ).search(SEARCH)

        assert seen == [([0.1], [0]), ([0.1, 0.0], [0])]

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_stopper_sees_the_reports_of_running_trials(self, records: Records, deterministic: bool) -> None:
        """At a report the stopper sees the other running trials' reports; with deterministic=true it sees none."""
        seen: list[list[tuple[int, int]]] = []

        class Watching(Stopper):
            def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
                seen.append([(t.number, len(t.curve)) for t in lineage])
                return False

        ends = {number: [End(reports=(0.1, 0.2))] for number in (0, 1)}
        turns = itertools.cycle([0, 1])
        executor = ScriptedExecutor(records, 2, ends=ends, pick=lambda running: next(turns) % len(running))
        settings = up_to(2, deterministic=deterministic)
        make_controller(records, executor, ListTuner((), ()), settings=settings, stopper=Watching((METRIC,))).search(
            SEARCH
        )

        assert seen == ([[]] * 4 if deterministic else [[(1, 0)], [(0, 1)], [(1, 1)], [(0, 2)]])


class TestFinal:
    def test_finalists_are_trained_again(self, records: Records) -> None:
        """A final trial has the finalist's point, the finalist as parent, and starts from scratch."""
        executor = ScriptedExecutor(records)
        controller = make_controller(records, executor, ListTuner((), ()), settings=up_to(2))
        controller.search(SEARCH)

        controller.train_finalists(FINAL, [controller.trials[1]])

        final = controller.trials[2]
        assert (final.stage, final.index, final.parents) == ("final", 0, (1,))
        assert final.point == controller.trials[1].point
        assert final.policies == frozenset()
        assert executor.donors[2] == []

    def test_warm_finalist_starts_from_its_own_weights(self, records: Records) -> None:
        """In a warm stage with SHARE_PARAMS the final trial inherits from its finalist."""
        executor = ScriptedExecutor(records)
        controller = make_controller(records, executor, ListTuner(()), settings=up_to(1))
        controller.search(SEARCH)

        controller.train_finalists(
            Stage(name="final", policies=frozenset({Policy.SHARE_PARAMS}), warm=True), controller.trials
        )

        assert executor.donors[1] == [0]

    def test_finalist_is_not_trained_twice(self, records: Records) -> None:
        """A finalist with a trial in the stage, finished or not, gets no second one."""
        controller = make_controller(records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2))
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials[:1])

        controller.train_finalists(FINAL, controller.trials[:2])

        assert [trial.parents for trial in controller.trials[2:]] == [(0,), (1,)]

    def test_finalist_that_fails_at_once_does_not_hang(self, records: Records) -> None:
        """With on_missing_weights=fail, the warm final of a finalist without weights is FAILED(parent)."""
        executor = ScriptedExecutor(records, ends={0: [End(has_weights=False)]})
        chosen = up_to(1, on_missing_weights="fail")
        controller = make_controller(records, executor, ListTuner(()), settings=chosen)
        controller.search(SEARCH)

        controller.train_finalists(
            Stage(name="final", policies=frozenset({Policy.SHARE_PARAMS}), warm=True), controller.trials
        )

        assert controller.trials[1].reason == Reason.PARENT

    @pytest.mark.timeout(30)
    @pytest.mark.parametrize("crashes", [{}, {2: 2}])
    def test_final_that_is_not_ready_holds_up_no_other(self, records: Records, crashes: dict[int, int]) -> None:
        """A final whose finalist lost its result stays WAITING, even one that must run alone. Others are trained."""
        controller = make_controller(records, ScriptedExecutor(records), ListTuner((), ()), settings=up_to(2))
        controller.search(SEARCH)
        records.propose(retrain(controller.trials[0], FINAL, 0, controller.trials, seed=0))
        records.files.delete("trials/000000.result.json")
        again = make_controller(
            records,
            ScriptedExecutor(records, session=2),
            None,
            settings=ControllerSettings(budget=Budget(hours=99.0)),
            crash_tracker=CrashTracker(crashes),
        )

        assert not again.train_finalists(FINAL, [controller.trials[1]])
        finals = [trial for trial in again.trials if trial.stage == "final"]
        assert [(t.parents, t.state) for t in finals] == [((0,), State.WAITING), ((1,), State.COMPLETE)]

    @pytest.mark.timeout(30)
    def test_trial_to_isolate_waits_for_its_donor(self, records: Records) -> None:
        """A trial that must run alone does not hold up the donor whose result was lost."""
        make_controller(records, ScriptedExecutor(records), ListTuner((), (0,)), settings=up_to(2)).search(SEARCH)
        for number in (0, 1):
            records.files.delete(f"trials/{number:06d}.result.json")
        again = ScriptedExecutor(records, session=2)
        make_controller(records, again, ListTuner(), settings=up_to(2), crash_tracker=CrashTracker({1: 2})).search(
            SEARCH
        )

        assert again.order == [0, 1]

    def test_lost_finalist_runs_again(self, records: Records) -> None:
        """A worker lost in the final stage costs an attempt, not the finalist."""
        controller = make_controller(
            records, ScriptedExecutor(records, ends={1: [LOST]}), ListTuner(()), settings=up_to(1)
        )
        controller.search(SEARCH)
        controller.train_finalists(FINAL, controller.trials)

        assert (controller.trials[1].state, controller.trials[1].attempt) == (State.COMPLETE, 2)
