"""The loop: one owner of the tuner, one thread of decisions.

It asks while slots are free and the budget allows, hands trials to an executor, and reacts to events. Everything that
it decides is durable before it acts on it, so that the records alone continue the search.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import SearchFailedError, SearchInterruptedError
from nas.core.lineage import Lineage
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.trial import OnMissingWeights, Proposal, Reason, State, Trial
from nas.executors.events import (
    Event,
    ExecutorFailed,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Proposed,
    Reported,
    StopRequested,
    TrialLost,
    TrialRequested,
    TunerReady,
    WeightsDeleted,
    WorkersBusy,
)
from nas.executors.executor import Executor
from nas.inheritance.donors.resolver import DonorResolver
from nas.search.admission import AdmissionRules, admit, retrain
from nas.search.budget.enforcer import BudgetEnforcer
from nas.search.budget.planner import StagePlanner
from nas.search.crash_tracker import CrashTracker
from nas.search.job_plan import JobPlan
from nas.search.jobs import JobScheduler
from nas.search.proposal_log import ProposalLog
from nas.search.slots import SlotPool
from nas.spaces.space import Space
from nas.stoppers.base import Stopper
from nas.storage.maintenance.gc.collector import GarbageCollector
from nas.storage.records import Records, Starts
from nas.storage.resume_points import ResumePoints
from nas.tuners.base import STOP, WAIT, Answer, Tuner
from nas.tuners.shared.stateful import StatefulTuner

INTERRUPT_BOUND_S = 20.0
INTERRUPT_REPEAT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What a loop needs to know beyond the tuner and the executor.

    Attributes:
        seed: The search's; each trial's seed derives from it, its stage and its index.
        deterministic: Ask n sees the results of trials 0 .. n - slots and nothing later, whatever has finished.
        max_attempts: Attempts that may be lost before the trial is given up as lost.
        jobs: How trials share jobs.
        max_failures: Failures in a row, within this session, that end the search: in the order in which they come, or,
            with ``deterministic``, in that of their index.
    """

    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    on_missing_weights: OnMissingWeights = "ancestor"
    deterministic: bool = False
    max_attempts: int = 2
    max_failures: int = 8
    jobs: JobPlan = field(default_factory=JobPlan)


