"""What runs a search's program: Prefect, shown on a server, or for ``runner=debug`` this process alone.

The flow runs on a thread of its own: the main thread keeps the signals, and can leave when Prefect's client would not
(with a server that died it holds a flow's end for minutes).
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flows.command import OK, Invocation
from flows.settings import Machine
from nas.attempt import BenchSpec
from nas.errors import ConfigurationError, SearchFailedError, SearchInterruptedError
from nas.executors.base import Event, Executor, StopAsked
from nas.executors.local import LocalExecutor
from nas.executors.place import InProcessPlace, Place
from nas.loop import LoopSettings
from nas.problems.base import Problem
from nas.program import Program
from nas.session import Session, check_free, claim_identity, open_records
from nas.store.files import open_root
from nas.store.records import Records

if TYPE_CHECKING:
    from flows.server import TemporaryServer

FLOW_END_S = 10.0
BACKLOG_S = 60.0
EXIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a session works: the search's records, and all that its processes need to find them."""

    name: str
    root: str
    url: str
    options: dict[str, Any]
    records: Records
    machine: Machine
    invocation: Invocation

    def data_overrides(self, problem: Problem) -> str:
        """What a later command must say again: where the data lies, which no record keeps."""
        chosen = self.invocation.values.get("problem") or {}
        keys = [key for key in sorted(problem.data_arguments) if f"problem.{key}" in self.invocation.named]
        return "".join(f" problem.{key}={chosen[key]}" for key in keys if key in chosen)


class Engine:
    """One command's engine; it holds the temporary server for all jobs of a multirun."""

    def __init__(self) -> None:
        self._server: TemporaryServer | None = None
        self._api_url: str | None = None
        self._has_prefect = False
        self._is_stuck = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()

    def leave(self, status: int) -> int:
        """The exit status; where Prefect was imported, ends the process here, as its client may hold the exit."""
        if not self._has_prefect:
            return status
        self.__exit__()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def prepare(self, machine: Machine) -> None:
        """Starts the temporary server, which boots while the problem loads, or checks the user's own.

        Raises:
            ServerError: the user's server does not answer, or no temporary one can start.
        """
        if machine.runner == "debug" or self._api_url is not None:
            return
        from flows.server import TemporaryServer, chosen_api_url, quiet_environment, use_server

        url = chosen_api_url()
        if url is None:
            self._server = TemporaryServer()
            self._server.start()
            url = self._server.api_url
        else:
            use_server(url)
        self._api_url = url
        os.environ.update(quiet_environment() | {"PREFECT_API_URL": url})

    def open(self, invocation: Invocation, machine: Machine, name: str) -> Workplace:
        """The folder of the search under ``storage.root``, proven writable.

        Raises:
            ConfigurationError: the root can't be, or does not go with the runner.
            StoreError: the storage fails.
        """
        storage = invocation.values["storage"]
        root, options = str(storage["root"]), dict(storage.get("options") or {})
        files = open_root(root, options)
        if files.in_process and machine.runner == "processes":
            raise ConfigurationError(
                f"storage.root ({root}) lives in one process, and runner=processes has several; "
                "add runner=debug or runner=threads, or choose another root"
            )
        records = open_records(files.below(name))
        url = f"{root.rstrip('/')}/{name}" if "://" in root else records.files.url
        return Workplace(name, root, url, options, records, machine, invocation)

    def run(self, program: Program, workplace: Workplace, *, only_finals: bool = False) -> int:
        """Runs what is left to do of a search, prints the summary, and gives the exit status."""
        from flows.progress import Progress, print_summary

        built, records, values = program.built, workplace.records, workplace.invocation.values
        claim_identity(records, built)
        if not only_finals and program.is_done():
            print(f"search {workplace.name} is finished; more with a larger budget.trials, or another seed or name")
            print_summary(
                program.summary(), program.metric, workplace.root, data=workplace.data_overrides(built.problem)
            )
            return OK
        if not values.get("takeover"):
            check_free(records)
        if built.left_out:
            names = ", ".join(sorted(built.left_out))
            print(f"policies left out, as the problem does not declare them: {names}", file=sys.stderr)
        trials, _ = records.load()
        n_finals = program.finalists if built.plan.final is not None else 0
        settings = LoopSettings(
            seed=built.search.seed,
            budget=program.budget,
            on_parent_failure=built.search.on_parent_failure,
            deterministic=built.search.deterministic,
            max_attempts=int(values.get("max_attempts", 2)),
            max_failures=int(values.get("max_failures", 8)),
        )
        done = [trial for trial in trials if trial.is_finished]
        try:
            with Progress(program.metric, program.budget.trials, n_finals, done) as progress:
                progress.say(f"search {workplace.name}: {len(done)} trials done")
                task = _Task(program, workplace, settings, progress.observe, only_finals)
                self._debug(task) if workplace.machine.runner == "debug" else self._prefect(task, progress.say)
        except SearchInterruptedError as error:
            n_kept = sum(t.is_finished for t in records.load()[0])
            raise SearchInterruptedError(
                f"interrupted ({error}); {n_kept} finished trials are kept. Resume: {_this_command()}", error.signal
            ) from error
        print_summary(program.summary(), program.metric, workplace.root, data=workplace.data_overrides(built.problem))
        return OK

    def _debug(self, task: _Task) -> None:
        bench = task.bench(session=0)
        program = task.program
        place = InProcessPlace(bench, task.workplace.records.files, program.built.problem)
        executor = LocalExecutor(place)
        outcome = _Outcome(lambda: task.run(executor, flow_run=None, observe=task.observe))
        with _signals_posted_to(executor):
            outcome.start().wait()
        executor.close()
        outcome.raise_error()

    def _prefect(self, task: _Task, say: Callable[[str], None]) -> None:
        """Runs the task within a flow run; leaves in time, whatever Prefect does."""
        assert self._api_url is not None
        if self._server is not None and not self._has_prefect:
            say("starting Prefect's temporary server")
            self._server.wait_until_healthy()
        from flows.server import silence_prefect, wait_for_backlog

        self._has_prefect = True
        silence_prefect(Path(tempfile.gettempdir()) / f"heirloom-prefect-{os.getpid()}.log")
        from flows.flow import FlowRun

        place = task.place()
        flow_run = FlowRun(task, place, self._api_url)
        outcome = _Outcome(flow_run.body)
        with _signals_posted_to(flow_run.executor):
            thread = threading.Thread(target=flow_run.run, args=(outcome,), name="heirloom-flow", daemon=True)
            thread.start()
            while not outcome.wait(0.2):
                if not thread.is_alive() and not outcome.wait(0.0):
                    outcome.fail(flow_run.error or SearchFailedError("Prefect ended the flow before it began"))
        place.close()
        flow_run.close_showcase(timeout_s=FLOW_END_S)
        thread.join(FLOW_END_S)
        n_runs = flow_run.executor.n_task_runs
        if thread.is_alive():
            self._is_stuck = True
        elif flow_run.id is not None and self._server is not None:
            wait_for_backlog(self._api_url, flow_run.id, n_runs, min(BACKLOG_S, EXIT_S + 0.1 * n_runs))
        if flow_run.n_artifacts_lost or self._is_stuck:
            print(
                f"Prefect's server did not take everything ({flow_run.n_artifacts_lost} artifacts lost); "
                "the records are whole, the report shows them",
                file=sys.stderr,
            )
        outcome.raise_error()


