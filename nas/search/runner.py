"""The program of a search: from the first proposal to the finalists, the winner, its test and its export."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nas.core.budget import Budget
from nas.core.errors import ActionError, ConfigurationError
from nas.core.lineage import Lineage
from nas.core.ranking import Ranking
from nas.core.trial import Trial
from nas.core.validation import check_int, path_in_errors
from nas.executors.events import Event, Finished, Notice, StopRequested
from nas.executors.executor import Executor
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.inheritance.donors.other_searches import donors_for_other_searches, other_search_checkpoint
from nas.search.budget.planner import Bound, StagePlanner, Usage
from nas.search.controller import ControllerSettings, SearchController
from nas.search.crash_tracker import CrashTracker
from nas.search.definition import PreparedSearch
from nas.search.lease import SearchLease
from nas.search.search_init import unused_weights
from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.records import Records, Starts
from nas.storage.search_records import check_best
from nas.storage.sessions import spent_hours
from nas.training.messages import RuntimeSpec
from nas.training.problem import Ability
from nas.tuners.shared.stateful import StatefulTuner

_BEST = re.compile(r"best-([0-9]{4,9})\.json")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a search has found.

    Attributes:
        lineage: All trials, finished ones in the order of their numbers.
        winner: The best finalist by the first validation metric, or None where no trial has a score.
        tests: By finalist's number ``{"trial": number, "metrics": {...}}``, with ``"error": line`` in place of the
            metrics where its test failed; empty where the problem has no ``test``.
        best: What the newest ``best-NNNN.json`` says, or None.
    """

    name: str
    url: str
    lineage: Lineage
    winner: Trial | None
    tests: dict[int, dict[str, Any]]
    best: dict[str, Any] | None


