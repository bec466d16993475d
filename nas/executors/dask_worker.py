"""The functions that Dask's workers run for ``DaskPool``.

Messages go to the driver by ``Worker.log_event``. Each is a pickled tuple: key of the task (None: all tasks of the
worker), address of the worker, content.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from nas.core.errors import ActionError
from nas.core.trial import Trial
from nas.executors.engine_worker import EngineSpec, EngineWorker, PackedOrder, WorkerUnfit, packed
from nas.executors.events import Action, Event, Finished, JobLeftWorker, StopKind
from nas.training.messages import Assignment, JobStart

logger = logging.getLogger(__name__)
WATCH_S = 1.0
IDLE_S = 30.0
"""Seconds after which a warm process without a task ends. A new one starts in seconds."""
RUNNING = frozenset({"executing", "long-running"})
"""States of a task that its driver has not released."""


@dataclass(frozen=True, slots=True)
class Call:
    """An order to test or export a trial."""

    action: Action
    trial: Trial


@dataclass(frozen=True, slots=True)
class Taken:
    """A worker has begun a task."""


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker ends as planned: SIGTERM, its lifetime, or because it was asked to."""

    why: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a test or export."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The error of a test or export."""

    error: str


Message = Event | WorkerUnfit | Taken | WorkerLeaves | Answered | Refused


