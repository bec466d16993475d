"""The common part of worker pools on engines (Dask, Ray): orders, tasks, messages."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nas.core.errors import ActionError, ConfigurationError, HeirloomError, SearchFailedError, StorageError
from nas.core.trial import Trial
from nas.executors.engine_session import Answered, Call, Message, Refused, Taken
from nas.executors.engine_worker import EngineSpec, PackedOrder, WorkerUnfit
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Notice,
    Reported,
    Resumed,
    Started,
    StopKind,
    TrialLost,
    TrialRequested,
    WorkersBusy,
)
from nas.executors.pool import MAX_CALLS, OVERDUE, WorkerLostError, WorkerPool
from nas.training.messages import Assignment, JobStart, ProxyRequest

logger = logging.getLogger(__name__)

WATCH_S = 0.5
BUSY_S = 1.0
"""Seconds that a job waits on a worker that others need, before the controller is told."""
MAX_UNFIT = 3
"""Workers in a row that can't run trials before the search ends."""
CLOSED = "the session has ended"


class Display(Protocol):
    """Shows the user what happens to workers."""

    def note(self, text: str) -> None:
        """Shows a line."""

    def show_wait(self, what: str | None) -> None:
        """Shows what all trials wait for, until it is None."""


class Order:
    """An attempt, a call (test, export, proxies) with a waiting thread, or a job's start."""

    def __init__(
        self, content: Assignment | JobStart | Call, post: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.content = content
        self.post = post
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def job(self) -> int | None:
        """The job that stays on its worker afterwards, if jobs stay."""
        match self.content:
            case Assignment(trial=trial):
                return trial.job
            case JobStart(job=job):
                return job
        return None

    def matches(self, subject: Trial | ProxyRequest, kind: StopKind) -> bool:
        """Returns whether a stop ends it; see ``Executor.stop``."""
        match self.content:
            case Assignment(trial=trial):
                return isinstance(subject, Trial) and trial.number == subject.number
            case JobStart(job=job):
                return kind == "kill" and isinstance(subject, Trial) and job == subject.job
        return kind == "kill" and isinstance(subject, ProxyRequest) and self.content.subject == subject

    def cancel(self) -> None:
        """Ends it before a worker has begun it."""
        match self.content:
            case Assignment():
                self.end()
            case JobStart(job=job):
                self.post(JobLeftWorker(job, lost=OVERDUE, counts=False))
            case Call():
                refusal = ActionError(OVERDUE)
                refusal.__cause__ = WorkerLostError(OVERDUE)
                self.end(error=refusal)

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Ends ``wait``. An error of a job's start, for which no thread waits, is posted."""
        self._result, self._error = result, error
        if error is not None and isinstance(self.content, JobStart):
            self.post(ExecutorFailed(error, self.job))
        self._ended.set()

    def wait(self) -> Any:
        """Returns the result, or raises the error."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result


@dataclass(slots=True)
class EngineTask:
    """A task: an attempt, a job until it leaves its worker, or a call."""

    order: Order | None
    job: int | None
    post: Callable[[Event], None]
    worker: Any = None
    """The worker that has begun it."""
    requested_s: float | None = None
    """Time since which its job waits for its next trial."""

    def matches(self, subject: Trial | ProxyRequest, kind: StopKind) -> bool:
        """Returns whether a stop ends it; see ``Executor.stop``."""
        if self.order is not None:
            return self.order.matches(subject, kind)
        runs = self.job is not None and self.requested_s is None
        return runs and kind == "kill" and isinstance(subject, Trial) and self.job == subject.job


class EnginePool(WorkerPool):
    """Runs attempts as tasks of an engine.

    A task is an attempt, or a job from its first trial until it leaves. There are never more tasks than the workers
    can run: the rest waits here. A subclass starts tasks and sends messages to their workers. It calls ``_handle`` with
    each message of a worker. After the loss of a worker it calls ``_lose``, after that of the engine ``_fail``.
    Methods with an underscore, except ``_tell`` and ``_watch``, are called with the lock held.

    Args:
        spec: The settings of workers; it holds no credentials.
        display: Shows the user what happens.
        slots: Number of trials that there may be at a time, for messages.
        may_grow: Whether workers may join: a fixed cluster whose last worker is unfit ends the search.
    """

    def __init__(self, spec: EngineSpec, display: Display, slots: int, *, may_grow: bool = True) -> None:
        self._spec = spec
        self._display = display
        self._slots = slots
        self._may_grow = may_grow
        self._lock = threading.RLock()
        self._queue: deque[Order] = deque()
        self._tasks: dict[str, EngineTask] = {}
        self._jobs_without_worker: dict[int, Callable[[Event], None]] = {}
        """Jobs that wait for an answer after their worker was lost, with their ``post``."""
        self._unfit: dict[str, bool] = {}
        """Workers in a row that can't run trials, and whether their storage failed.

        Each thread of one may say so.
        """
        self._id = secrets.token_hex(4)  # several drivers may use one engine
        self._n_submitted = 0
        self._shown = (-1, "")
        self._failure: BaseException | None = None
        self._is_closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="heirloom-engine-watch", daemon=True)

    @property
    @abstractmethod
    def _capacity(self) -> int:
        """The number of tasks that the engine's workers may run at a time."""

    @property
    def _n_workers(self) -> int:
        """The number of workers that can run tasks."""
        return self._capacity

    @property
    def _n_ahead(self) -> int:
        """The number of tasks to start even if no worker can run them."""
        return 0

    @property
    def _shortage(self) -> str:
        """The reason why no worker can run tasks, to show what trials wait for."""
        return ""

    @abstractmethod
    def _start(self, key: str, task: EngineTask, order: PackedOrder) -> None:
        """Starts a task on a free worker. Returns at once."""

    @abstractmethod
    def _tell(self, key: str, method: str, *arguments: Any) -> None:
        """Calls a method of ``EngineSession`` on the task's worker. Returns at once."""

    @abstractmethod
    def _forget(self, key: str, task: EngineTask) -> None:
        """Frees what the engine keeps of a task that has ended or was given up."""

    @abstractmethod
    def _exclude(self, worker: Any) -> None:
        """Takes an unfit worker out of the capacity."""

    @abstractmethod
    def _retire(self, worker: Any) -> None:
        """Lets an unfit worker end."""

    def _check(self) -> None:
        """Looks every half second for a loss of which the engine does not tell."""

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt on the worker where its job waits, or as a new task."""
        order = Order(assignment, post)
        with self._lock:
            self._jobs_without_worker.pop(assignment.trial.job, None)
            if (found := self._task_of(assignment.trial.job)) is None:
                self._enqueue(order)
            else:
                key, task = found
                task.order, task.requested_s = order, None
                self._tell(key, "run_next", assignment)
        result: Trial | None = order.wait()
        return result

    def has_job(self, job: int) -> bool:
        """Returns whether the job is on a worker."""
        with self._lock:
            return self._task_of(job) is not None

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts the job as a new task."""
        with self._lock:
            self._enqueue(Order(job_start, post))

    def dismiss(self, job: int) -> None:
        """Tells the job's worker; if that is lost, the job has left."""
        with self._lock:
            if (found := self._task_of(job)) is not None:
                found[1].requested_s = None
                self._tell(found[0], "dismiss", job)
            elif (post := self._jobs_without_worker.pop(job, None)) is not None:
                post(JobLeftWorker(job))

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Tells the worker; what no worker has begun is taken back."""
        with self._lock:
            if kind != "stop":
                self._cancel(subject, kind)
            for key, task in self._tasks.items():
                if task.worker is not None and task.matches(subject, kind):
                    self._tell(key, "stop", subject, kind)

    def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
        """Tests, exports or computes proxies as a task, and as another if its worker is lost."""
        n_lost = 0
        while True:
            order = Order(Call(action, subject))
            with self._lock:
                self._enqueue(order)
            try:
                answer: Mapping[str, Any] = order.wait()
                return answer
            except WorkerLostError as error:
                n_lost += error.counts
                if n_lost == MAX_CALLS or self._is_closed.is_set():
                    raise ActionError(f"{action} of trial {subject.number}: {error}") from error
                logger.warning("%s of trial %s: %s; it is tried again", action, subject.number, error)

    def _task_of(self, job: int) -> tuple[str, EngineTask] | None:
        return next(((key, task) for key, task in self._tasks.items() if task.job == job), None)

    def _enqueue(self, order: Order) -> None:
        if self._failure is not None or self._is_closed.is_set():
            order.end(error=self._failure or WorkerLostError(CLOSED, counts=False))
            return
        self._queue.append(order)
        self._dispatch()

    def _dispatch(self) -> None:
        """Starts the oldest orders while there are workers for them."""
        while self._queue and len(self._tasks) < max(self._capacity, self._n_ahead):
            order = self._queue.popleft()
            self._n_submitted += 1
            key = f"{_name(order.content)}-{self._id}-{self._n_submitted}"
            job = order.job if self._spec.runtime.jobs_request_trials else None
            task = EngineTask(None if isinstance(order.content, JobStart) else order, job, order.post)
            self._tasks[key] = task
            self._start(key, task, PackedOrder.of(self._spec, order.content))

    def _release(self, key: str) -> EngineTask:
        task = self._tasks.pop(key)
        self._forget(key, task)
        self._dispatch()
        return task

    def _cancel(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Ends what no worker has begun."""
        for order in [order for order in self._queue if order.matches(subject, kind)]:
            self._queue.remove(order)
            order.cancel()
        for key, task in list(self._tasks.items()):
            if task.worker is None and task.matches(subject, kind):
                self._release(key)
                if task.order is not None:
                    task.order.cancel()
                elif task.job is not None:
                    task.post(JobLeftWorker(task.job, lost=OVERDUE, counts=False))

    def _lose(self, key: str, why: str, *, counts: bool) -> None:
        """Ends a task whose worker was lost."""
        task = self._release(key)
        if task.order is not None:
            task.order.end(error=WorkerLostError(why, counts=counts))
        elif task.job is not None and task.requested_s is None:
            task.post(JobLeftWorker(task.job, lost=why, counts=counts))
        elif task.job is not None:
            # Its request may be answered already. A loss told now would be taken for that of its next start.
            self._jobs_without_worker[task.job] = task.post

    def _end_all(self, error: BaseException) -> None:
        """Ends all orders and tasks with an error. ``_failure`` or ``_is_closed`` is set, so none begins."""
        queue, self._queue = list(self._queue), deque()
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self._release(key)
        for order in (*queue, *(task.order for task in tasks if task.order is not None)):
            order.end(error=error)
        for task in tasks:
            if task.order is None:
                task.post(ExecutorFailed(error, task.job))

    def _fail(self, error: BaseException) -> None:
        """Ends everything with an error that ends the search."""
        if self._failure is None and not self._is_closed.is_set():
            self._failure = error
            self._end_all(error)

    def _handle(self, key: str, task: EngineTask, worker: Any, message: Message) -> None:
        order = task.order
        match message:
            case Taken():
                task.worker = worker
            case Started() | Resumed() | Reported():
                self._unfit.clear()
                if order is not None:
                    order.post(self._answerable(key, message))
            case ExtraResult() | Notice():
                task.post(message)
            case Finished(trial=trial):
                self._end_order(key, task, trial)
            case TrialLost(why=why, counts=counts):
                task.job = None
                error = None if why == "interrupted" else WorkerLostError(f"{why} (on {worker})", counts=counts)
                self._end_order(key, task, None, error)
            case TrialRequested():
                task.requested_s = time.monotonic()
                task.post(message)
            case JobLeftWorker():
                task.job = None
                task.post(message)
                if order is None:
                    self._release(key)
            case Answered(answer=answer):
                self._end_order(key, task, answer)
            case Refused(error=text, is_lost=is_lost):
                refusal = ActionError(text)
                refusal.__cause__ = WorkerLostError(text) if is_lost else None
                self._end_order(key, task, None, refusal)
            case WorkerUnfit():
                self._drop_unfit(key, worker, message)

    def _end_order(self, key: str, task: EngineTask, result: Any, error: BaseException | None = None) -> None:
        order, task.order = task.order, None
        if task.job is None:
            self._release(key)
        if order is not None:
            order.end(result, error)

    def _answerable(self, key: str, event: Started | Resumed | Reported) -> Event:
        if not isinstance(event, Reported) or event.answer is None:
            return event
        return replace(event, answer=lambda stop: self._tell(key, "decide", event.trial, event.step, stop))

    def _drop_unfit(self, key: str | None, worker: Any, message: WorkerUnfit) -> None:
        """Lets a worker go that can't run trials; too many of them end the search."""
        self._unfit[str(worker)] = message.is_storage
        self._exclude(worker)
        if len(self._unfit) >= MAX_UNFIT or (not self._may_grow and not self._capacity):
            self._fail(self._unfit_error(worker, message))
            return
        self._display.note(f"worker {worker} leaves, because it can't run trials: {message.error}")
        self._retire(worker)
        if key is not None:
            self._lose(key, f"its worker {worker} can't run trials: {message.error}", counts=False)

    def _unfit_error(self, worker: Any, message: WorkerUnfit) -> HeirloomError:
        if message.is_mistake:
            return ConfigurationError(f"worker {worker} can't run trials: {message.error}")
        text = f"{len(self._unfit)} workers in turn can't run trials; the last, {worker}: {message.error}"
        return StorageError(text) if all(self._unfit.values()) else SearchFailedError(text)

    def _watch(self) -> None:
        while not self._is_closed.wait(WATCH_S):
            with self._lock:
                self._check()
                self._show_workers()
                self._tell_busy(time.monotonic())

    def _show_workers(self) -> None:
        n, orders = self._capacity, len(self._queue) + len(self._tasks)
        room = f" with room for {n} trials" if n != self._n_workers else ""
        workers = f"{self._n_workers} worker{'s' * (self._n_workers != 1)}{room}"
        here = f"{workers} for {self._slots} slot{'s' * (self._slots != 1)}"
        wait = f"workers: {here}{self._shortage}" if orders and not n else ""
        if n != self._shown[0] and (n or self._shown[0] > 0):
            self._display.note(here)
        if wait != self._shown[1]:
            self._display.show_wait(wait or None)
        self._shown = n, wait

    def _tell_busy(self, now_s: float) -> None:
        """Tells the controller of trials without workers while jobs wait on workers.

        Only it can dismiss a job.
        """
        n_waiting = len(self._queue) + max(0, len(self._tasks) - self._capacity)
        placed = [task for task in self._tasks.values() if task.worker is not None]
        waiting = [t for t in placed if t.requested_s is not None and now_s - t.requested_s > BUSY_S]
        if n_waiting and waiting:
            waiting[0].post(WorkersBusy(n_waiting, is_stuck=len(waiting) == len(placed)))


def _name(content: Assignment | JobStart | Call) -> str:
    match content:
        case Assignment(trial=trial):
            return f"trial-{trial.number:04d}-{trial.attempt}"
        case JobStart(job=job):
            return f"job-{job:04d}"
    return f"{content.action}-{content.subject.number:04d}"
