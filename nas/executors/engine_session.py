"""Orders of a driver to one worker of an engine (Dask, Ray), and its messages."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from nas.core.errors import ActionError
from nas.core.trial import Trial
from nas.executors.engine_worker import EngineSpec, EngineWorker, PackedOrder, WorkerUnfit
from nas.executors.events import Action, Event, Finished, JobLeftWorker, StopKind, TrialLost, TrialRequested
from nas.executors.pool import WorkerLostError
from nas.training.messages import Assignment, JobStart, ProxyRequest


@dataclass(frozen=True, slots=True)
class Call:
    """An order to test or export a trial, or to compute proxies."""

    action: Action
    subject: Trial | ProxyRequest


@dataclass(frozen=True, slots=True)
class Taken:
    """A worker has begun a task."""


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker ends as planned: SIGTERM, its lifetime, or because it was asked to."""

    why: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a test or export, or proxies."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The error of a call.

    Attributes:
        error: The error.
        is_lost: Whether the call ended its process.
    """

    error: str
    is_lost: bool = False


Message = Event | WorkerUnfit | Taken | WorkerLeaves | Answered | Refused


@dataclass(slots=True)
class Task:
    """A task that runs on this worker, and its process."""

    engine: EngineWorker
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when no more events of its job will come."""
    attempt: threading.RLock = field(default_factory=threading.RLock)
    """Held until the end of an attempt is sent: no request of its job overtakes it."""


class EngineSession(ABC):
    """The tasks of one driver on one worker, each in a warm process of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._idle: list[tuple[float, EngineWorker]] = []
        """Warm processes with the time since which they are idle."""
        self._beginning: set[str] = set()
        """Keys of tasks whose process is not there yet."""
        self._is_leaving = False
        self._why_closed = "its session on the worker has ended"
        self.is_closed = False

    @abstractmethod
    def send(self, key: str | None, message: Message) -> None:
        """Tells the driver; without a key, about the whole worker."""

    def call_in_thread(self, method: str, *arguments: Any) -> None:
        """Calls a method of this session on a thread of its own."""
        threading.Thread(target=getattr(self, method), args=arguments, name="heirloom-order", daemon=True).start()

    def run(self, key: str, order: PackedOrder) -> None:
        """Runs a task: an attempt, a job until it leaves, or a call."""
        self.send(key, Taken())
        try:
            spec, content = order.unpack()
            task = self._begin(key, spec)
        except Exception as error:
            self.send(key, WorkerUnfit.of(error))
            return
        if task is None:
            self.send(key, _lost(content, self._why_closed))
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
        """Gives a job its next trial, which is lost if the job has left meanwhile."""
        if (task := self._tasks.get(key)) is not None:
            with task.attempt:
                if not task.ended.is_set():
                    self._attempt(key, task, assignment)
                    return
        self.send(key, _lost(assignment, "its job had left the worker"))

    def stop(self, key: str, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Asks an attempt to end; see ``Executor.stop``."""
        if (task := self._tasks.get(key)) is not None:
            task.engine.stop(subject, kind)

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
            is_first, self._is_leaving = not self._is_leaving, True
        if is_first:
            self.send(None, WorkerLeaves(why))
        self.close(why)

    def close(self, why: str = "the driver has ended the session") -> None:
        """Ends all trials and processes of this driver here."""
        with self._lock:
            self.is_closed, self._why_closed = True, why
            tasks, idle, self._idle = list(self._tasks.values()), self._idle, []
        for task in tasks:
            task.engine.leave(why)
            task.ended.set()
        for _, engine in idle:
            engine.close()

    def _begin(self, key: str, spec: EngineSpec) -> Task | None:
        """Returns a task with a process; None: the session was closed meanwhile."""
        with self._lock:
            self._beginning.add(key)
            engine = self._idle.pop()[1] if self._idle else None
        try:
            task = Task(engine or EngineWorker(spec))
            with self._lock:
                if not self.is_closed:
                    self._tasks[key] = task
                    return task
        finally:
            with self._lock:
                self._beginning.discard(key)
        task.engine.close()
        return None

    def _end(self, key: str, task: Task) -> None:
        with self._lock:
            del self._tasks[key]
            if not self.is_closed and task.engine.left is None:
                self._idle.append((time.monotonic(), task.engine))
                return
        task.engine.close()

    def _attempt(self, key: str, task: Task, assignment: Assignment) -> None:
        post = self._posting(key, task)
        with task.attempt:
            ended = task.engine.run(assignment, post)
            if not isinstance(ended, Finished):  # its job has ended with it
                task.ended.set()
            post(ended)

    def _posting(self, key: str, task: Task) -> Callable[[Event | WorkerUnfit], None]:
        def post(event: Event | WorkerUnfit) -> None:
            with task.attempt if isinstance(event, TrialRequested | JobLeftWorker) else nullcontext():
                self.send(key, event)
                if isinstance(event, JobLeftWorker | WorkerUnfit):
                    task.ended.set()

        return post


def _lost(content: Assignment | JobStart | Call, why: str) -> Message:
    """Returns the message of an order that can't run here any more; it costs no attempt."""
    match content:
        case JobStart(job=job):
            return JobLeftWorker(job, lost=why, counts=False)
        case Assignment(trial=trial):
            return TrialLost(trial.job, trial.number, why, counts=False)
    return TrialLost(0, content.subject.number, why, counts=False)  # the driver calls again


def _answer(engine: EngineWorker, call: Call) -> Message:
    try:
        return Answered(dict(engine.call(call.action, call.subject)))
    except ActionError as error:
        if engine.left is not None:
            return _lost(call, engine.left)
        return Refused(str(error), isinstance(error.__cause__, WorkerLostError))
    except Exception as error:
        return WorkerUnfit.of(error)
