"""Runs a search's pipeline with Prefect, or in this process alone.

The flow runs on a thread of its own. The main thread handles signals, and it can end the process while Prefect's
client still waits. If the server is gone, Prefect's client delays the end of a flow by minutes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK
from flows.cli.output import print_message, show_line, tell
from flows.cli.program import command, this_command
from flows.cli.settings.limits import Limits
from flows.cli.settings.machine import Machine
from flows.cli.settings.root import reach_root, read_root
from flows.cli.settings.runners import KILLABLE, WITH_PREFECT
from flows.engine.clusters import check_cluster
from flows.engine.context import SearchContext
from flows.engine.session import SessionRun
from flows.engine.signals import SignalHandler
from flows.views.summary import failure_of
from nas.callbacks.base import Callback
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, StorageError
from nas.executors.simulated import check_simulated
from nas.search.identity import claim_identity
from nas.search.imported_weights import import_weights
from nas.search.lease import check_free
from nas.search.pipeline import SearchPipeline
from nas.search.session import only_at_reports
from nas.search.session_code import session_code
from nas.storage.open import search_url
from nas.storage.records import Records, mark_outdated
from nas.storage.search_records import code_id
from nas.storage.sessions import past_sessions
from nas.views.formatting import count
from nas.views.progress import Progress

if TYPE_CHECKING:
    from flows.engine.flow import FlowRun
    from flows.engine.server import TemporaryServer

END_S = 10.0
"""Timeout for the last artifacts, the end of the flow and the temporary server's backlog together."""
TELL_S = 1.0
"""Seconds of that wait after which a line tells of it."""
SWITCH_S = 0.0005
"""Thread switch interval: with Python's 5 ms, a return from the disk may wait 5 ms."""
NEVER_BEGAN = SearchFailedError("Prefect ended the flow before it began")