class SearchController:
    """Drives the stages of one search; give it all trials and attempts that the records hold.

    Args:
        records: Where proposals and results become durable.
        executor: Where trials run.
        settings: See there.
        trials: All trials so far, by number.
        starts: The attempts of unfinished trials so far.
        crash_tracker: Counts the attempts in which the driver's process died.
        tuner: Asked in the search stage; may be None where only later stages run.
        space: Validates the tuner's points.
        declared: The policies that the problem honors, and a tuner may ask for; None: any.
        stopper: Judges reports of the search stage's trials, or None.
        spent_hours: Hours that the search has cost up to now, all sessions together.
        timetable: Knows when stages have to end; by default, of a search that is one stage.
        other_search_checkpoint: Returns the checkpoint of another search's trial (``"name:42"``), or None if it has no
            weights.
        observe: Told of every event, after the loop has taken it in; of a stop before running trials are told.
        collector: Deletes weights that nothing needs, or None: all weights are kept.
    """

    def __init__(
        self,
        records: Records,
        executor: Executor,
        settings: ControllerSettings,
        *,
        trials: Sequence[Trial] = (),
        starts: Mapping[int, Starts] | None = None,
        crash_tracker: CrashTracker | None = None,
        tuner: Tuner | None = None,
        space: Space | None = None,
        declared: frozenset[Policy] | None = None,
        stopper: Stopper | None = None,
        spent_hours: Callable[[], float] = lambda: 0.0,
        planner: StagePlanner | None = None,
        other_search_checkpoint: Callable[[str], Checkpoint | None] = lambda donor: None,
        observe: Callable[[Event], None] = lambda event: None,
        collector: GarbageCollector | None = None,
    ) -> None:
        self.trials: list[Trial] = list(trials)
        self._records = records
        self._executor = executor
        self._settings = settings
        self._attempts = {number: found.last_attempt for number, found in (starts or {}).items()}
        self._losses = {number: found.n_lost for number, found in (starts or {}).items()}
        self._crash_tracker = crash_tracker or CrashTracker()
        self._stateful = tuner if isinstance(tuner, StatefulTuner) else None
        self._proposals = ProposalLog(self.trials, tuner, n_slots=executor.slots, deterministic=settings.deterministic)
        self._rules = AdmissionRules(
            tuner=self._proposals.who,
            seed=settings.seed,
            space=space,
            policies=declared,
            other_search_checkpoint=other_search_checkpoint,
        )
        self._stopper = stopper
        self._observe = observe
        self._collector = collector
        metric = None if tuner is None else tuner.metrics[0]
        self._donors = DonorResolver(self.trials, settings.on_missing_weights, other_search_checkpoint, metric)
        self._waiting: list[int] = [t.number for t in self.trials if not t.is_finished]
        self._slots = SlotPool(executor.slots)
        planner = planner or StagePlanner(settings.budget, PolicyPlan((Stage(name=self._proposals.stage),)))
        self.deadline = BudgetEnforcer(planner, executor, self._slots, spent_hours, observe, settings.budget)
        for trial in self.trials:
            if trial.is_finished:
                self.deadline.learn(trial)
        self.deadline.begin_session()
        self._jobs = JobScheduler(
            settings.jobs,
            self._slots,
            executor,
            records,
            max_losses=settings.max_attempts,
            deterministic=settings.deterministic,
        )
        self._failures_in_a_row = 0
        self._uncounted: list[Trial] = []  # results that wait for those of a lower index to be counted

    # ---- the search stage

    def search(self, stage: Stage) -> bool:
        """Runs the search stage until the budget is spent or the tuner is exhausted, and gives whether it is the tuner.

        Raises:
            SearchFailedError: the tuner answers WAIT for ever or nonsense, or too many trials fail in a row.
            SearchInterruptedError: a stop was asked for.
            StorageError: the store failed, or its records contradict one another.
        """
        self.recall(stage)
        if self._stateful is None:
            return self._search(stage)
        post = self._executor.post
        try:
            self._stateful.begin(
                self._proposals.lineage(),
                wake=lambda: post(TunerReady()),
                fail=lambda error: post(ExecutorFailed(error)),
            )
            exhausted = self._search(stage)
            self._stateful.settle()
            return exhausted
        finally:
            self._stateful.end()

    def _search(self, stage: Stage) -> bool:
        exhausted = False
        while True:
            self.collect_garbage()
            self._enforce(stage)
            self._submit_ready(stage)  # before jobs begin anew that made room for it
            if self._settings.jobs.asks and not exhausted and self._budget_left(stage):
                self._jobs.begin_anew()
            while not exhausted and self._may_ask(stage):
                exhausted = not self._ask(stage)
                if self._proposals.waited_at is not None:
                    break
            self._submit_ready(stage)
            is_open = not exhausted and self._budget_left(stage)
            if self._settings.jobs.asks and not is_open:
                self._jobs.dismiss_idle()
            if self._slots.n_moving or (is_open and self._stateful is not None and self._stateful.is_thinking):
                self._take(self._next_event(stage))
            elif not self._unfinished(stage.name) or not self.deadline.may_begin(stage):
                if not is_open:
                    return exhausted
                if self._proposals.waited_at is not None and not self._may_ask(stage):
                    raise SearchFailedError(
                        f"tuner {self._proposals.who} answers WAIT at proposal {self._proposals.n_proposed}, but "
                        "nothing runs that it could wait for; a tuner that has nothing more to propose must answer STOP"
                    )

    def is_exhausted(self, stage: Stage) -> bool:
        """Whether the tuner has nothing more for the search stage; asks it, as ``search`` would, and runs nothing.

        Every trial of the stage must have finished.
        """
        self.recall(stage)
        while self._may_ask(stage):
            answer, self._proposals.waited_at = self._answer(self._next_job())
            if answer is not WAIT:
                return answer is STOP
        return False

    def recall(self, stage: Stage) -> None:
        """Recalls from the records what the tuner has proposed in the search stage, and what it had learned by then."""
        self._proposals.recall(stage.name)
        self._jobs.recall(self._proposals.in_stage())

    def may_go_on(self, stage: Stage) -> bool:
        """Returns whether the search stage, which has ended, may go on: its budget is not spent."""
        return self._budget_left(stage)

    def _may_ask(self, stage: Stage) -> bool:
        """Whether the tuner may be asked now: a slot or a job waits, there is budget, and what it must see is there."""
        if not self._proposals.may_be_asked or not self._has_room_to_ask():
            return False
        if not self._budget_left(stage) or not self._jobs.knows_asker(self._proposals.n_proposed):
            return False
        return self._allows_job() or self._jobs.has_begun(self._next_job())

    def _has_room_to_ask(self) -> bool:
        n_taken = self._slots.n_taken
        if self._settings.deterministic or n_taken + len(self._waiting) < self._executor.slots or self._jobs.has_idle:
            return True
        waiting = [t for number in self._waiting if self._is_search(t := self.trials[number])]
        waiting = [t for t in waiting if not self._jobs.is_given(t)]
        n_ready = sum(map(self._is_ready, waiting))
        n_blocked = len(waiting) - n_ready
        return n_taken + n_ready < self._executor.slots and n_blocked < self._executor.slots

    def _next_job(self) -> int:
        """Returns the job for which the tuner is asked."""
        return self._jobs.asker(self._proposals.n_proposed, len(self.trials))

    def _is_search(self, trial: Trial) -> bool:
        """Returns whether it is of the search stage."""
        return trial.stage == self._proposals.stage

    def _budget_left(self, stage: Stage) -> bool:
        allows = self._settings.budget.allows_trial(self._proposals.n_proposed) and self._may_propose(
            stage, after_ask=True
        )
        return allows and (self._allows_job() or self._jobs.any_lives)

    def _may_propose(self, stage: Stage, *, after_ask: bool = False) -> bool:
        if not self._settings.budget.is_timed:
            return True
        return self.deadline.may_begin(stage, self._n_waiting(stage), after_ask=after_ask)

    def _allows_job(self) -> bool:
        """Returns whether a new job may begin."""
        return self._settings.budget.allows_job(self._jobs.n_begun)

    def _answer(self, job: int) -> tuple[Proposal | Answer, int]:
        """What the tuner answers now for a job, and how many results it was shown."""
        began_s = self._executor.now_s()
        answer = self._proposals.ask(job)
        self.deadline.learn_ask(self._executor.now_s() - began_s)
        return answer

    def _ask(self, stage: Stage) -> bool:
        """Asks the tuner once; makes a proposal durable. False where the tuner is exhausted."""
        index, job = self._proposals.n_proposed, self._next_job()
        answer, n_seen = self._answer(job)
        if answer is WAIT or answer is STOP:
            return self._take_no(answer, job, n_seen)
        self._proposals.waited_at = None
        trial = admit(answer, stage, index, self.trials, self._rules)
        if self._stateful is None and not self._may_propose(stage):
            return True  # it took so long that no time is left: asked for again where a later session has more
        trial = replace(trial, learned=self._proposals.take_news(n_seen), job=job)
        self._propose(trial)
        self._jobs.give(trial)
        self._proposals.note(trial)
        return True

    def _take_no(self, answer: Answer, job: int, n_seen: int) -> bool:
        """Takes in WAIT or STOP; False where the tuner is exhausted.

        A tuner in a process of its own means the job that it was asked for: the others may go on.
        """
        is_of_job = self._stateful is not None and self._jobs.has_begun(job)
        if answer is WAIT:
            if is_of_job:
                self._jobs.defer(job)
            else:
                self._proposals.waited_at = n_seen
            return True
        if is_of_job:
            self._proposals.waited_at = None
            self._jobs.end(job)
            return True
        may_go_on = self._stateful is not None and self._slots.n_taken > 0
        self._proposals.waited_at = n_seen if may_go_on else None
        return may_go_on

    def _propose(self, trial: Trial) -> None:
        self._records.propose(trial)
        self.trials.append(trial)
        self._waiting.append(trial.number)
        self._observe(Proposed(trial))

    # ---- later stages

    def final(self, stage: Stage, finalists: Iterable[Trial], *, n_trials: int | None = None) -> bool:
        """Trains each of these trials again as a trial of a later stage, unless it has one there already.

        In this order, as long as they can finish in time; False where some can't.

        Args:
            stage: The stage.
            finalists: Trials of the stage before.
            n_trials: How many the stage has in all, whoever is left to train: fewer than there are slots share the
                torch threads of them all, as far as these divide, but where the search is deterministic. None: not
                known, each has those of one slot.
        """
        present = {t.parents[0] for t in self.trials if t.stage == stage.name and t.parents and not t.reached_deadline}
        to_come = deque(parent for parent in finalists if parent.number not in present)
        n_slots = self._share_slots(n_trials, self._n_waiting(stage) + len(to_come))
        while True:
            self.collect_garbage()
            self._enforce(stage)
            while to_come and self._may_propose_final(stage):
                index = sum(t.stage == stage.name for t in self.trials)
                self._propose(retrain(to_come.popleft(), stage, index, self.trials, self._settings.seed))
            self._submit_ready(stage, n_slots)
            if self._slots.n_moving:  # what was submitted may have failed at once, for want of a donor's weights
                self._take(self._next_event(stage))
                continue
            is_done = not to_come and not self._unfinished(stage.name)
            if is_done or not self.deadline.may_begin(stage):
                return is_done

    def _share_slots(self, n_trials: int | None, n_left: int) -> int:
        """How many slots' threads each trial of a later stage has, of which so many are left to train."""
        if self._settings.deterministic or n_trials is None:
            return 1
        return max(1, self._executor.slots // max(1, n_trials, n_left))

    def _may_propose_final(self, stage: Stage) -> bool:
        """Returns all at once; where hours are kept, only what begins at once: what does not is the next session's."""
        if not self._settings.budget.is_timed:
            return True
        has_room = len(self._slots.running) + self._n_waiting(stage) < self._executor.slots
        return has_room and self._may_propose(stage)

    # ---- running trials

    def _n_waiting(self, stage: Stage) -> int:
        return sum(self.trials[number].stage == stage.name for number in self._waiting)

    def _unfinished(self, stage: str) -> bool:
        return any(self.trials[number].stage == stage for number in (*self._waiting, *self._slots.running.values()))

    def _is_ready(self, trial: Trial) -> bool:
        sources = (*trial.parents, *(d for d in trial.proposal.weight_donors if isinstance(d, int)))
        return all(self.trials[source].is_finished for source in sources)

    def _submit_ready(self, stage: Stage, n_slots: int = 1) -> None:
        """Hands every trial whose parents and donors have finished to a free slot, in the order proposed.

        As long as it can finish in time. A trial that must run alone goes first. Each has the torch
        threads of so many slots.
        """
        waiting = [number for number in self._waiting if self.trials[number].stage == stage.name]
        isolated = self._crash_tracker.to_isolate(waiting)
        running, n_without_slot = self._slots.running, 0
        for number in isolated or waiting:
            if running and (isolated or self._crash_tracker.to_isolate(running.values())):
                return
            trial = self.trials[number]
            if not self._is_ready(trial):
                continue
            if (slot := self._free_slot(trial)) is None:
                n_without_slot += 1
                continue
            if not self.deadline.may_begin(stage):
                return
            self._waiting.remove(number)
            self._submit(trial, slot, n_slots)
        if n_without_slot:
            self._jobs.make_room(n_without_slot)

    def _free_slot(self, trial: Trial) -> int | None:
        if (kept := self._jobs.slot_kept_for(trial)) is not None:
            return kept
        if self._settings.deterministic:
            slot = trial.index % self._executor.slots
            return slot if self._slots.is_free(slot) else None
        return self._slots.first_free()

    def _submit(self, trial: Trial, slot: int, n_slots: int) -> None:
        if self._crash_tracker.must_fail(trial.number):
            error, attempt = self._crash_tracker.error(trial.number), self._attempts[trial.number]
            failed = replace(trial, attempt=attempt).fail(Reason.LOST, error)
            self._settle(self._records.commit(failed.finish(time.time())))
            return
        is_search = self._is_search(trial)
        resolved = self._donors.resolve(trial, slot, self._proposals.learned_by(trial), is_retraining=not is_search)
        if resolved.missing is not None:
            fails = self._settings.on_missing_weights == "fail"
            why = " (on_missing_weights=fail)" if fails else ", and SKIP_TRAIN trains none"
            error = f"donor {resolved.missing} has no weights{why}"
            self._settle(self._records.commit(trial.fail(Reason.PARENT, error).finish(time.time())))
            return
        attempt = self._attempts[trial.number] = self._attempts.get(trial.number, 0) + 1
        inheritance = {"replaced": resolved.replaced} if resolved.replaced else {}
        resolved_donor = resolved.donors[0].donor if resolved.donors else None
        trial = trial.start(attempt=attempt, slot=slot, resolved_donor=resolved_donor, inheritance=inheritance)
        self._change(trial)
        assignment = self._jobs.assignment(trial, resolved.donors, is_search=is_search)
        self._slots.take(slot, trial.number)
        self.deadline.begin(trial)
        self._executor.submit(replace(assignment, n_slots=n_slots))

    # ---- garbage collection

    def collect_garbage(self, *, at_end: bool = False) -> None:
        """Deletes weights that nothing needs, if a collection is due.

        Called only between two decisions, so that no trial is proposed or submitted during a collection.

        Args:
            at_end: Whether a stage has ended.
        """
        if self._collector is None:
            return
        now_s = self._executor.now_s()
        plan = self._collector.collect_if_due(self.trials, self._proposals.inheritable, now_s, at_end=at_end)
        if plan is None:
            return
        for number in plan.weights_deleted:
            self.trials[number] = self.trials[number].delete_weights()
            self._proposals.lose_weights(number)
        self._observe(WeightsDeleted(tuple(sorted(plan.weights_deleted)), plan.bytes_freed, plan.over_budget))

    # ---- events

    def _next_event(self, stage: Stage) -> Event | None:
        return self._executor.next_event(self.deadline.until_s(stage))

    def _enforce(self, stage: Stage) -> None:
        """Tells trials that run past their time."""
        self.deadline.enforce(stage, (self.trials[number] for number in self._slots.running.values()))

    def _take(self, event: Event | None) -> None:
        match event:
            case Reported():
                self._judge(event)
            case Finished(trial=trial):
                self._slots.release(trial.number)
                self._take_result(trial)
                return
            case TrialRequested(job=job):
                self._jobs.take_asked(job)
                self._ask_anew()
            case TunerReady():
                self._ask_anew()
                return
            case ExtraResult(trial=number, result=result) if self._stateful is not None:
                self._stateful.notice_late(self.trials[number], result)
            case JobLeftWorker():
                self._jobs.take_left(event)
                self._ask_anew()
            case TrialLost(trial=number):
                self._take_loss(number, event)
            case WorkersBusy(n_waiting=n_waiting, is_stuck=is_stuck):
                self._jobs.make_room(n_waiting, is_stuck=is_stuck)
            case StopRequested(why=why, signal=signal):
                self._observe(event)
                self._interrupt()
                raise SearchInterruptedError(why, signal)
            case ExecutorFailed(error=error, job=job):
                self._free_job(job)
                self._interrupt()
                raise error
        if event is not None:
            self._observe(event)

    def _change(self, trial: Trial) -> None:
        """Takes in what is new of an unfinished trial."""
        self.trials[trial.number] = trial
        self._proposals.change(trial)

    def _take_result(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self._jobs.take_result(trial)
        self._donors.learn([trial])
        if self._collector is not None:
            self._collector.add(trial)
        self.deadline.learn(trial)
        self._proposals.learn(trial)
        if self._stateful is not None and self._is_search(trial):
            self._stateful.notice(trial)
            self._ask_anew()
        self._observe(Finished(trial))
        self._uncounted.append(trial)
        for due in self._due_to_count(trial.stage):
            if due.reached_deadline:
                continue
            self._failures_in_a_row = self._failures_in_a_row + 1 if due.state == State.FAILED else 0
            if self._failures_in_a_row >= self._settings.max_failures:
                self._interrupt()
                last = (due.error or "").strip().splitlines()
                raise SearchFailedError(
                    f"{self._failures_in_a_row} trials failed in a row (max_failures={self._settings.max_failures}); "
                    f"the last, trial {due.number}: {due.reason}: {last[-1] if last else 'no message'}"
                )

    def _ask_anew(self) -> None:
        """Lets a tuner be asked again that remembers, and may have another answer than WAIT without a result."""
        if self._stateful is not None:
            self._proposals.waited_at = None
            self._jobs.undefer()

    def _due_to_count(self, stage: str) -> list[Trial]:
        """The results that are counted now: all, or, with ``deterministic``, those before the stage's first gap."""
        gap = len(self.trials)
        if self._settings.deterministic and stage == self._proposals.stage:
            gap = gap if (first := self._proposals.first_pending()) is None else first
        elif self._settings.deterministic:
            unfinished = (*self._waiting, *self._slots.running.values())
            gap = min((n for n in unfinished if self.trials[n].stage == stage), default=gap)
        due = sorted((t for t in self._uncounted if t.number < gap), key=lambda t: t.number)
        self._uncounted = [t for t in self._uncounted if t.number >= gap]
        return due

    def _take_loss(self, number: int, event: TrialLost) -> None:
        """Runs a lost trial again, or gives it up after ``max_attempts``."""
        trial = self.trials[number]
        self._slots.release(number)
        self._jobs.take_loss(trial.job)
        if (committed := self._records.result(trial)) is not None:
            self._settle(committed)
            return
        if not event.counts:
            self._records.spare(trial, event.why)
        self._losses[number] = self._losses.get(number, 0) + event.counts
        if not event.counts or self._losses[number] < self._settings.max_attempts:
            self._change(trial.lose())
            self._waiting.insert(0, number)
            return
        self._settle(self._records.commit(trial.fail(Reason.LOST, event.why).finish(time.time())))

    def _settle(self, trial: Trial) -> None:
        """Takes in a result whose attempt is gone, after sweeping what it had saved on the way."""
        ResumePoints(self._records.files, trial.number).delete()
        self._take_result(trial)

    def _judge(self, event: Reported) -> None:
        """Takes in a report, and answers whether the trial should stop."""
        trial = self.trials[event.trial]
        trial = trial.report(event.step, event.metrics)
        self._change(trial)
        if event.answer is not None:
            stop = False
            if self._stopper is not None and self._is_search(trial):
                stop = self._stopper.should_stop(self._seen_by_stopper(trial), trial)
            event.answer(stop)

    def _seen_by_stopper(self, trial: Trial) -> Lineage:
        """All others, the running ones as far as they have reported; with ``deterministic``, what the proposal saw."""
        if self._settings.deterministic:
            return self._proposals.lineage_before(trial)
        return self._proposals.lineage(without=trial.number)

    def _free_job(self, job: int | None) -> None:
        for number in [n for n in self._slots.running.values() if self.trials[n].job == job]:
            self._slots.release(number)

    def _interrupt(self) -> None:
        """Tells every running trial, and waits within a bound until each has ended; what finishes is kept."""
        until = self._executor.now_s() + INTERRUPT_BOUND_S
        running = self._slots.running
        while running and self._executor.now_s() < until:
            for number in running.values():
                self._executor.stop(self.trials[number], "interrupt")
            match self._executor.next_event(min(until, self._executor.now_s() + INTERRUPT_REPEAT_S)):
                case Finished(trial=trial):
                    self._slots.release(trial.number)
                    self.trials[trial.number] = trial
                    self._observe(Finished(trial))
                case ExecutorFailed(job=None):
                    return
                case TrialLost(trial=number):
                    self._slots.release(number)
                case ExecutorFailed(job=job):
                    self._free_job(job)