@dataclass(slots=True)
class _Task:
    """A task that runs on this worker, and its process."""

    engine: EngineWorker
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when no more events of its job will come."""


class WorkerSession:
    """The processes of one driver on one Dask worker: one per thread."""

    def __init__(self, worker: Worker, topic: str) -> None:
        self._worker = worker
        self._topic = topic
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._idle: list[tuple[float, EngineWorker]] = []
        """Warm processes with the time since which they are idle."""
        self._departure: str | None = None
        self.is_closed = False
        self._plugin = f"heirloom-{topic}-{id(self)}"
        worker.loop.add_callback(worker.plugin_add, Departure(self), name=self._plugin)
        threading.Thread(target=self._watch, name="heirloom-dask-watch", daemon=True).start()

    def send(self, key: str | None, message: Message) -> None:
        """Tells the driver."""
        self._worker.log_event(self._topic, packed((key, self._worker.address, message)))

    def run(self, key: str, order: PackedOrder) -> None:
        """Runs a task: an attempt, a job until it leaves, a test or an export."""
        self.send(key, Taken())
        try:
            spec, content = order.unpack()
            task = self._begin(key, spec)
        except Exception as error:
            self.send(key, WorkerUnfit.of(error))
            return
        try:
            match content:
                case Call():
                    self.send(key, _answer(task.engine, content))
                case JobStart():
                    task.engine.resume(content, self._posting(key, task))
                    task.ended.wait()
                case Assignment():
                    self._attempt(key, task, content)
                    if spec.runtime.jobs_request_trials:
                        task.ended.wait()
        finally:
            self._end(key, task)

    def run_next(self, key: str, assignment: Assignment) -> None:
        """Gives a job that waits on this worker its next trial."""
        if (task := self._tasks.get(key)) is not None:
            self._attempt(key, task, assignment)

    def stop(self, key: str, trial: Trial, kind: StopKind) -> None:
        """Asks an attempt to end."""
        if (task := self._tasks.get(key)) is not None:
            task.engine.stop(trial, kind)

    def decide(self, key: str, trial: int, step: int, stop: bool) -> None:
        """Answers a report."""
        if (task := self._tasks.get(key)) is not None:
            task.engine.decide(trial, step, stop)

    def dismiss(self, key: str, job: int) -> None:
        """Tells a job that there are no more trials."""
        if (task := self._tasks.get(key)) is not None:
            task.engine.dismiss(job)

    def leave(self, why: str) -> None:
        """Ends all trials and processes; the trials do not count as attempts."""
        with self._lock:
            is_first, self._departure = self._departure is None, why
        if is_first:
            self.send(None, WorkerLeaves(why))
        self.close(why)

    def close(self, why: str = "the driver has ended the session") -> None:
        """Ends all trials and processes of this driver here."""
        with self._lock:
            self.is_closed = True
            tasks, idle, self._idle = list(self._tasks.values()), self._idle, []
        for task in tasks:
            task.engine.leave(why)
            task.ended.set()
        for _, engine in idle:
            engine.close()

    def _begin(self, key: str, spec: EngineSpec) -> _Task:
        with self._lock:
            engine = self._idle.pop()[1] if self._idle else None
        if engine is None:
            name = self._worker.name
            engine = EngineWorker(spec, index=name if isinstance(name, int) else 0)
        task = _Task(engine)
        with self._lock:
            self._tasks[key] = task
        return task

    def _end(self, key: str, task: _Task) -> None:
        with self._lock:
            del self._tasks[key]
            if not self.is_closed and not task.engine.has_left:
                self._idle.append((time.monotonic(), task.engine))
                return
        task.engine.close()

    def _attempt(self, key: str, task: _Task, assignment: Assignment) -> None:
        post = self._posting(key, task)
        ended = task.engine.run(assignment, post)
        if not isinstance(ended, Finished):  # its job has ended with it
            task.ended.set()
        post(ended)

    def _posting(self, key: str, task: _Task) -> Callable[[Event | WorkerUnfit], None]:
        def post(event: Event | WorkerUnfit) -> None:
            self.send(key, event)
            if isinstance(event, JobLeftWorker | WorkerUnfit):
                task.ended.set()

        return post

    def _watch(self) -> None:
        """Ends trials that no driver wants any more, and processes that are idle for long."""
        quiet_since_s = time.monotonic()
        while not self.is_closed:
            time.sleep(WATCH_S)
            now_s = time.monotonic()
            for key, task in list(self._tasks.items()):
                state = self._worker.state.tasks.get(key)
                if state is None or state.state not in RUNNING:
                    task.engine.leave("its driver is gone, or has given the trial up")
                    task.ended.set()
            with self._lock:
                over = [engine for since_s, engine in self._idle if now_s - since_s > IDLE_S]
                self._idle = [entry for entry in self._idle if entry[1] not in over]
                quiet_since_s = now_s if self._tasks or self._idle else quiet_since_s
                self.is_closed = self.is_closed or now_s - quiet_since_s > IDLE_S
            for engine in over:
                engine.close()
        _forget(self)
        self._worker.loop.add_callback(self._remove_plugin)

    async def _remove_plugin(self) -> None:
        if self._plugin in self._worker.plugins:  # not if the worker closes
            await self._worker.plugin_remove(self._plugin)


class Departure(WorkerPlugin):  # type: ignore[misc]  # mypy skips Dask
    """Lets a worker that closes, or gets SIGTERM, tell the driver first.

    Its trials then do not count as attempts.

    Under a nanny, SIGTERM would end the worker's process at once; Slurm sends it to all processes of a job.
    """

    def __init__(self, session: WorkerSession) -> None:
        self._session = session
        self._leaving: list[Any] = []

    def setup(self, worker: Worker) -> None:
        """Takes SIGTERM in, unless Dask does."""
        import asyncio

        loop = asyncio.get_running_loop()

        def leave(number: int, frame: object) -> None:
            loop.call_soon_threadsafe(lambda: self._leaving.append(loop.create_task(self._close(worker))))

        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, leave)

    async def teardown(self, worker: Worker) -> None:
        """Ends what runs, before the worker closes its connections."""
        import asyncio

        if not self._session.is_closed:
            await asyncio.to_thread(self._session.leave, "its worker was closed")

    async def _close(self, worker: Worker) -> None:
        import asyncio

        await asyncio.to_thread(self._session.leave, "its worker got SIGTERM")
        await worker.close(reason="SIGTERM", executor_wait=False, timeout=2)


_sessions: dict[tuple[str, str], WorkerSession] = {}
"""By topic and address: one process may hold several workers."""
_lock = threading.Lock()


def _forget(session: WorkerSession) -> None:
    with _lock:
        for place in [place for place, found in _sessions.items() if found is session]:
            del _sessions[place]


def run_task(topic: str, key: str, order: PackedOrder) -> None:
    """Runs one order of a driver; the body of a task."""
    worker = get_worker()
    with _lock:
        session = _sessions.get((topic, worker.address))
        if session is None or session.is_closed:
            session = _sessions[topic, worker.address] = WorkerSession(worker, topic)
    session.run(key, order)


async def tell(topic: str, method: str, *arguments: Any, dask_worker: Worker) -> None:
    """Calls a method of this worker's session on a thread, also while its task runs."""
    session = _sessions.get((topic, dask_worker.address))
    if session is not None:
        threading.Thread(target=getattr(session, method), args=arguments, name="heirloom-order", daemon=True).start()


def _answer(engine: EngineWorker, call: Call) -> Message:
    try:
        return Answered(dict(engine.call(call.action, call.trial)))
    except ActionError as error:
        return Refused(str(error))
    except Exception as error:
        return WorkerUnfit.of(error)
