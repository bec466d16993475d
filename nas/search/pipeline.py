"""The pipeline of a search: its stages, then the finalists' tests, the winner and its export."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.callbacks.callback_list import CallbackList
from nas.callbacks.extras import log_folder
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.policy import Policy, Stage
from nas.core.ranking import Export, Ranking
from nas.core.redaction import private_texts, public_line, remove_passwords
from nas.core.supernet import is_epoch
from nas.core.tracebacks import text_of
from nas.core.trial import State, Trial
from nas.core.validation import check_choice, check_int
from nas.executors.events import Event, Finished, Notice, Reported, Started, StopRequested
from nas.executors.executor import Executor
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.inheritance.donors.other_searches import donors_for_other_searches, other_search_checkpoint
from nas.search.admission import not_repeated
from nas.search.budget.planner import Bound, StagePlanner, Usage
from nas.search.controller import ControllerSettings, SearchController
from nas.search.crash_tracker import CrashTracker
from nas.search.definition import PreparedSearch
from nas.search.finals import WinnerSelection, newest_best
from nas.search.lease import SearchLease
from nas.search.more_epochs import MoreEpochs
from nas.search.search_init import unused_weights
from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.records import Records, StartedAttempts
from nas.storage.search_records import code_id
from nas.storage.sessions import last_export, search_id, spent_hours
from nas.training.messages import LOG_DIR, RuntimeSpec
from nas.training.problem import Ability
from nas.tuners.shared.stateful import StatefulTuner


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a search.

    Attributes:
        lineage: All trials; finished ones in the order of their numbers.
        winner: The best finalist by the first validation metric, or None if no trial has a score.
        tests: By number of the finalist: ``{"trial": number, "metrics": {...}}``. A failed test has ``"error": line``
            without metrics, or with those that it found before. Empty if the problem has no ``test``.
        best: The content of the newest ``best-NNNN.json``, or None.
    """

    name: str
    url: str
    lineage: Lineage
    winner: Trial | None
    tests: dict[int, dict[str, Any]]
    best: dict[str, Any] | None


def _check_log_dir(log_dir: str, records: Records) -> None:
    """Checks that the search's folder of loggers is outside the search's records.

    Raises:
        ConfigurationError: it is inside.
    """
    if (stored := records.files.local_path("search.json")) is None:
        return
    folder = os.path.realpath(os.path.dirname(stored))
    logs = os.path.realpath(os.path.join(log_dir, os.path.basename(folder)))
    if os.path.commonpath([folder, logs]) == folder:
        raise ConfigurationError(
            f"log_dir={log_dir}: must be outside the storage, in which the search's folder holds its records only. "
            "Name another."
        )