class SearchPipeline:
    """Runs what is left to do of a search, on an executor.

    Args:
        built: The search.
        records: Where it lies.
        budget: For the search stage.
        finalists: How many of the best the final stage trains.
        retention: Which weights are kept, and how much the disk may hold.

    Attributes:
        tuner_has_ended_it: Whether ``run`` has ended the search stage as the tuner had nothing more to propose.
    """

    def __init__(
        self,
        prepared: PreparedSearch,
        records: Records,
        budget: Budget,
        *,
        finalists: int = 2,
        retention: Retention | None = None,
    ) -> None:
        check_int("finalists", finalists, 1)
        if prepared.search.deterministic and budget.is_timed:
            raise ConfigurationError("budget.hours and gpu_hours do not go with deterministic: measured time decides")
        if prepared.search.deterministic and budget.jobs is not None:
            raise ConfigurationError("budget.jobs does not go with deterministic, where each slot has its own jobs")
        self.prepared = prepared
        self.records = records
        self.budget = budget
        self.finalists = finalists
        self.retention = retention or Retention()
        self.tuner_has_ended_it = False
        self.metric = prepared.problem.metrics[0]
        self.ranking = Ranking(prepared.plan, prepared.problem.metrics, finalists, prepared.tuner.ranked)

    def ended_by(self) -> str | None:
        """What ended the search, where nothing is left to do: a part of the budget (``trials``), or ``tuner``; or None.

        The finals, the winner and its export are there, and the budget is spent or the tuner has nothing more to
        propose, which it is asked for.
        """
        trials, _ = self.records.load()
        plan, closed = self.prepared.plan, self._closed(trials)
        unfinished = {t.stage for t in trials if not t.is_finished}
        unfinished |= {stage.name for stage in plan.later if self.ranking.next_finalists(trials, stage)}
        if any(closed[stage] is None for stage in unfinished) or not self._is_selected(trials):
            return None
        for stage in plan.stages:  # what is left to do has no time
            if stage.name in unfinished:
                return closed[stage.name]
        if not self.budget.allows_trial(sum(t.stage == plan.search.name for t in trials)):
            return "trials"
        if (bound := closed[plan.search.name]) is not None:
            return bound
        if self._jobs_are_spent(trials):
            return "jobs"
        return "tuner" if self._tuner_is_exhausted(trials) else None

    def _closed(self, trials: Sequence[Trial]) -> dict[str, Bound | None]:
        """By stage, which bound forbids that a trial of it begins."""
        planner = self._planner(lambda: trials)
        for trial in trials:
            if trial.is_finished:
                planner.learn(trial)
        wall_s = 0.0 if self.budget.hours is None else 3600 * spent_hours(self.records)
        spent = Usage(wall_s, math.fsum(t.cost.get("gpu_seconds", 0.0) for t in trials))
        return {stage.name: planner.closed_by(stage, spent) for stage in self.prepared.plan.stages}

    def _planner(self, trials: Callable[[], Sequence[Trial]]) -> StagePlanner:
        slots = self.prepared.search.slots
        return StagePlanner(
            self.budget,
            self.prepared.plan,
            slots,
            to_come=lambda: self.ranking.n_trials_left(trials()),
            has_selection=True,
        )

    def _jobs_are_spent(self, trials: Sequence[Trial]) -> bool:
        """Returns whether no job may begin, and none lives."""
        in_stage = [t for t in trials if t.stage == self.prepared.plan.search.name]
        if self.budget.allows_job(len({t.job for t in in_stage})):
            return False
        return not self.prepared.jobs.living(in_stage, self.records.left_jobs())

    def _is_selected(self, trials: Sequence[Trial]) -> bool:
        """Returns whether the finalists are tested and the winner is exported, or there is none."""
        winner = self.ranking.winner(trials)
        if winner is None:
            return True
        best = newest_best(self.records)
        finalists = {t.number for t in self.ranking.tested(trials)}
        has_test = Ability.TEST in self.prepared.problem.abilities
        tested = not has_test or self.records.tests().keys() >= finalists
        return best is not None and best["trial"] == winner.number and tested

    def _tuner_is_exhausted(self, trials: Sequence[Trial]) -> bool:
        """Asks the tuner by a loop that runs nothing."""
        search = self.prepared.search
        runtime = RuntimeSpec(problem=search.problem, url=self.records.files.url, options={})
        pool = InProcessPool(runtime, self.records.files, self.prepared.problem)
        settings = ControllerSettings(budget=self.budget, deterministic=search.deterministic, jobs=self.prepared.jobs)
        controller = SearchController(
            self.records, LocalExecutor(pool, search.slots), settings, trials=trials, tuner=self.prepared.tuner
        )
        return controller.is_exhausted(self.prepared.plan.search)

    def run(
        self,
        executor: Executor,
        lease: SearchLease,
        settings: ControllerSettings,
        *,
        only_finals: bool = False,
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Runs the stages, tests the finalists, exports the winner; all of it durable as it goes."""
        trials, starts = self.records.load()
        plan, init = self.prepared.plan, self.prepared.search.init
        init_is_checked = init.weights is None

        def take_note(event: Event) -> None:
            nonlocal init_is_checked
            if isinstance(event, StopRequested):
                lease.mark_stopping()
            observe(event)
            if init_is_checked or not isinstance(event, Finished) or event.trial.inherited is None:
                return
            if event.trial.resolved_donor == init.weights:
                init_is_checked = True
                if (why := unused_weights(init, event.trial)) is not None:
                    observe(Notice(why))

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
            observe=take_note,
            collector=self._collector(lease, executor),
        )
        while True:
            n_trials = len(controller.trials)
            if only_finals:
                controller.recall(plan.search)
            else:
                self.tuner_has_ended_it = controller.search(plan.search)
            self._run_later_stages(controller)
            controller.collect_garbage(at_end=True)  # room for the export
            began_s = executor.now_s()
            if self._select_winner(executor, controller.trials):
                planner.learn_selection(executor.now_s() - began_s)
            controller.collect_garbage(at_end=True)
            if only_finals:
                return
            if not self.budget.is_timed:
                break
            if self.tuner_has_ended_it or isinstance(self.prepared.tuner, StatefulTuner):  # begun once in a session
                break
            may_go_on = len(controller.trials) > n_trials and controller.may_go_on(plan.search)
            if not (may_go_on or planner.let_go()):
                break
        n_lacking = sum(len(self.ranking.next_finalists(controller.trials, stage)) for stage in plan.later)
        if n_lacking and self.budget.is_timed:
            observe(
                Notice(
                    f"no time was left to train {n_lacking} of the finalists as they stand now: `flows.final` does, or "
                    "more hours"
                )
            )
        lease.mark_complete()

    def _run_later_stages(self, controller: SearchController) -> None:
        for stage in self.prepared.plan.later:
            n_trials = self.ranking.n_finalists_of(controller.trials, stage)
            controller.final(stage, [], n_trials=n_trials)  # those that an earlier session left unfinished
            while chosen := self.ranking.next_finalists(controller.trials, stage):
                if not controller.final(stage, chosen, n_trials=n_trials):
                    break

    def _crash_tracker(
        self, starts: Mapping[int, Starts], lease: SearchLease, settings: ControllerSettings
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

    def _select_winner(self, executor: Executor, trials: Sequence[Trial]) -> bool:
        """Chooses the winner by validation, then tests the finalists (once each), then exports the winner.

        False where that one was exported already, or there is none.
        """
        winner = self.ranking.winner(trials)
        if winner is None:
            return False
        tests = self.records.tests()
        if Ability.TEST in self.prepared.problem.abilities:
            for trial in self.ranking.tested(trials):
                if trial.number not in tests:
                    tests[trial.number] = self._test(executor, trial)
        best = newest_best(self.records)
        if best is not None and best["trial"] == winner.number:
            return False
        exported = self._export(executor, winner)
        lineage = Lineage.of(trials)
        record = {
            "trial": winner.number,
            "point": winner.point,
            "metrics": dict(winner.metrics),
            "test": tests.get(winner.number),
            "ancestors": [t.number for t in lineage.ancestors(winner.number)],
            "time": time.time(),
            **exported,
        }
        number = 1 if best is None else int(best["number"]) + 1
        self.records.publish(f"best-{number:04d}.json", {"number": number, **record})
        return True

    def _export(self, executor: Executor, winner: Trial) -> dict[str, Any]:
        try:
            return dict(executor.call("export", winner))
        except ActionError as error:  # its weights are published with the trial all the same
            return {"export": None, "files": [], "missing": {"export": str(error).strip().splitlines()[0]}}

    def _test(self, executor: Executor, trial: Trial) -> dict[str, Any]:
        try:
            outcome: dict[str, Any] = {"metrics": dict(executor.call("test", trial))}
        except ActionError as error:  # the problem's own code: a finalist that can't be tested is data
            outcome = {"error": str(error).strip().splitlines()[0]}
        record = {"trial": trial.number, **outcome}
        self.records.publish(f"tests/{trial.number:06d}.json", record)
        return record

    def summary(self) -> Summary:
        """What the records say now."""
        trials, _ = self.records.load()
        url = self.records.files.url
        name = url.rstrip("/").rpartition("/")[2]
        tests = self.records.tests()
        return Summary(name, url, Lineage.of(trials), self.ranking.winner(trials), tests, newest_best(self.records))


def newest_best(records: Records) -> dict[str, Any] | None:
    """Returns the newest ``best-NNNN.json``, or None."""
    numbers = [int(found[1]) for name in records.files.names("") if (found := _BEST.fullmatch(name))]
    if not numbers:
        return None
    path = f"best-{max(numbers):04d}.json"
    record = records.read(path)
    if record is not None:
        with path_in_errors(records.place(path)):
            check_best(record, max(numbers))
    return record


def run_here(
    pipeline: SearchPipeline,
    *,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    observe: Callable[[Event], None] = lambda event: None,
) -> None:
    """Runs the program in this process, one trial at a time, in a session of its own.

    Args:
        program: What is left to do of a search that has its identity.
        options: How its root was opened.
        device: Where trials train.
        observe: Told of every event.
    """
    prepared, records = pipeline.prepared, pipeline.records
    search = prepared.search
    lease = SearchLease(records, settings={"runner": "debug"})
    runtime = RuntimeSpec(
        problem=search.problem,
        url=records.files.url,
        options=dict(options or {}),
        session=lease.number,
        device=device,
        n_threads=search.n_threads,
        has_stopper=search.stopper is not None,
        jobs_request_trials=prepared.jobs.asks,
    )
    executor = LocalExecutor(InProcessPool(runtime, records.files, prepared.problem))
    try:
        settings = ControllerSettings(
            seed=search.seed,
            budget=pipeline.budget,
            on_missing_weights=search.on_missing_weights,
            deterministic=search.deterministic,
            jobs=prepared.jobs,
        )
        pipeline.run(executor, lease, settings, observe=observe)
    finally:
        executor.close()
        lease.close()
