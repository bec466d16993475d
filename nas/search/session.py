"""A session of a search in the slots of one machine, without Prefect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Literal

from nas.callbacks.base import Callback
from nas.executors.events import Event, Notice, StopRequested
from nas.executors.executor import Executor
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerPool
from nas.executors.process_pool import ProcessPool
from nas.search.lease import SearchLease
from nas.search.pipeline import SearchPipeline
from nas.search.session_code import session_code
from nas.storage.sessions import past_sessions
from nas.training.job import Job

Runner = Literal["debug", "threads", "processes"]
END_TIMEOUT_S = 5.0
"""Seconds that the end of a session waits for code that can't be ended."""
ONLY_AT_REPORTS = (
    "at the end of budget.hours (or gpu_hours) a trial stops at its next report; one that never reports runs on"
)


def only_at_reports(runner: str) -> str:
    """Returns the notice of a runner in this process that the hours end no silent trial."""
    return f"runner={runner}: {ONLY_AT_REPORTS}. runner=processes kills it"


def run_session(
    pipeline: SearchPipeline,
    *,
    runner: Runner = "debug",
    url: str | None = None,
    options: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    device: str = "cpu",
    retries: bool = False,
    observe: Callable[[Event], None] = lambda event: None,
    callbacks: Sequence[Callback] = (),
    train_many: Callable[[Job], None] | None = None,
    begun: Callable[[Executor], None] = lambda executor: None,
) -> None:
    """Runs a pipeline as a session, without Prefect, in the slots of its search.

    Args:
        pipeline: The pipeline of a search whose identity is in its records.
        runner: ``processes``: a worker process for each slot. ``debug`` and ``threads``: in this process.
        url: The search's folder with its password, for worker processes; None: it has no password.
        options: The storage options of the search's root.
        code: The result of ``session_code``; by default it is called.
        device: The device of trials.
        retries: Whether FAILED trials run again, as new trials, and failed tests and exports.
        observe: Called with each event.
        callbacks: Called after ``observe``.
        train_many: Trains the trials of a job in place of the problem.
        begun: Called with the executor when the session has begun.

    Raises:
        SearchBusyError: another command drives the search.
        SearchInterruptedError: another command took it over.
    """
    prepared, records = pipeline.prepared, pipeline.records
    search = prepared.search
    code = session_code(records, prepared) if code is None else code
    number = max(past_sessions(records), default=0) + 1
    url = records.files.url if url is None else url
    runtime = replace(pipeline.runtime(url, options or {}, number), device=device)
    pool: WorkerPool
    if runner == "processes":
        pool = ProcessPool(runtime, search.slots)
    else:
        pool = InProcessPool(runtime, records.files, prepared.problem, train_many=train_many)
    executor = LocalExecutor(pool, search.slots)
    try:
        lease = SearchLease(
            records,
            settings=pipeline.session_settings(runner, search.slots),
            code=code,
            number=number,
            on_takeover=lambda why: executor.post(StopRequested(why)),
            notify=lambda text: observe(Notice(text)),
        )
    except BaseException:
        executor.close()
        raise
    try:
        if runner != "processes" and pipeline.budget.stops_trials:
            observe(Notice(ONLY_AT_REPORTS if train_many else only_at_reports(runner)))
        settings = pipeline.controller_settings(code)
        with lease.naming_takeover():
            begun(executor)
            pipeline.run(executor, lease, settings, retries=retries, observe=observe, callbacks=callbacks)
    finally:
        _end(executor, lease)


def _end(executor: LocalExecutor, lease: SearchLease) -> None:
    """Closes the executor and, once its threads have ended, the lease.

    The search stays busy until then. A thread does what may take long, or what Ctrl-C has interrupted.
    """
    thread, rest = ThreadPoolExecutor(1, thread_name_prefix="heirloom-end"), [executor.join, lease.close]
    try:
        executor.close()  # also the problem, on the thread that has built it
    except BaseException:
        rest.insert(0, executor.close)
        raise
    finally:
        *_, idle, released = map(thread.submit, rest)
        thread.shutdown(wait=False)
    if wait([idle], END_TIMEOUT_S).done:
        released.result()
    else:
        lease.mark_stopping()  # the end of the process is not the trial's fault
