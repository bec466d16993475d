"""What runs a search's program: Prefect, shown on a server, or for ``runner=debug`` this process alone.

The flow runs on a thread of its own: the main thread keeps the signals, and can leave when Prefect's client would not
(with a server that died it holds a flow's end for minutes).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from flows.cli.command import OK, Invocation, this_command
from flows.cli.formatting import count
from flows.cli.settings import KILLABLE, WITH_PREFECT, Limits, Machine, reach_root, read_limits, read_root, search_url
from flows.engine.session import _Task
from flows.engine.signals import Interruption
from flows.engine.workplace import Workplace
from flows.views.progress import Progress
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, StorageError
from nas.core.redaction import without_passwords
from nas.core.trial import State
from nas.executors.simulated import check_simulated
from nas.search.lease import check_free, claim_identity
from nas.search.runner import SearchPipeline
from nas.storage.records import Records
from nas.storage.sessions import past_sessions

if TYPE_CHECKING:
    from flows.engine.server import TemporaryServer

SERVER_START_S = 180.0
"""On a slow machine with a busy disk the temporary server's first start takes over a minute."""
FLOW_END_S = 10.0
BACKLOG_S = 60.0
EXIT_S = 5.0
SWITCH_S = 0.0005
"""Prefect's threads compute while ours return from the disk; at Python's 5 ms each such return may wait as long."""
NEVER_BEGAN = SearchFailedError("Prefect ended the flow before it began")