@dataclass(frozen=True, slots=True)
class _Task:
    """A program, and where and how to run it."""

    program: Program
    workplace: Workplace
    settings: LoopSettings
    observe: Callable[[Event], None]
    only_finals: bool

    def bench(self, session: int) -> BenchSpec:
        built, machine = self.program.built, self.workplace.machine
        return BenchSpec(
            problem=built.search.problem,
            url=self.workplace.url,
            options=self.workplace.options,
            session=session,
            device=machine.device,
            n_threads=machine.n_threads,
            asks_stopper=built.stopper is not None,
        )

    def place(self, session: int = 0) -> Place:
        machine = self.workplace.machine
        if machine.runner == "threads":
            return InProcessPlace(self.bench(session), self.workplace.records.files, self.program.built.problem)
        from nas.executors.worker import ProcessPlace

        return ProcessPlace(
            self.bench(session), machine.slots, gpus=machine.gpus, trial_timeout_s=machine.trial_timeout_s
        )

    def run(self, executor: Executor, flow_run: str | None, observe: Callable[[Event], None]) -> None:
        """Opens a session and runs the program in it."""
        machine = self.workplace.machine
        budget = {name: getattr(self.settings.budget, name) for name in ("trials", "hours", "gpu_hours")}
        session = Session(
            self.workplace.records,
            settings={"runner": machine.runner, "slots": machine.slots, "budget": budget},
            takeover=bool(self.workplace.invocation.values.get("takeover")),
            on_newer=lambda why: executor.post(StopAsked(why)),
            flow_run=flow_run,
        )
        try:
            self.program.run(executor, session, self.settings, only_finals=self.only_finals, observe=observe)
        finally:
            session.close()


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


@contextmanager
def _signals_posted_to(executor: Executor) -> Iterator[None]:
    """Turns Ctrl-C and SIGTERM into a stop that the loop takes in; a second one ends the process at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        executor.post(StopAsked(signal.Signals(number).name, number))
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _this_command() -> str:
    module = getattr(sys.modules["__main__"].__spec__, "name", "flows.search")
    return shlex.join(["python", "-m", module, *sys.argv[1:]])