class SearchPipeline:
    """Runs the remaining work of a search on an executor.

    Args:
        prepared: The search with its parts built.
        records: The search's records.
        budget: The limits of the search stage.
        finalists: The number of trials for a later stage whose plan does not set it.
        retention: The rules for deleting weights; by default all are kept.
        gpus_per_trial: GPUs of each trial, for a budget of GPU-hours.
        export: The trials that can become the winner; see ``nas.core.ranking.competitors``. None: as in the last
            session, ``final`` in a new search.
        log_dir: The local folder of loggers, which has a folder for each search.
        more_epochs: Goes on with the training of a trial, instead of training finalists.
        threads_help: Whether a final with the torch threads of idle slots takes less time, as on a CPU.

    Attributes:
        ended_by_tuner: Whether ``run`` ended the search stage because the tuner had no more proposals.
    """

    def __init__(
        self,
        prepared: PreparedSearch,
        records: Records,
        budget: Budget,
        *,
        finalists: int = 2,
        retention: Retention | None = None,
        gpus_per_trial: float = 1.0,
        export: Export | None = None,
        log_dir: str = LOG_DIR,
        more_epochs: MoreEpochs | None = None,
        threads_help: bool = False,
    ) -> None:
        check_int("finalists", finalists, 1)
        if export is not None:
            check_choice("export", export, get_args(Export))
        if retention is not None and not isinstance(retention, Retention):
            raise ConfigurationError(f"retention={retention!r:.100}: must be a nas.Retention. Pass Retention(keep=...)")
        self.log_dir = log_folder(log_dir)
        prepared.search.check_budget(budget)
        if self.log_dir != log_folder(LOG_DIR):  # the default may be the root of a search without loggers
            _check_log_dir(self.log_dir, records)
        self.prepared = prepared
        self.records = records
        records.private = private_texts(prepared.problem)
        self.budget = budget
        self.finalists = finalists
        self.retention = retention or Retention()
        self.more_epochs = more_epochs
        self._gpus_per_trial = gpus_per_trial
        self._threads_help = threads_help
        self.ended_by_tuner = False
        self._trials: Sequence[Trial] = ()  # of the session that runs
        rule = last_export(records) if export is None else export
        self.ranking = Ranking(prepared.plan, prepared.problem.metrics, finalists, prepared.tuner.ranked, rule)
        has_test = Ability.TEST in prepared.problem.abilities
        self._selection = WinnerSelection(
            records, self.ranking, prepared.problem.space, has_test=has_test, remarks=prepared.problem.remarks
        )

    @property
    def name(self) -> str:
        """The name of the search."""
        return self.records.files.name

    def hours_left(self) -> float | None:
        """Returns the hours after which the next session stops its trials, or None."""
        hours = self.budget.hours if self.budget.stops_trials else None
        return None if hours is None else max(0.0, hours - spent_hours(self.records))

    def ended_by(self) -> str | None:
        """Returns what ended the search: a field of the budget, or ``tuner``.

        None: the search is not finished. A finished search has its finals and an exported winner. Its budget is used
        up, or its tuner, which is asked, has no more proposals.
        """
        trials, _ = self.records.load()
        plan, planned = self.prepared.plan, self._planned(trials)
        left = self._finalists_left(trials, *planned)
        bounds = self._bounds(trials, left, *planned)
        unfinished = {t.stage for t in trials if not t.is_finished} | {name for name in left if left[name]}
        if any(bounds[stage] is None for stage in unfinished) or not self._selection.is_done(trials):
            return None
        for stage in plan.stages:  # there is no time for the remaining work
            if stage.name in unfinished:
                return bounds[stage.name]
        if not self.budget.allows_trial(sum(t.stage == plan.search.name and t.is_counted for t in trials)):
            return "trials"
        if (bound := bounds[plan.search.name]) is not None:
            return bound
        if self._jobs_are_used_up(trials):
            return "jobs"
        if self._tuner_is_exhausted(trials):
            return "tuner"
        bound = self._bound_of_epochs(trials, *planned)
        return bound if bound and self._tuner_is_exhausted(trials, allows_epochs=False) else None

    def has_finals(self) -> bool:
        """Returns whether the winner is exported, and no trial is left to train.

        Raises:
            ConfigurationError: the trial of ``more_epochs`` can't go on.
        """
        trials, _ = self.records.load()
        if self.more_epochs is not None:
            is_left = any(not t.is_finished and t.more_epochs is not None for t in trials)
            return not is_left and self._trial_to_continue(trials) is None and self._selection.is_done(trials)
        left = self._finalists_left(trials, *self._planned(trials))
        is_left = any(left.values()) or any(not trial.is_finished and trial.stage in left for trial in trials)
        return not is_left and self.ranking.winner(trials) is not None and self._selection.is_done(trials)

    def check_finals(self, code: Mapping[str, Any]) -> None:
        """Checks that a trial of the search stage ran a session's code.

        Args:
            code: The result of ``session_code``.

        Raises:
            ConfigurationError: all scores are those of other code, so that no trial could win.
        """
        newest, stage = code_id(code["code"]["problem"]), self.prepared.plan.search.name
        scored = [t for t in self.records.load()[0] if t.stage == stage and t.state == State.COMPLETE]
        if scored and not any(t.code in (None, newest) for t in scored):
            raise ConfigurationError(
                "code=changed: no trial of the search stage ran the changed code, so no trial could win. "
                "Run the command `search` with code=changed and a larger budget first"
            )

    def can_retry(self) -> bool:
        """Returns whether FAILED trials were not repeated, or a test or the export failed."""
        trials = self.records.load()[0]
        return bool(not_repeated(trials)) or self._selection.can_retry(trials)

    def _finalists_left(self, trials: Sequence[Trial], planner: StagePlanner, spent: Usage) -> dict[str, list[Trial]]:
        """Returns the finalists to retrain, by later stage."""

        def fits_in_full(stage: Stage, finalist: Trial) -> bool:
            return planner.fits_in_full(stage, spent, finalist)

        return {
            stage.name: self.ranking.next_finalists(trials, stage, partial(fits_in_full, stage))
            for stage in self.prepared.plan.later
        }

    def _planned(self, trials: Sequence[Trial]) -> tuple[StagePlanner, Usage]:
        """Returns a planner that knows these trials, and the time that the search has used."""
        planner = self._planner(lambda: trials)
        for trial in trials:
            if trial.is_finished:
                planner.learn(trial)
        wall_s = 0.0 if self.budget.hours is None else 3600 * spent_hours(self.records)
        return planner, Usage(wall_s, math.fsum(map(planner.gpu_s, trials)))

    def _bounds(
        self, trials: Sequence[Trial], finalists: Mapping[str, Sequence[Trial]], planner: StagePlanner, spent: Usage
    ) -> dict[str, Bound | None]:
        """Returns, by stage, the bound that leaves no time for another trial.

        Args:
            trials: All trials.
            finalists: The finalists to retrain, by later stage.
            planner: Knows the trials.
            spent: The time that the search has used.
        """
        bounds = {stage.name: planner.closed_by(stage, spent) for stage in self.prepared.plan.stages}
        for stage in self.prepared.plan.later:
            parents = [trials[t.parents[0]] for t in trials if t.stage == stage.name and not t.is_finished]
            parents += finalists[stage.name]
            found = [planner.closed_by(stage, spent, parent) for parent in parents]
            if found:
                bounds[stage.name] = None if None in found else found[0]
        return bounds

    def _bound_of_epochs(self, trials: Sequence[Trial], planner: StagePlanner, spent: Usage) -> Bound | None:
        """Returns the bound that leaves no time for another supernet epoch, or None."""
        kinds = {trial.policies for trial in trials if is_epoch(trial)}
        found = (planner.closed_by(self.prepared.plan.search, spent, kind=kind) for kind in kinds)
        return next(filter(None, found), None)

    def _planner(self, trials: Callable[[], Sequence[Trial]]) -> StagePlanner:
        slots = self.prepared.search.slots
        return StagePlanner(
            self.budget,
            self.prepared.plan,
            slots,
            n_left=lambda: self.ranking.n_trials_left(trials()),
            has_selection=True,
            gpus_per_trial=self._gpus_per_trial,
            shortens=self.prepared.problem.shortens_finals,
            threads_help=self._threads_help,
        )

    def _jobs_are_used_up(self, trials: Sequence[Trial]) -> bool:
        """Returns whether no job is active and the budget allows no new one."""
        in_stage = [t for t in trials if t.stage == self.prepared.plan.search.name and t.is_counted]
        if self.budget.allows_job(len({t.job for t in in_stage})):
            return False
        return not self.prepared.jobs.active_jobs(in_stage, self.records.ended_jobs())

    def _tuner_is_exhausted(self, trials: Sequence[Trial], *, allows_epochs: bool = True) -> bool:
        """Asks the tuner, without running a trial."""
        search = self.prepared.search
        runtime = RuntimeSpec(problem=search.problem, url=self.records.files.url, options={})
        pool = InProcessPool(runtime, self.records.files, self.prepared.problem)
        settings = ControllerSettings(budget=self.budget, deterministic=search.deterministic, jobs=self.prepared.jobs)
        controller = SearchController(
            self.records,
            LocalExecutor(pool, search.slots),
            settings,
            trials=trials,
            tuner=self.prepared.tuner,
            scores=self.prepared.scores,
        )
        return controller.is_exhausted(self.prepared.plan.search, allows_epochs=allows_epochs)

    def run(
        self,
        executor: Executor,
        lease: SearchLease,
        settings: ControllerSettings,
        *,
        only_finals: bool = False,
        retries: bool = False,
        observe: Callable[[Event], None] = lambda event: None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Runs the stages, tests the finalists and exports the winner.

        Args:
            executor: Runs the trials.
            lease: The right to drive the search.
            settings: The controller's settings.
            only_finals: Whether trials of the search stage are left out.
            retries: Whether FAILED trials run again, as new trials, and failed tests and exports.
            observe: Called with each event.
            callbacks: Called after ``observe``.

        Raises:
            ConfigurationError: a callback can't work.
        """
        calls = CallbackList(callbacks, lambda text: observe(Notice(text)))
        try:
            if callbacks:
                calls.start(self._info(lease.number))
            self._run(executor, lease, settings, only_finals, retries, observe, calls)
        except BaseException as error:
            stopped = error
            calls.end(lambda: self._outcome(stopped))
            raise
        calls.end(self._outcome)

    def _run(
        self,
        executor: Executor,
        lease: SearchLease,
        settings: ControllerSettings,
        only_finals: bool,
        retries: bool,
        observe: Callable[[Event], None],
        calls: CallbackList,
    ) -> None:
        trials, starts = self.records.load()
        self._trials = trials
        plan = self.prepared.plan
        if not only_finals and (note := self._startup_note()) is not None:
            observe(Notice(note))
        planner = self._planner(lambda: controller.trials)
        controller = SearchController(
            self.records,
            executor,
            settings,
            trials=trials,
            starts=starts,
            crash_tracker=self._crash_tracker(starts, lease, settings),
            tuner=self.prepared.tuner,
            space=self.prepared.problem.space,
            declared=self.prepared.problem.policies,
            stopper=self.prepared.stopper,
            spent_hours=lease.spent_hours,
            planner=planner,
            other_search_checkpoint=partial(other_search_checkpoint, self.records),
            observe=self._observer(observe, lease, calls),
            collector=self._collector(lease, executor),
            scores=self.prepared.scores,
            overtaken_by=lease.overtaken_by,
        )
        self._trials = controller.trials
        try:
            if retries:
                controller.retry(not_repeated(trials))
            self._run_stages(controller, executor, planner, only_finals, retries)
        except KeyboardInterrupt:  # commands post StopRequested
            lease.mark_stopping()
            controller.interrupt()
            raise
        if only_finals:
            return
        n_left = sum(len(self._next_finalists(controller, stage)) for stage in plan.later)
        if n_left and self.budget.is_timed:
            text = f"{n_left} finalists were not trained: the time budget is used up."
            observe(Notice(f"{text} Run the command `final` or raise budget.hours (or gpu_hours)"))
        lease.mark_complete()

    def _observer(
        self, observe: Callable[[Event], None], lease: SearchLease, calls: CallbackList
    ) -> Callable[[Event], None]:
        """Returns the observer of all events, which passes on one notice of each kind."""
        check_init, check_weights = self._init_check(observe), _weights_check(observe)
        shown: set[str] = set()

        def is_first(text: str) -> bool:
            n_shown = len(shown)
            shown.add(text.partition(":")[0])
            return len(shown) > n_shown

        def observe_all(event: Event) -> None:
            if isinstance(event, StopRequested):
                lease.mark_stopping()
            if isinstance(event, Notice) and not is_first(event.text):  # from a worker
                return
            observe(event)
            _call(calls, event, self._trials)
            if isinstance(event, Finished):
                check_init(event.trial)
                check_weights(event.trial)
                for text in filter(is_first, event.trial.inheritance.get("warnings", ())):
                    observe(Notice(f"trial {event.trial.number}: {text}"))

        return observe_all

    def _run_stages(
        self, controller: SearchController, executor: Executor, planner: StagePlanner, only_finals: bool, retries: bool
    ) -> None:
        plan = self.prepared.plan
        while True:
            n_trials = len(controller.trials)
            if only_finals:
                controller.restore(plan.search)
            else:
                self.ended_by_tuner = controller.search(plan.search)
            if self.more_epochs is None:
                self._run_later_stages(controller)
            else:
                self._run_more_epochs(controller, self.more_epochs)
            controller.collect_garbage(at_end=True)  # frees disk space for the export
            started_s = executor.now_s()
            if self._selection.select_winner(executor, controller.trials, retries=retries):
                planner.learn_selection(executor.now_s() - started_s)
            retries = False
            controller.collect_garbage(at_end=True)
            if only_finals or not self.budget.is_timed:
                return
            if self.ended_by_tuner or isinstance(self.prepared.tuner, StatefulTuner):  # it starts once a session
                return
            may_continue = len(controller.trials) > n_trials and controller.has_budget(plan.search)
            if not (may_continue or planner.release_reserve()):
                return

    def _startup_note(self) -> str | None:
        """Returns a line if the budget ends before the tuner uses results, else None."""
        first, n_trials = self.prepared.tuner.startup_trials, self.budget.trials
        return None if first is None or n_trials is None else first.note(n_trials)

    def _info(self, session: int) -> SearchInfo:
        _check_log_dir(self.log_dir, self.records)
        return SearchInfo(
            name=self.name,
            url=remove_passwords(self.records.files.url),
            id=search_id(self.records),
            session=session,
            metrics=self.prepared.problem.metrics,
            stages=tuple(stage.name for stage in self.prepared.plan.stages),
            budget=self.budget,
            identity=self.prepared.identity,
            lineage=Lineage.of(self.records.load()[0]),
            log_dir=os.path.join(self.log_dir, self.name),
        )

    def _outcome(self, error: BaseException | None = None) -> SearchOutcome:
        return SearchOutcome(
            lineage=Lineage.of(self._trials),
            winner=self.ranking.winner(self._trials),
            tests=self.records.tests() if error is None else {},
            error=None if error is None else public_line(text_of(error)) or type(error).__name__,
        )

    def _run_later_stages(self, controller: SearchController) -> None:
        for stage in self.prepared.plan.later:
            n_trials = self.ranking.n_finalists_of(controller.trials, stage)
            holds = False
            if self.budget.is_timed:
                finalists = self.ranking.finalists(controller.trials, stage)
                holds = controller.hold_back(stage, controller.finals_that_fit(stage, finalists))
            # Unfinished ones of earlier sessions; with hours, their lengths were chosen for the threads of all slots.
            controller.train_finalists(stage, [], n_trials=1 if self.budget.is_timed else n_trials)
            while chosen := self._next_finalists(controller, stage):
                fitting = controller.finals_that_fit(stage, chosen)
                if len(fitting) < len(chosen):
                    chosen, n_trials = fitting, len(fitting)
                if not controller.train_finalists(stage, chosen, n_trials=n_trials):
                    break
            if holds:
                controller.release_held()
                controller.train_finalists(stage, [], n_trials=1)

    def _next_finalists(self, controller: SearchController, stage: Stage) -> list[Trial]:
        return self.ranking.next_finalists(controller.trials, stage, partial(controller.fits_in_full, stage))

    def _trial_to_continue(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the trial that ``more_epochs`` continues, or None if nothing is to be proposed."""
        more = self.more_epochs
        if more is None:
            return None
        parent = more.parent(trials, self.ranking.winner(trials), is_selected=self._selection.is_done(trials))
        if parent is not None:
            more.check(parent, self.prepared.problem)
        return parent

    def n_trials_by_stage(self, trials: Sequence[Trial], n_trials: int | None) -> dict[str, int | None]:
        """Returns the expected number of trials by stage.

        A later stage has at most as many as the stage before. Known retries and trials of ``more_epochs`` come on top.
        Those that the session will propose are left out. With ``more_epochs`` no finalist is trained.

        Args:
            trials: All trials.
            n_trials: The number of the search stage's trials that get a score; None: not known.
        """
        if self.more_epochs is not None:
            n_known = Counter(trial.stage for trial in trials)
            return {stage.name: n_known[stage.name] for stage in self.prepared.plan.stages}
        expected = self.ranking.n_trials_by_stage(n_trials)
        for before, stage in itertools.pairwise(expected):
            if (n_before := expected[before]) is not None:
                expected[stage] = min(expected[stage] or 0, n_before)
        n_on_top = Counter(trial.stage for trial in trials if not trial.is_counted)
        return {stage: None if n is None else n + n_on_top[stage] for stage, n in expected.items()}

    def _run_more_epochs(self, controller: SearchController, more: MoreEpochs) -> None:
        stage = self.prepared.plan.stages[-1]
        if (parent := self._trial_to_continue(controller.trials)) is not None:
            controller.continue_training(parent, stage, more.n_epochs)
        controller.train_finalists(stage, [], n_trials=1)

    def _init_check(self, observe: Callable[[Event], None]) -> Callable[[Trial], None]:
        """Returns a function that takes finished trials, and reports unused initial weights once."""
        init = self.prepared.search.init
        is_checked = init.weights is None

        def check(trial: Trial) -> None:
            nonlocal is_checked
            replaced = trial.inheritance.get("replaced", {})
            is_lost = init.weights in replaced and replaced[init.weights] is None
            is_used = trial.inherited is not None and trial.resolved_donor == init.weights
            if is_checked or not (is_lost or is_used):
                return
            is_checked = True
            if (text := unused_weights(init, trial)) is not None:
                observe(Notice(text))

        return check

    def _crash_tracker(
        self, starts: Mapping[int, StartedAttempts], lease: SearchLease, settings: ControllerSettings
    ) -> CrashTracker:
        if self.prepared.problem.is_apart:
            return CrashTracker()
        return CrashTracker.of(self.records, starts, lease, settings.max_attempts)

    def _collector(self, lease: SearchLease, executor: Executor) -> GarbageCollector | None:
        """Returns the garbage collector, or None if the retention plan keeps everything."""
        if self.retention.keeps_all:
            return None
        settings = CollectorSettings(
            metrics=self.ranking.metrics,
            finalists=self.ranking.weights_to_keep,
            other_searches=partial(donors_for_other_searches, self.records),
            uses_ancestors=self.prepared.search.on_missing_weights == "ancestor",
            slots=executor.slots,
            session=lease.number,
        )
        return GarbageCollector(self.records, self.retention, settings)

    def controller_settings(self, code: Mapping[str, Any]) -> ControllerSettings:
        """Returns the controller's settings, with the code of a session's record."""
        search = self.prepared.search
        return ControllerSettings(
            seed=search.seed,
            budget=self.budget,
            on_missing_weights=search.on_missing_weights,
            deterministic=search.deterministic,
            jobs=self.prepared.jobs,
            code=code_id(code["code"]["problem"]),
        )

    def runtime(self, url: str, options: Mapping[str, Any], session: int) -> RuntimeSpec:
        """Returns the settings of worker processes, on a CPU with the search's threads.

        Args:
            url: The search's folder, with its password.
            options: The storage options of the search's root.
            session: The number of the session.
        """
        search = self.prepared.search
        return RuntimeSpec(
            problem=search.problem,
            url=url,
            options=dict(options),
            code=self.prepared.code["problem"],
            session=session,
            n_threads=search.n_threads,
            has_stopper=search.stopper is not None,
            jobs_request_trials=self.prepared.jobs.requests_trials,
            log_dir=self.log_dir,
        )

    def session_settings(self, runner: str, slots: int, *, only_finals: bool = False) -> dict[str, Any]:
        """Returns the settings that the record of a session holds.

        Args:
            runner: The runner's name.
            slots: The number of trials at a time.
            only_finals: Whether trials of the search stage are left out, so that the budget does not matter.
        """
        return {
            "runner": runner,
            "slots": slots,
            **({} if only_finals else {"budget": asdict(self.budget)}),
            "finalists": self.finalists,
            "export": self.ranking.export,
            **asdict(self.retention),
        }

    def summary(self) -> Summary:
        """Returns the results in the records."""
        trials, _ = self.records.load()
        tests = self.records.tests()
        return Summary(
            self.name,
            self.records.files.url,
            Lineage.of(trials),
            self.ranking.winner(trials),
            tests,
            newest_best(self.records),
        )


def _weights_check(observe: Callable[[Event], None]) -> Callable[[Trial], None]:
    """Returns a function that reports the first finished trial without weights for its children."""
    is_told = False

    def check(trial: Trial) -> None:
        nonlocal is_told
        shares = Policy.SHARE_PARAMS in trial.policies and Policy.SKIP_TRAIN not in trial.policies
        if is_told or not shares or trial.state != State.COMPLETE or trial.checkpoint is not None:
            return
        is_told = True
        observe(
            Notice(
                f"trial {trial.number} saved no weights: children can't inherit from it, and it is exported without "
                "them. Call run.save(network) in train"
            )
        )

    return check


def _call(calls: CallbackList, event: Event, trials: Sequence[Trial]) -> None:
    """Calls the callbacks' method for an event, if it has one."""
    match event:
        case Started(trial=number):
            calls.trial_started(trials[number])
        case Reported(trial=number):
            calls.trial_reported(trials[number])
        case Finished(trial=trial):
            calls.trial_ended(trial)