class Engine:
    """One command's engine; it holds the temporary server for all jobs of a multirun."""

    def __init__(self) -> None:
        self._command = this_command()
        self._interruption = Interruption(self._command)
        self._server: TemporaryServer | None = None
        self._api_url: str | None = None
        self._has_prefect = False
        self._may_hang = False

    def __enter__(self) -> Engine:
        self._interruption.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()
        self._interruption.__exit__()

    def leave(self, status: int) -> int:
        """The exit status; ends the process here where Prefect's client, or a trial without end, may hold it."""
        if not self._has_prefect and not self._may_hang:
            return status
        self.__exit__()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BrokenPipeError):
                stream.flush()
        os._exit(status)

    def prepare(self, runner: str) -> None:
        """Checks the user's own Prefect server, or starts a temporary one, which boots from here on; once.

        Raises:
            ServerError: the user's server does not answer, or no temporary one can start.
        """
        if runner not in WITH_PREFECT or self._api_url is not None:
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

    def open(self, invocation: Invocation, machine: Machine, name: str) -> Workplace:
        """Returns the folder of the search under ``storage.root``; nothing is written yet.

        Raises:
            ConfigurationError: the root can't be, or does not go with the runner.
        """
        root, options = read_root(invocation.values)
        files = reach_root(invocation.values)
        if files.in_process and machine.runner in KILLABLE:
            raise ConfigurationError(
                f"storage.root ({without_passwords(root)}) lives in one process, "
                f"and runner={machine.runner} has several; "
                "add runner=debug or runner=threads, or choose another root"
            )
        records = Records(files.below(name))
        return Workplace(name, root, search_url(root, files, name), options, records, machine, invocation)

    def run(
        self,
        pipeline: SearchPipeline,
        workplace: Workplace,
        *,
        only_finals: bool = False,
        budget_names: Mapping[str, str] | None = None,
    ) -> int:
        """Runs what is left to do of a search, prints the summary, and gives the exit status.

        Args:
            program: Of the search.
            workplace: Where it lies.
            only_finals: Runs no trial of the search stage.
            budget_names: What the user calls a part of the budget, where it is not ``budget.trials`` and so on.
        """
        prepared, records = pipeline.prepared, workplace.records
        if workplace.machine.runner == "simulated":
            check_simulated(prepared.problem)
        limits = read_limits(workplace.invocation.values)
        if records.read("search.json") is not None:
            claim_identity(records, prepared)
            if not only_finals and (end := pipeline.ended_by()):
                larger = (budget_names or {}).get(end, f"budget.{end}")
                more = f"more with a larger {larger}, or" if end != "tuner" else "its tuner proposes nothing more; try"
                print(f"search {workplace.name} is finished; {more} another seed or name")
                return self._conclude(pipeline, workplace, tuner_has_ended_it=end == "tuner")
            if not limits.takeover:
                check_free(records, say=lambda text: print(text, file=sys.stderr))
        if (gate := workplace.machine.gate) is not None:
            gate.check()
        self.prepare(workplace.machine.runner)
        records.files.check_writable()
        claim_identity(records, prepared)
        try:
            self._drive(pipeline, workplace, limits, only_finals)
        except SearchInterruptedError as error:
            n_kept = sum(trial.is_finished for trial in records.load()[0])
            what = f"interrupted ({error})" if error.signal else f"stopped: {error}"
            raise SearchInterruptedError(
                f"{what}; {count(n_kept, 'finished trial')} kept. Resume: {self._command}", error.signal
            ) from error
        except StorageError as error:
            raise StorageError(f"{error}; what is finished is kept. Once that is mended: {self._command}") from error
        return self._conclude(pipeline, workplace, tuner_has_ended_it=pipeline.tuner_has_ended_it)

    def _conclude(self, pipeline: SearchPipeline, workplace: Workplace, *, tuner_has_ended_it: bool) -> int:
        """Prints the summary, and gives the exit status.

        Raises:
            SearchFailedError: all trials failed, so that nothing was found.
        """
        summary = pipeline.summary()
        workplace.print_summary(pipeline, summary, tuner_has_ended_it=tuner_has_ended_it)
        if summary.winner is None and len(summary.lineage) and not summary.lineage.n_in_state(State.COMPLETE):
            last = next((t for t in reversed(list(summary.lineage)) if t.error), None)
            why = "" if last is None else f"; the last, trial {last.number}: {str(last.error).strip().splitlines()[-1]}"
            none_has = f"no trial of {len(summary.lineage)} has a score"
            if all(t.met_deadline or not t.is_finished for t in summary.lineage):
                raise SearchFailedError(f"{none_has}, as none could end in time: go on with larger budget.hours")
            raise SearchFailedError(
                f"{none_has}{why}. Failed trials stay as they are: "
                "mend the problem, then choose another name=..., or a larger budget.trials"
            )
        return OK

    def _drive(self, pipeline: SearchPipeline, workplace: Workplace, limits: Limits, only_finals: bool) -> None:
        """Runs the program under a live display."""
        prepared, records = pipeline.prepared, workplace.records
        trials, _ = records.load()
        n_trials = pipeline.budget.trials
        if only_finals:
            n_trials = sum(trial.stage == prepared.plan.search.name for trial in trials)
        wanted = pipeline.ranking.wanted(n_trials)
        done = [trial for trial in trials if trial.is_finished]
        with Progress(pipeline.metric, wanted, trials) as progress:
            self._interruption.display = progress
            if prepared.left_out:
                names = ", ".join(sorted(prepared.left_out))
                progress.note(f"policies left out, as the problem does not declare them: {names}")
            state = f"goes on after {count(len(done), 'finished trial')}" if trials else "begins"
            progress.note(f"search {workplace.name} {state}, in {records.files.url}")
            session = max(past_sessions(records), default=0) + 1
            task = _Task(pipeline, workplace, limits, session, progress, only_finals)
            self._prefect(task) if workplace.machine.runner in WITH_PREFECT else self._alone(task)

    def _alone(self, task: _Task) -> None:
        """Runs the task in this process, one trial at a time or on paper; leaves in time, whatever a trial does."""
        executor = task.executor()
        outcome = _Outcome(lambda: task.run(executor, flow_run=None, observe=task.progress.observe))
        with self._interruption.posted_to(executor.post):
            outcome.start()
            self._wait(outcome, task.progress.say)
        executor.close()
        self._may_hang = self._interruption.signal is not None  # for the code of a trial that did not listen
        outcome.raise_error()

    def _prefect(self, task: _Task) -> None:
        """Runs the task within a flow run; leaves in time, whatever Prefect does."""
        from flows.engine.server import quiet_environment, server_home, silence_prefect, wait_for_backlog

        assert self._api_url is not None  # run() has prepared it
        api_url = self._api_url
        if self._server is not None and not self._has_prefect:
            task.progress.say("starting Prefect's temporary server")
        os.environ.update(quiet_environment() | {"PREFECT_API_URL": api_url})
        self._has_prefect = True
        sys.setswitchinterval(SWITCH_S)
        silence_prefect(server_home() / "logs" / f"client-{time.time_ns()}-{os.getpid()}.log")
        from flows.engine.flow import FlowRun

        if self._server is not None:
            self._server.wait_until_healthy(SERVER_START_S)
        pool = task.pool()
        flow_run = FlowRun(task, pool, api_url)
        outcome = _Outcome(flow_run.body)
        with self._interruption.posted_to(flow_run.executor.post):
            thread = threading.Thread(target=flow_run.run, args=(outcome,), name="heirloom-flow", daemon=True)
            thread.start()
            self._wait(outcome, task.progress.say, lambda: None if thread.is_alive() else flow_run.error or NEVER_BEGAN)
        is_gone = self._server is not None and not self._server.is_running
        with self._interruption.cuts_short():
            pool.close()
            if not is_gone:
                flow_run.close_artifacts(timeout_s=FLOW_END_S)
                thread.join(FLOW_END_S)
            n_runs = flow_run.executor.n_task_runs
            if not thread.is_alive() and flow_run.id is not None and self._server is not None:
                wait_for_backlog(api_url, flow_run.id, n_runs, min(BACKLOG_S, EXIT_S + 0.1 * n_runs))
        if is_gone:
            task.progress.note(
                "Prefect's temporary server died meanwhile; the records are whole, the report shows them"
            )
        elif flow_run.n_artifacts_lost or thread.is_alive():
            task.progress.note(
                f"Prefect's server did not take everything ({flow_run.n_artifacts_lost} artifacts lost); "
                "the records are whole, the report shows them"
            )
        outcome.raise_error()

    def _wait(
        self, outcome: _Outcome, say: Callable[[str], None], died: Callable[[], BaseException | None] = lambda: None
    ) -> None:
        """Waits for the outcome; says that an interruption was taken in, and notes where the flow died."""
        is_told = False
        while not outcome.wait(0.2):
            if self._interruption.signal is not None and not is_told:
                is_told = True
                say("stopping; a second Ctrl-C ends it at once")
            if (error := died()) is not None and not outcome.wait(0.0):
                outcome.fail(error)


class _Outcome:
    """How a body that runs on another thread ended."""

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

    def start(self) -> _Outcome:
        def quietly() -> None:
            try:
                self()
            except BaseException as error:
                self._error = error

        threading.Thread(target=quietly, name="heirloom-loop", daemon=True).start()
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._done.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._done.set()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
