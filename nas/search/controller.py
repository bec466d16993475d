"""The search controller: one thread that makes all decisions of a search.

It asks the tuner, submits trials to an executor and reacts to the executor's events. Each decision is durable before it
is acted on, so the records alone are enough to continue the search. Its parts:

* ``admission`` checks the tuner's proposals;
* ``jobs`` and ``slots`` assign trials to workers;
* ``budget.enforcer`` keeps the hours and GPU-hours;
* ``interrupt`` ends the running trials after Ctrl-C.

A trial that exceeds its own timeout is killed by its worker pool (``nas.executors.process_pool``).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import SearchFailedError, SearchInterruptedError
from nas.core.metric import finite_metrics
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.supernet import is_epoch
from nas.core.trial import OnMissingWeights, Proposal, Reason, State, Trial
from nas.executors.events import (
    Event,
    ExecutorFailed,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Notice,
    Proposed,
    ProxiesComputed,
    Reported,
    Resumed,
    Started,
    StopRequested,
    TrialLost,
    TrialRequested,
    TunerReady,
    WeightsDeleted,
    WorkersBusy,
)
from nas.executors.executor import Executor
from nas.inheritance.donors.resolver import DonorResolver
from nas.search.admission import (
    AdmissionRules,
    admit,
    check_recorded,
    check_suggested,
    check_unchanged,
    continue_training,
    repeat,
    retrain,
)
from nas.search.budget.enforcer import BudgetEnforcer
from nas.search.budget.planner import StagePlanner
from nas.search.crash_tracker import CrashTracker
from nas.search.failure_streak import FailureStreak
from nas.search.interrupt import interrupt_trials, release_trials
from nas.search.job_plan import JobPlan
from nas.search.jobs import JobScheduler
from nas.search.pending_proxies import PendingProxies
from nas.search.proposal_log import ProposalLog
from nas.search.slots import SlotPool
from nas.search.stop_decision import decides_stop
from nas.spaces.space import Space
from nas.stoppers.base import Stopper
from nas.storage.maintenance.gc.collector import GarbageCollector
from nas.storage.records import Records, StartedAttempts
from nas.storage.resume_points import ResumePoints
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import STOP, WAIT, Answer, Tuner
from nas.tuners.shared.stateful import StatefulTuner

ANSWER_S = 0.5
"""Seconds that a stateful tuner has, after WAIT, to tell that it may answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of a search controller.

    Attributes:
        seed: The search's seed. A trial's seed derives from it, the stage and the trial's index.
        budget: The limits of the search.
        on_missing_weights: The replacement for a donor without weights.
        deterministic: Results are shown in their ``LearningOrder``, whatever else has finished.
        max_attempts: A trial fails after this many lost attempts.
        max_failures: This many failures in a row within the session end the search. They are counted in the order of
            results or, if deterministic, of trial numbers. None: see ``FailureStreak``.
        jobs: The rule by which trials share jobs.
        code: The ``Trial.code`` of trials that start in this session.
    """

    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    on_missing_weights: OnMissingWeights = "ancestor"
    deterministic: bool = False
    max_attempts: int = 2
    max_failures: int | None = None
    jobs: JobPlan = field(default_factory=JobPlan)
    code: str | None = None


class SearchController:
    """Runs the stages of one search.

    Args:
        records: Stores proposals and results.
        executor: Runs trials.
        settings: The controller's settings.
        trials: All trials in the records, by number.
        starts: The recorded attempts of unfinished trials.
        crash_tracker: Counts the attempts in which the driver's process died.
        tuner: The tuner of the search stage; None if only later stages run.
        space: The space of valid points; None accepts any point.
        declared: The policies that the problem implements; None accepts any.
        stopper: Decides whether running trials of the search stage stop, or None.
        spent_hours: Returns the hours of all sessions of the search.
        planner: Plans the end of each stage; by default for a search with one stage.
        other_search_checkpoint: Returns the checkpoint of another search's trial (``"name:42"``), or None if it has no
            weights.
        observe: Called with each event after the controller has handled it; with a ``StopRequested`` before.
        collector: Deletes weights that nothing needs; None keeps all.
        scores: The proxies that the tuner asks for.
        overtaken_by: Returns a message if a newer session drives the search; else None.
    """

    def __init__(
        self,
        records: Records,
        executor: Executor,
        settings: ControllerSettings,
        *,
        trials: Sequence[Trial] = (),
        starts: Mapping[int, StartedAttempts] | None = None,
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
        scores: ProxyScores | None = None,
        overtaken_by: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.trials: list[Trial] = list(trials)
        self._records = records
        self._executor = executor
        self._settings = settings
        self._attempts = {number: found.last_attempt for number, found in (starts or {}).items()}
        self._losses = {number: found.n_lost for number, found in (starts or {}).items()}
        self._crash_tracker = crash_tracker or CrashTracker()
        self._stateful = tuner if isinstance(tuner, StatefulTuner) else None
        n_slots = executor.slots if settings.deterministic else None
        self._proposals = ProposalLog(self.trials, tuner, deterministic_slots=n_slots)
        self._rules = AdmissionRules(
            tuner=self._proposals.tuner_name,
            seed=settings.seed,
            space=space,
            policies=declared,
            other_search_checkpoint=other_search_checkpoint,
        )
        self._stopper = stopper
        self._observe = observe
        self._collector = collector
        self._overtaken_by = overtaken_by
        metric = None if tuner is None else tuner.metrics[0]
        self._donors = DonorResolver(self.trials, settings.on_missing_weights, other_search_checkpoint, metric)
        self._held: frozenset[int] = frozenset()
        """Waiting trials that do not start for now."""
        self._waiting: list[int] = [t.number for t in self.trials if not t.is_finished]
        self._check_recorded(map(self.trials.__getitem__, self._waiting))
        check_suggested(self.trials, space, records)
        self._slots = SlotPool(executor.slots)
        planner = planner or StagePlanner(settings.budget, PolicyPlan((Stage(name=self._proposals.stage),)))
        self._enforcer = BudgetEnforcer(planner, executor, self._slots, spent_hours, observe, settings.budget)
        for trial in self.trials:
            if trial.is_finished:
                self._enforcer.add_result(trial)
        self._enforcer.start_session()
        self._jobs = JobScheduler(
            settings.jobs,
            self._slots,
            executor,
            records,
            max_losses=settings.max_attempts,
            deterministic=settings.deterministic,
        )
        has_worked = any(trial.state in (State.COMPLETE, State.STOPPED) for trial in self.trials)
        self._failures = FailureStreak(
            settings.max_failures, has_worked=has_worked, deterministic=settings.deterministic
        )
        self._scores = scores or ProxyScores()
        self._proxies = PendingProxies(
            self._scores, self._slots, executor, max_attempts=settings.max_attempts, observe=observe
        )

    def search(self, stage: Stage) -> bool:
        """Runs the search stage, and returns whether the tuner ended it; if not, the budget did.

        Raises:
            SearchFailedError: the tuner waits forever or answers nonsense, or too many trials fail in a row.
            SearchInterruptedError: a stop was requested.
            StorageError: the storage failed, or its records contradict one another.
        """
        self.restore(stage)
        if self._stateful is None:
            return self._search(stage)
        post = self._executor.post
        try:
            self._stateful.start(
                self._proposals.lineage(),
                on_ready=lambda: post(TunerReady()),
                on_error=lambda error: post(ExecutorFailed(error)),
            )
            is_exhausted = self._search(stage)
            self._stateful.drain()
            return is_exhausted
        finally:
            self._stateful.close()

    def _search(self, stage: Stage) -> bool:
        is_exhausted = False
        while True:
            self.collect_garbage()
            self._enforce_budget(stage)
            self._submit_ready(stage)  # before a restarted job takes the slot that was freed for them
            if self._settings.jobs.requests_trials and not is_exhausted and self.has_budget(stage):
                self._jobs.restart_jobs()
            while not is_exhausted and self._may_ask(stage):
                is_exhausted = not self._ask(stage)
                if self._proposals.n_shown_at_wait is not None:
                    break
            self._submit_ready(stage)
            self._proxies.submit()
            is_open = not is_exhausted and self.has_budget(stage)
            if self._settings.jobs.requests_trials and not is_open:
                self._jobs.dismiss_idle()
            if self._slots.n_active or (is_open and self._stateful is not None and self._stateful.is_busy):
                self._handle(self._next_event(stage))
            elif not any(self._can_start(stage, trial) for trial in self._waiting_in(stage)):
                if not is_open:
                    return is_exhausted
                if not self._wait_for_tuner():
                    self._check_progress(stage)

    def _wait_for_tuner(self) -> bool:
        """Handles what a stateful tuner has posted since the ask. Returns whether there was something."""
        event = None if self._stateful is None else self._executor.next_event(self._executor.now_s() + ANSWER_S)
        if event is not None:
            self._handle(event)
        return event is not None

    def _check_progress(self, stage: Stage) -> None:
        """Raises SearchFailedError if the tuner waits for a result that can't come."""
        if self._proposals.n_shown_at_wait is not None and not self._may_ask(stage):
            raise SearchFailedError(
                f"tuner {self._proposals.tuner_name} answers WAIT at proposal {self._proposals.n_proposed}, but no "
                "trial is running. A tuner without further proposals must answer STOP"
            )

    def is_exhausted(self, stage: Stage, *, allows_epochs: bool = True) -> bool:
        """Returns whether the tuner has no more proposals. Asks it like ``search``, and runs nothing.

        Every trial of the stage must have finished.
        """
        self.restore(stage)
        while self._may_ask(stage):
            job = self._next_job()
            answer, self._proposals.n_shown_at_wait = self._ask_tuner(job, allows_epochs=allows_epochs)
            if answer is not WAIT or self._scores.take_request(len(self.trials)) is not None:
                return answer is STOP
        return False

    def restore(self, stage: Stage) -> None:
        """Restores the proposals and jobs of the search stage from its trials."""
        self._enforcer.allow_asks()
        self._proposals.restore(stage.name)
        self._jobs.restore(self._proposals.in_stage())

    def has_budget(self, stage: Stage) -> bool:
        """Returns whether the budget allows another trial of the search stage."""
        if not self._settings.budget.allows_trial(self._proposals.n_proposed):
            return False
        if not self._enforcer.may_ask(stage, self._waiting_in(stage), self._proposals.next_ask):
            return False
        return self._allows_new_job() or self._jobs.has_active

    def _may_ask(self, stage: Stage) -> bool:
        """Returns whether there are budget, a slot and the results for another ask."""
        if self._proxies.is_open:
            return False
        if not self._proposals.may_be_asked or not self._has_slot_for_proposal():
            return False
        if not self.has_budget(stage) or not self._jobs.can_choose(self._proposals.n_proposed):
            return False
        return self._allows_new_job() or self._jobs.has_started(self._next_job())

    def _has_slot_for_proposal(self) -> bool:
        n_taken = self._slots.n_taken
        if self._settings.deterministic or n_taken + len(self._waiting) < self._executor.slots:
            return True
        if self._jobs.has_request:
            return True
        in_stage = [trial for trial in map(self.trials.__getitem__, self._waiting) if self._is_search(trial)]
        waiting = [trial for trial in in_stage if not self._jobs.keeps_slot_for(trial)]
        n_ready = sum(map(self._is_ready, waiting))
        n_blocked = len(waiting) - n_ready
        return n_taken + n_ready < self._executor.slots and n_blocked < self._executor.slots

    def _next_job(self) -> int:
        """Returns the job for which the tuner is asked next."""
        return self._jobs.next_job(self._proposals.n_proposed, len(self.trials))

    def _is_search(self, trial: Trial) -> bool:
        """Returns whether the trial belongs to the search stage, and does not go on training another."""
        return trial.stage == self._proposals.stage and trial.more_epochs is None

    def _allows_new_job(self) -> bool:
        """Returns whether the budget allows a new job."""
        return self._settings.budget.allows_job(self._jobs.n_started)

    def _ask_tuner(self, job: int, *, allows_epochs: bool = True) -> tuple[Proposal | Answer, int]:
        """Returns the tuner's answer for a job, and the number of results that it was shown."""
        started_s = self._executor.now_s()
        answer = self._proposals.ask(job, allows_epochs=allows_epochs)
        self._enforcer.add_ask_time(self._executor.now_s() - started_s)
        return answer

    def _ask(self, stage: Stage, *, allows_epochs: bool = True) -> bool:
        """Asks the tuner and records its proposal. Returns False if the tuner is exhausted.

        Without time for the supernet epoch that it proposes, it is asked again, for a subnet.
        """
        index, job = self._proposals.n_proposed, self._next_job()
        answer, n_shown = self._ask_tuner(job, allows_epochs=allows_epochs)
        if answer is WAIT and self._proxies.start(len(self.trials)):
            self._enforcer.allow_asks()
            self._proposals.hold_lineage()
            return True
        if answer is WAIT or answer is STOP:
            return not allows_epochs or self._handle_refusal(answer, job, n_shown)
        self._proposals.n_shown_at_wait = None
        if isinstance(answer, Proposal) and (proxies := self._scores.known(answer.point)):
            answer = replace(answer, proxies=finite_metrics(proxies))
        if isinstance(answer, Proposal) and self._settings.jobs.requests_trials:
            answer = replace(answer, relative_duration=1)  # a job of many trials keeps its slot
        trial = admit(answer, stage, index, self.trials, self._rules)
        waiting, ask = self._waiting_in(stage), self._proposals.next_ask
        if self._stateful is None and not self._enforcer.may_propose(stage, waiting, trial, ask):
            if not (allows_epochs and is_epoch(trial)):
                return True
            self._proposals.hold_lineage()
            return self._ask(stage, allows_epochs=False)
        trial = replace(trial, learned=self._proposals.take_new_results(n_shown), job=job)
        self._propose(trial)
        self._scores.clear()
        self._jobs.add_proposed(trial)
        self._proposals.add(trial)
        return True

    def _handle_refusal(self, answer: Answer, job: int, n_shown: int) -> bool:
        """Handles WAIT or STOP. Returns False if the tuner is exhausted.

        The answer of a stateful tuner counts for the job that it was asked for; other jobs may continue.
        """
        is_for_job = self._stateful is not None and self._jobs.has_started(job)
        if answer is WAIT:
            if is_for_job:
                self._jobs.defer(job)
            else:
                self._proposals.n_shown_at_wait = n_shown
            return True
        if is_for_job:
            self._proposals.n_shown_at_wait = None
            self._jobs.end(job)
            return True
        if reason := self._proposals.stop_reason:
            self._observe(Notice(f"{self._proposals.tuner_name} has no more proposals: {reason}"))
        may_continue = self._stateful is not None and self._slots.n_taken > 0
        self._proposals.n_shown_at_wait = n_shown if may_continue else None
        return may_continue

    def retry(self, failed: Sequence[Trial]) -> None:
        """Proposes each of these trials again, in its stage, before the stages run."""
        self._check_recorded(failed)
        for trial in failed:
            self._propose(repeat(trial, self.trials))

    def continue_training(self, parent: Trial, stage: Stage, n_epochs: int) -> None:
        """Proposes a trial that continues training another; ``train_finalists`` of the stage runs it."""
        self._check_recorded([parent])
        self._propose(continue_training(parent, stage, n_epochs, self.trials, self._settings.seed))

    def _check_recorded(self, trials: Iterable[Trial]) -> None:
        check_recorded(trials, self._rules.space, self._records)

    def _propose(self, trial: Trial) -> None:
        if (why := self._overtaken_by()) is not None:  # it may not use up the numbers of the driver that replaced it
            self._handle(StopRequested(why))
        self._records.propose(trial)
        self.trials.append(trial)
        self._waiting.append(trial.number)
        self._observe(Proposed(trial))

    def train_finalists(self, stage: Stage, finalists: Iterable[Trial], *, n_trials: int | None = None) -> bool:
        """Trains finalists, in this order, as trials of a later stage.

        A finalist that has a trial in the stage is skipped, unless that was shortened or cut short. Returns False if
        there was no time for some of them.

        Args:
            stage: The later stage.
            finalists: Trials of the stage before it.
            n_trials: The number of trials of the stage, earlier sessions included. If it is smaller than the number of
                slots, trials share the torch threads of all slots, unless the search is deterministic. None: unknown,
                each trial has the threads of one slot.
        """
        in_stage = [trial for trial in self.trials if trial.stage == stage.name and trial.more_epochs is None]
        full = [trial for trial in in_stage if not (trial.reached_deadline or trial.is_shortened)]
        trained = {trial.parents[0] for trial in full if trial.parents}
        remaining = [parent for parent in finalists if parent.number not in trained]
        self._check_recorded(remaining)
        n_slots = self._slots_per_trial(n_trials, len(list(self._waiting_in(stage))) + len(remaining))
        while True:
            self.collect_garbage()
            self._enforce_budget(stage)
            before = len(self.trials), len(self._waiting)
            while (finalist := self._next_final(stage, remaining)) is not None:
                remaining.remove(finalist)
                check_unchanged(finalist, self._records)
                index = sum(t.stage == stage.name and t.is_counted for t in self.trials)
                share = self._enforcer.share_that_fits(stage, finalist, n_slots)
                self._propose(retrain(finalist, stage, index, self.trials, self._settings.seed, share))
            self._submit_ready(stage, n_slots)
            if self._slots.n_active:
                self._handle(self._next_event(stage))
            elif (len(self.trials), len(self._waiting)) == before:  # else a submitted one failed at once
                return not remaining and not any(True for _ in self._waiting_in(stage))

    def hold_back(self, stage: Stage, finalists: Iterable[Trial]) -> bool:
        """Holds waiting trials of a later stage back, except retries and those of finalists.

        Returns whether there are any. ``train_finalists`` does not start them until ``release_held`` is called.
        """
        parents = {trial.number for trial in finalists}
        waiting = [t for t in self._waiting_in(stage) if t.more_epochs is None and t.retry_of is None]
        self._held = frozenset(trial.number for trial in waiting if trial.parents[0] not in parents)
        return bool(self._held)

    def release_held(self) -> None:
        """Lets all waiting trials start."""
        self._held = frozenset()

    def fits_in_full(self, stage: Stage, finalist: Trial) -> bool:
        """Returns whether there is time to retrain a finalist in full, on one slot."""
        return self._enforcer.fits_in_full(stage, finalist)

    def finals_that_fit(self, stage: Stage, finalists: Sequence[Trial]) -> list[Trial]:
        """Returns the finalists that get a full training, the first that fit.

        One is trained in any case.
        """
        fitting = [t for t in finalists if self._enforcer.may_start(stage, parent=t)] or list(finalists)
        n_full = self._enforcer.n_full(stage, fitting[0]) if fitting else None
        return fitting if n_full is None else fitting[:n_full]

    def _slots_per_trial(self, n_trials: int | None, n_remaining: int) -> int:
        """Returns the number of slots whose torch threads each trial of a later stage gets."""
        if self._settings.deterministic or n_trials is None:
            return 1
        return max(1, self._executor.slots // max(1, n_trials, n_remaining))

    def _next_final(self, stage: Stage, finalists: Sequence[Trial]) -> Trial | None:
        """Returns the finalist to propose now; with hours, the first that starts at once and fits."""
        if not self._settings.budget.is_timed:
            return next(iter(finalists), None)
        n_waiting = sum(self._can_start(stage, trial) for trial in self._waiting_in(stage))
        if len(self._slots.running) + n_waiting >= self._executor.slots:
            return None
        return next((t for t in finalists if self._enforcer.may_start(stage, n_waiting, parent=t)), None)

    def _waiting_in(self, stage: Stage) -> Iterator[Trial]:
        """Yields the stage's waiting trials that are not held back, in the order of the queue."""
        numbers = (number for number in self._waiting if number not in self._held)
        return (trial for trial in map(self.trials.__getitem__, numbers) if trial.stage == stage.name)

    def _parent_in_plan(self, trial: Trial) -> Trial | None:
        """Returns the trial that a trial of a later stage retrains, or None."""
        return None if self._is_search(trial) else self.trials[trial.parents[0]]

    def _is_ready(self, trial: Trial) -> bool:
        """Returns whether the parents and donors of a trial have finished."""
        donors = (donor for donor in trial.proposal.weight_donors if isinstance(donor, int))
        return all(self.trials[source].is_finished for source in (*trial.parents, *donors))

    def _can_start(self, stage: Stage, trial: Trial) -> bool:
        """Returns whether a waiting trial is ready, and there is time for it."""
        return self._is_ready(trial) and self._has_time_to_start(stage, trial)

    def _has_time_to_start(self, stage: Stage, trial: Trial) -> bool:
        """Returns whether there is time for a waiting trial."""
        kind = trial.policies if self._is_search(trial) else None
        return self._enforcer.may_start(stage, parent=self._parent_in_plan(trial), kind=kind)

    def _submit_ready(self, stage: Stage, n_slots: int = 1) -> None:
        """Submits ready trials in the order proposed, as slots and time allow.

        A trial that may have crashed the driver runs first and alone. Each trial gets the torch threads of ``n_slots``.
        """
        waiting = list(self._waiting_in(stage))
        isolated = self._crash_tracker.to_isolate(t.number for t in waiting if self._can_start(stage, t))
        running, n_without_slot = self._slots.running, 0
        for number in isolated or [trial.number for trial in waiting]:
            if running and (isolated or self._crash_tracker.to_isolate(running.values())):
                return
            trial = self.trials[number]
            if not self._is_ready(trial):
                continue
            if (slot := self._jobs.slot_for(trial, is_search=self._is_search(trial))) is None:
                n_without_slot += 1
                continue
            if not self._has_time_to_start(stage, trial):
                continue
            self._waiting.remove(number)
            self._submit(stage, trial, slot, n_slots)
        if n_without_slot:
            self._jobs.free_slots(n_without_slot)

    def _submit(self, stage: Stage, trial: Trial, slot: int, n_slots: int) -> None:
        if self._crash_tracker.must_fail(trial.number):
            attempted = replace(trial, attempt=self._attempts[trial.number])
            self._fail(attempted, Reason.LOST, self._crash_tracker.error(trial.number))
            return
        is_search = self._is_search(trial)
        results = self._proposals.possible_donors(trial)
        resolved = self._donors.resolve(trial, slot, results, is_retraining=not is_search)
        if resolved.missing is not None:
            self._fail(trial, Reason.PARENT, self._donors.error(trial, resolved.missing))
            return
        attempt = self._attempts[trial.number] = self._attempts.get(trial.number, 0) + 1
        inheritance = {"replaced": resolved.replaced} if resolved.replaced else {}
        resolved_donor = resolved.donors[0].donor if resolved.donors else None
        trial = trial.start(
            attempt=attempt, slot=slot, resolved_donor=resolved_donor, inheritance=inheritance,
            code=self._settings.code,
        )  # fmt: skip
        self._update(trial)
        assignment = self._jobs.assignment(trial, resolved.donors, is_search=is_search)
        self._slots.take(slot, trial.number)
        self._enforcer.start_trial(trial)
        self._executor.submit(replace(assignment, n_slots=n_slots, train_until=self._train_until(stage, trial)))

    def _train_until(self, stage: Stage, trial: Trial) -> float | None:
        """Returns the ``time.time`` at which a trial's training should end; None: it follows its policies.

        A final that an earlier session shortened has no limit if there is none now.
        """
        parent = self._parent_in_plan(trial)
        if parent is None or trial.proposal.fidelity is None:
            return None
        n_free = self._executor.slots - len(self._slots.running)
        n_waiting = min(n_free, sum(1 for _ in self._waiting_in(stage)))
        left_s = self._enforcer.training_left_s(stage, parent, n_waiting)
        return math.inf if left_s is None else time.time() + left_s

    def _fail(self, trial: Trial, reason: Reason, error: str) -> None:
        self._add_foreign_result(self._records.commit(trial.fail(reason, error).finish(time.time())))

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
            self._proposals.delete_weights(number)
        self._observe(WeightsDeleted(tuple(sorted(plan.weights_deleted)), plan.bytes_freed, plan.over_budget))

    def _next_event(self, stage: Stage) -> Event | None:
        return self._executor.next_event(self._enforcer.next_check_s(stage))

    def _enforce_budget(self, stage: Stage) -> None:
        """Stops whatever runs after the time is over."""
        running = (self.trials[number] for number in self._slots.running.values())
        self._enforcer.enforce(stage, itertools.chain(running, self._last_trials()))
        if self._enforcer.is_over:
            self._proxies.cancel()

    def _last_trials(self) -> Iterator[Trial]:
        """Yields the last trial of each job that runs without a trial."""
        if jobs := {holder.job for holder in self._slots.without_trial()}:
            yield from {trial.job: trial for trial in self.trials if trial.job in jobs}.values()

    def _handle(self, event: Event | None) -> None:
        match event:
            case Started(trial=number):
                self._enforcer.begin_trial(number)
            case Resumed(trial=number, cost=cost):
                self._enforcer.resume_trial(replace(self.trials[number], cost=cost))
            case Reported():
                self._handle_report(event)
            case Finished(trial=trial):
                self._slots.release(trial.number)
                self._add_result(trial)
                return
            case TrialRequested(job=job):
                self._jobs.trial_requested(job)
                self._allow_ask()
            case TunerReady():
                self._allow_ask()
                return
            case ProxiesComputed():
                self._proxies.handle(event)
                return
            case ExtraResult(trial=number, result=result) if self._stateful is not None:
                if self.trials[number].is_counted:
                    self._stateful.add_extra_result(self.trials[number], result)
            case JobLeftWorker():
                self._jobs.job_left(event)
                self._allow_ask()
            case TrialLost(trial=number):
                self._handle_loss(number, event)
            case WorkersBusy(n_waiting=n_waiting, is_stuck=is_stuck):
                self._jobs.free_slots(n_waiting, is_stuck=is_stuck)
            case StopRequested(why=why, signal=signal):
                self._observe(event)
                self.interrupt()
                raise SearchInterruptedError(why, signal)
            case ExecutorFailed(error=error, job=job):
                release_trials(self._slots, self.trials, job)
                self.interrupt()
                raise error
        if event is not None:
            self._observe(event)

    def _update(self, trial: Trial) -> None:
        """Replaces an unfinished trial by its newer state."""
        self.trials[trial.number] = trial
        self._proposals.update(trial)

    def _add_result(self, trial: Trial) -> None:
        self.trials[trial.number] = trial
        self._jobs.trial_finished(trial)
        self._donors.learn([trial])
        if self._collector is not None:
            self._collector.add(trial)
        self._enforcer.add_result(trial)
        self._proposals.add_result(trial)
        if self._stateful is not None and self._is_search(trial) and trial.is_counted:
            self._stateful.add_result(trial)
            self._allow_ask()
        self._observe(Finished(trial))
        before, unfinished = self._first_uncounted(trial.stage), self._unfinished()
        if (message := self._failures.add(trial, before=before, unfinished=unfinished)) is not None:
            self.interrupt()
            raise SearchFailedError(message)

    def _add_foreign_result(self, trial: Trial) -> None:
        """Adds a result that no running attempt sent, and deletes the trial's resume points."""
        ResumePoints(self._records.files, trial.number).delete()
        self._add_result(trial)

    def _first_uncounted(self, stage: str) -> int:
        """Returns the trial number before which results count for ``max_failures``.

        All count or, if deterministic, those before the stage's first unfinished trial.
        """
        n_trials = len(self.trials)
        if not self._settings.deterministic:
            return n_trials
        if stage == self._proposals.stage:
            first = self._proposals.first_pending()
            return n_trials if first is None else first
        return min((number for number in self._unfinished() if self.trials[number].stage == stage), default=n_trials)

    def _unfinished(self) -> list[int]:
        """Returns the numbers of trials that wait or run."""
        return [n for n in (*self._waiting, *self._slots.running.values()) if not self.trials[n].is_finished]

    def _allow_ask(self) -> None:
        """Lets a stateful tuner be asked again after WAIT, without a new result."""
        if self._stateful is not None:
            self._proposals.n_shown_at_wait = None
            self._jobs.clear_deferred()

    def _handle_loss(self, number: int, event: TrialLost) -> None:
        """Queues a lost trial again, or fails it after ``max_attempts``."""
        trial = self.trials[number]
        self._slots.release(number)
        self._jobs.trial_lost(trial.job)
        if (committed := self._records.result(trial)) is not None:
            self._add_foreign_result(committed)
            return
        while self._records.read_start(number, self._attempts[number] + 1) is not None:
            self._attempts[number] += 1  # an order of a killed driver started one, so the lost one had a later number
        if not event.counts:
            self._records.publish_worker_exit(replace(trial, attempt=self._attempts[number]), event.why)
        self._losses[number] = self._losses.get(number, 0) + event.counts
        if not event.counts or self._losses[number] < self._settings.max_attempts:
            self._update(trial.lose())
            self._waiting.insert(0, number)
            return
        self._fail(trial, Reason.LOST, event.why)

    def _handle_report(self, event: Reported) -> None:
        """Adds a report to its trial, and answers whether the trial should stop."""
        trial = self.trials[event.trial].report(event.step, event.metrics)
        self._update(trial)
        if event.answer is not None:
            stop = False
            if self._stopper is not None and self._is_search(trial):
                stop = decides_stop(self._stopper, self._proposals.lineage_for_stopper(trial), trial)
            event.answer(stop)

    def interrupt(self) -> None:
        """Interrupts the running trials; see ``interrupt_trials``."""
        interrupt_trials(self._executor, self._slots, self.trials, self._observe)