class Engine:
    """Runner of a command's searches, which share one temporary server."""

    def __init__(self) -> None:
        self._command = this_command()
        self._signals = SignalHandler(self._command)
        self._server: TemporaryServer | None = None
        self._api_url: str | None = None
        self._has_prefect = False
        self._may_hang = False

    def __enter__(self) -> Engine:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()
        self._signals.__exit__()

    def leave(self, status: int) -> int:
        """Returns the exit status; ends the process if Prefect or a trial could block its end."""
        if not self._has_prefect and not self._may_hang:
            return status
        self.__exit__()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BrokenPipeError):
                stream.flush()
        os._exit(status)

    def prepare(self, runner: str) -> None:
        """Checks the user's Prefect server, once, or starts a temporary one that does not run.

        Raises:
            ServerError: the user's server does not answer, or no temporary server can start.
        """
        if runner not in WITH_PREFECT:
            return
        if self._server is not None:
            self._server.start()
        if self._api_url is not None:
            return
        from flows.engine.server import TemporaryServer, chosen_api_url, use_server

        url = chosen_api_url()
        if url is None:
            self._server = TemporaryServer()
            self._server.start()
            url = self._server.api_url
        else:
            use_server(url)
        self._api_url = url

    def open(self, values: Mapping[str, Any], machine: Machine, name: str) -> SearchContext:
        """Opens the search's folder under ``storage.root`` and writes nothing.

        Raises:
            ConfigurationError: the root is invalid or can't be used with the runner.
        """
        root, options = read_root(values)
        files = reach_root(values)
        if files.in_process and machine.runner in KILLABLE:
            raise ConfigurationError(
                f"storage.root={root}: exists in one process only, "
                f"but runner={machine.runner} uses several: "
                "add runner=debug or runner=threads, or choose another root"
            )
        records = Records(files.subfolder(name))
        return SearchContext(name, root, search_url(root, records.files), options, records, machine)

    def run(
        self,
        pipeline: SearchPipeline,
        context: SearchContext,
        limits: Limits,
        *,
        only_finals: bool = False,
        budget_names: Mapping[str, str] | None = None,
        callbacks: tuple[Callback, ...] = (),
    ) -> int:
        """Runs the remaining work of a search, prints the summary and returns the exit status.

        Args:
            pipeline: The search's pipeline.
            context: The search's folder and settings.
            limits: The limits of the session.
            only_finals: Whether trials of the search stage are left out.
            budget_names: The user's names for parts of the budget, if they are not ``budget.trials`` and so on.
            callbacks: Observe the search.
        """
        prepared, records = pipeline.prepared, context.records
        if context.machine.runner == "simulated":
            check_simulated(prepared.problem)
        end = None
        if is_begun := records.header() is not None:
            claim_identity(records, prepared)
            is_left = only_finals or (limits.retries_failed and pipeline.can_retry())
            end = None if is_left else pipeline.ended_by()
        is_finished = pipeline.has_finals() if only_finals else end is not None
        code = session_code(
            records, prepared, allow_changes=limits.code_may_change, is_finished=is_finished, notify=print_message
        )
        if only_finals:
            if is_finished:
                return self._conclude(pipeline, context, ended_by_tuner=False)
            pipeline.check_finals(code)
        if is_begun:
            if end is not None:
                larger = (budget_names or {}).get(end, f"budget.{end}")
                more = f"raise {larger}, or choose" if end != "tuner" else "its tuner has no more proposals. Choose"
                if end in ("hours", "gpu_hours"):
                    more = f"what is left of {larger} is too short for another trial. {more[0].upper()}{more[1:]}"
                show_line(f"search {context.name} is finished: {more} another seed or name")
                return self._conclude(pipeline, context, ended_by_tuner=end == "tuner")
            if not limits.takeover:
                check_free(records, notify=tell)
        check_cluster(context.machine)
        self.prepare(context.machine.runner)
        records.files.check_writable()
        if not only_finals:  # before the identity: what can't be imported leaves no search of this name
            import_weights(records, prepared.search.init)
        claim_identity(records, prepared)
        try:
            self._drive(pipeline, context, limits, code, only_finals, callbacks)
        except SearchInterruptedError as error:
            n_kept = sum(trial.is_finished for trial in records.load()[0])
            what = f"interrupted ({error})" if error.signal else f"stopped: {error}"
            raise SearchInterruptedError(
                f"{what}; {count(n_kept, 'finished trial')} kept. Resume: {self._command}", error.signal
            ) from error
        except StorageError as error:
            raise StorageError(
                f"{error}; finished trials are kept. Repair the storage, then: {self._command}"
            ) from error
        return self._conclude(pipeline, context, ended_by_tuner=pipeline.ended_by_tuner)

    def _conclude(self, pipeline: SearchPipeline, context: SearchContext, *, ended_by_tuner: bool) -> int:
        """Prints the summary and returns the exit status.

        Raises:
            SearchFailedError: no trial has a score.
        """
        summary = pipeline.summary()
        context.print_summary(pipeline, summary, ended_by_tuner=ended_by_tuner)
        failure = failure_of(summary, deterministic=pipeline.prepared.search.deterministic)
        if failure is not None:
            raise SearchFailedError(failure)
        return OK

    def _drive(
        self,
        pipeline: SearchPipeline,
        context: SearchContext,
        limits: Limits,
        code: Mapping[str, Any],
        only_finals: bool,
        callbacks: tuple[Callback, ...],
    ) -> None:
        """Runs the pipeline under a live display."""
        prepared, records = pipeline.prepared, context.records
        newest = code_id(code["code"]["problem"])  # the session that runs it has no record yet
        trials = mark_outdated(records.load()[0], newest)
        n_trials = pipeline.budget.trials
        if only_finals:
            n_trials = sum(trial.stage == prepared.plan.search.name and trial.is_counted for trial in trials)
        wanted = pipeline.n_trials_by_stage(trials, n_trials)
        done = [trial for trial in trials if trial.is_finished]
        with Progress(pipeline.prepared.problem.metrics, wanted, trials) as progress:
            progress.limit_hours(pipeline.hours_left())
            if prepared.left_out:
                names = ", ".join(sorted(prepared.left_out))
                progress.note(f"policies skipped, not declared by the problem: {names}")
            state = f"resumes after {count(len(done), 'finished trial')}" if trials else "starts"
            progress.note(f"search {context.name} {state}, in {records.files.url}")
            if pipeline.budget.stops_trials and context.machine.runner in ("debug", "threads"):
                progress.note(only_at_reports(context.machine.runner))
            session = max(past_sessions(records), default=0) + 1
            session_run = SessionRun(pipeline, context, limits, code, session, progress, only_finals, callbacks)
            self._prefect(session_run) if context.machine.runner in WITH_PREFECT else self._alone(session_run)

    def _alone(self, session_run: SessionRun) -> None:
        """Runs the session in this process; does not wait for a trial that ignores a stop."""
        pool = session_run.pool()
        executor = session_run.executor(pool)
        outcome = _Outcome(lambda: session_run.run(executor, pool, None, session_run.progress.observe))
        with self._signals.posted_to(executor.post):
            outcome.start()
            self._wait(outcome, session_run.progress.say)
        executor.close()
        self._may_hang |= self._signals.signal is not None or not pool.is_idle  # a trial's code may not have stopped
        outcome.raise_error()

    def _prefect(self, session_run: SessionRun) -> None:
        """Runs the session within a flow run, and leaves in time even if Prefect does not."""
        from flows.engine.prefect_output import drain_prefect, silence_prefect
        from flows.engine.server import quiet_environment, server_home, wait_for_backlog

        assert self._api_url is not None  # run() has prepared it
        api_url = self._api_url
        if self._server is not None and not self._has_prefect:
            session_run.progress.say("starting Prefect's temporary server")
        os.environ.update(quiet_environment() | {"PREFECT_API_URL": api_url})
        self._has_prefect = True
        sys.setswitchinterval(SWITCH_S)
        silence_prefect(
            server_home() / "logs" / f"client-{time.time_ns()}-{os.getpid()}.log",
            None if self._server is None else self._server.auth_string,
        )
        from flows.engine.artifacts import api_client
        from flows.engine.flow import FlowRun

        if self._server is not None:
            self._server.wait_until_healthy()
        pool = session_run.pool()
        flow_run = FlowRun(session_run, pool, api_url, has_log=self._server is None)
        outcome = _Outcome(flow_run.body)
        with self._signals.posted_to(flow_run.executor.post):
            thread = threading.Thread(target=flow_run.run, args=(outcome,), name="heirloom-flow", daemon=True)
            thread.start()
            self._wait(
                outcome, session_run.progress.say, lambda: None if thread.is_alive() else self._death_of(flow_run)
            )
        is_gone = self._server is not None and not self._server.is_running
        with self._signals.ends_block():
            pool.close()
            if not is_gone:
                end_s = time.monotonic() + END_S
                what = f"waiting at most {END_S:g} s until Prefect's server has stored the last states; Ctrl-C ends it"
                notice = threading.Timer(TELL_S, session_run.progress.say, [what])
                notice.start()
                try:
                    flow_run.close_artifacts(timeout_s=END_S)
                    thread.join(max(0.0, end_s - time.monotonic()))
                    drain_prefect(max(0.0, end_s - time.monotonic()))
                    if not thread.is_alive() and flow_run.id is not None and self._server is not None:
                        with api_client(api_url) as client:
                            left_s = max(0.0, end_s - time.monotonic())
                            wait_for_backlog(client, flow_run.id, flow_run.executor.n_task_runs, left_s)
                finally:
                    notice.cancel()
        if is_gone:
            session_run.progress.note(
                f"Prefect's temporary server has ended; all records are complete, see {command('report')}"
            )
        elif flow_run.n_artifacts_lost or thread.is_alive():
            session_run.progress.note(
                f"Prefect's server did not accept everything ({flow_run.n_artifacts_lost} artifacts and logs lost); "
                f"all records are complete, see {command('report')}"
            )
        outcome.raise_error()

    def _death_of(self, flow_run: FlowRun) -> BaseException:
        """Returns the error of a flow that has ended without the session's outcome."""
        from flows.engine.server import refusal_of

        if not isinstance(flow_run.error, Exception) or flow_run.id is not None or self._server is not None:
            return flow_run.error or NEVER_BEGAN
        return refusal_of(flow_run.error, str(self._api_url))

    def _wait(
        self, outcome: _Outcome, say: Callable[[str], None], died: Callable[[], BaseException | None] = lambda: None
    ) -> None:
        """Waits for the outcome, reports a signal, and notices a flow that failed."""
        is_told = False
        while not outcome.wait(0.2):
            if self._signals.signal is not None and not is_told:
                is_told = True
                say("stopping; a second Ctrl-C ends the process at once")
            if (error := died()) is not None and not outcome.wait(0.0):
                outcome.fail(error)


class _Outcome:
    """Result of a callable that runs on another thread."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._done = threading.Event()
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._body()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._done.set()

    def start(self) -> None:
        def quietly() -> None:
            with suppress(BaseException):  # ``raise_error`` raises it
                self()

        threading.Thread(target=quietly, name="heirloom-controller", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._done.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._done.set()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
