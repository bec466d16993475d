"""One session of a search: its executor, its worker pool, its settings and its lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flows.cli.settings.limits import Limits
from flows.engine.context import SearchContext
from nas.callbacks.base import Callback
from nas.executors.event_queue import POLL_S
from nas.executors.events import Event, StopRequested
from nas.executors.executor import Executor
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerPool
from nas.executors.simulated import SimulatedExecutor
from nas.search.lease import SearchLease
from nas.search.pipeline import SearchPipeline
from nas.training.messages import RuntimeSpec
from nas.views.progress import Progress


@dataclass(frozen=True, slots=True)
class SessionRun:
    """A session that is about to run: the pipeline, and where and how to run it."""

    pipeline: SearchPipeline
    context: SearchContext
    limits: Limits
    code: Mapping[str, Any]
    """Fields of the session's record that describe its code."""
    session: int
    """Number of the session."""
    progress: Progress
    only_finals: bool
    callbacks: tuple[Callback, ...] = ()

    def runtime(self) -> RuntimeSpec:
        """Returns the settings of worker processes."""
        machine = self.context.machine
        return replace(
            self.pipeline.runtime(self.context.url, self.context.options, self.session),
            device=machine.device,
            gpus_per_trial=machine.gpus_per_trial,
            n_threads=machine.n_threads,
            resume_every_s=self.limits.resume_every_s,
        )

    def executor(self, pool: WorkerPool) -> LocalExecutor | SimulatedExecutor:
        """Returns an executor that runs trials without Prefect."""
        machine, prepared = self.context.machine, self.pipeline.prepared
        if machine.runner == "debug":
            return LocalExecutor(pool)
        return SimulatedExecutor(
            prepared.problem,
            self.context.records,
            slots=machine.slots,
            workers=machine.workers,
            pool=pool,
            session=self.session,
            has_stopper=prepared.stopper is not None,
            jobs_request_trials=prepared.jobs.requests_trials,
        )

    def pool(self) -> WorkerPool:
        """Opens the worker pool of the runner."""
        machine = self.context.machine
        if machine.dask is not None:
            from flows.engine.clusters import open_dask_pool

            return open_dask_pool(machine, self.runtime(), self.progress)
        if machine.runner == "ray":
            from flows.engine.clusters import open_ray_pool

            return open_ray_pool(machine, self.runtime(), self.progress)
        if machine.runner != "processes":
            return InProcessPool(self.runtime(), self.context.records.files, self.pipeline.prepared.problem)
        from nas.executors.process_pool import ProcessPool

        return ProcessPool(self.runtime(), machine.slots, gpus=machine.gpus, trial_timeout_s=machine.trial_timeout_s)

    def run(
        self,
        executor: Executor,
        pool: WorkerPool,
        flow_run: str | None,
        observe: Callable[[Event], None],
        *,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the lease of the search, calls ``begun`` and runs the pipeline.

        The search stays busy while a trial that ignored its stop runs in this process, at most until the process ends.
        """
        machine, limits = self.context.machine, self.limits
        settings = self.pipeline.controller_settings(self.code)
        settings = replace(settings, max_attempts=limits.max_attempts, max_failures=limits.max_failures)
        lease = SearchLease(
            self.context.records,
            settings=self.pipeline.session_settings(machine.runner, machine.slots, only_finals=self.only_finals),
            code=self.code,
            number=self.session,  # which the workers write into their records
            takeover=limits.takeover,
            on_takeover=lambda why: executor.post(StopRequested(why)),
            flow_run=flow_run,
            notify=self.progress.note,
            now_s=executor.now_s,
        )
        try:
            with lease.naming_takeover():
                begun()
                self.pipeline.run(
                    executor,
                    lease,
                    settings,
                    only_finals=self.only_finals,
                    retries=limits.retries_failed,
                    observe=observe,
                    callbacks=self.callbacks,
                )
        finally:
            if pool.is_idle:
                lease.close()
            else:
                lease.mark_stopping()  # the end of the process is not the trial's fault
                threading.Thread(target=_close_when_idle, args=(lease, pool), name="heirloom-end", daemon=True).start()


def _close_when_idle(lease: SearchLease, pool: WorkerPool) -> None:
    while not pool.is_idle:
        time.sleep(POLL_S)
    lease.close()
