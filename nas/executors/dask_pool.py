"""A worker pool on a Dask cluster; ``dask_worker`` is the workers' side."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client, Future, KilledWorker

from nas.core.errors import ActionError, ConfigurationError, HeirloomError, SearchFailedError, SearchInterruptedError
from nas.core.trial import Trial
from nas.executors.dask_worker import Answered, Call, Message, Refused, Taken, WorkerLeaves, run_task, tell
from nas.executors.engine_worker import EngineSpec, PackedOrder, WorkerUnfit, unpacked
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Reported,
    Started,
    StopKind,
    TrialLost,
    TrialRequested,
    WorkersBusy,
)
from nas.executors.pool import WorkerLostError, WorkerPool
from nas.training.messages import Assignment, JobStart

logger = logging.getLogger(__name__)
WATCH_S = 0.5
BUSY_S = 1.0
"""Seconds that a job waits on a worker that others need, before the controller is told."""
CLOSE_TIMEOUT_S = 5.0
MAX_CALLS = 3
"""Workers that a test or an export may lose."""
MAX_UNFIT = 3
"""Workers in a row that can't run trials before the search ends."""
CLOSED = "the session has ended"


class _Order:
    """An attempt, a test or an export with a waiting thread, or a job to start."""

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

    @property
    def trial(self) -> Trial | None:
        """The trial that it runs."""
        return self.content.trial if isinstance(self.content, Assignment) else None

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        self._result, self._error = result, error
        self._ended.set()

    def wait(self) -> Any:
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result


@dataclass(slots=True)
class _Task:
    """A Dask task: an attempt, a job's stay on a worker, a test or an export."""

    order: _Order | None
    job: int | None
    post: Callable[[Event], None]
    future: Future | None = None
    address: str | None = None
    """The worker that has begun it."""
    requested_s: float | None = None
    """Time since which its job waits for its next trial."""


@dataclass(slots=True)
class _Workers:
    """The cluster's workers, as the scheduler tells of them."""

    places: dict[str, int] = field(default_factory=dict)
    """Number of tasks that each may run at a time, by address."""
    n_removed: int = 0
    leaving: dict[str, str] = field(default_factory=dict)
    """Reasons of workers that said that they leave."""
    unfit: dict[str, str] = field(default_factory=dict)

    @property
    def n_places(self) -> int:
        return sum(self.places.values())


class DaskPool(WorkerPool):
    """Runs attempts as tasks of a Dask cluster.

    A task is an attempt, or a job from its first trial until it leaves. Its key names the attempt. No task is bound to
    a worker, and there are never more tasks than the workers have threads: the rest waits here. The scheduler tells of
    lost workers. Dask begins a lost task again; the pool has released it by then, and the worker trains nothing.

    Args:
        spec: The settings of workers; it holds no credentials.
        client: A client of the cluster, not used for anything else. ``close`` closes it.
        slots: Number of trials that there may be at a time, for messages.
        resources: Abstract resources of Dask that each trial takes, such as ``{"GPU": 1}``.
        may_grow: Whether workers may join: a fixed cluster whose last worker is unfit ends the search.
        note: Takes a line for the user.
        show_wait: Takes what all trials wait for, or None.
    """

    def __init__(
        self,
        spec: EngineSpec,
        client: Client,
        *,
        slots: int = 1,
        resources: Mapping[str, float] | None = None,
        may_grow: bool = True,
        note: Callable[[str], None] = lambda line: None,
        show_wait: Callable[[str | None], None] = lambda what: None,
    ) -> None:
        self._spec = spec
        self._client = client
        self._slots = slots
        self._resources = dict(resources or {})
        self._may_grow = may_grow
        self._note = note
        self._show_wait = show_wait
        self._topic = str(client.id)  # Dask drops the events of this topic when the client is gone
        self._lock = threading.RLock()
        self._queue: deque[_Order] = deque()
        self._tasks: dict[str, _Task] = {}
        self._workers = _Workers()
        self._homeless: dict[int, Callable[[Event], None]] = {}
        """Jobs that wait for an answer after their worker was lost, with their ``post``."""
        self._n_unfit = 0
        self._n_submitted = 0
        self._shown = (-1, "")
        self._failure: BaseException | None = None
        self._is_closed = threading.Event()
        client.subscribe_topic(self._topic, self._receive)
        client.subscribe_topic("all", self._receive_from_scheduler)
        client.loop.add_callback(self._refresh_workers)
        self._watcher = threading.Thread(target=self._watch, name="heirloom-dask-watch", daemon=True)
        self._watcher.start()

    # ---- calls of the controller

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt on the worker where its job waits, or as a new task."""
        order = _Order(assignment, post)
        with self._lock:
            self._homeless.pop(assignment.trial.job, None)
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
            self._enqueue(_Order(job_start, post))

    def dismiss(self, job: int) -> None:
        """Tells the job's worker; if that is lost, the job has left."""
        with self._lock:
            if (found := self._task_of(job)) is not None:
                found[1].requested_s = None
                self._tell(found[0], "dismiss", job)
            elif (post := self._homeless.pop(job, None)) is not None:
                post(JobLeftWorker(job))

    def stop(self, trial: Trial, kind: StopKind) -> None:
        """Tells the trial's worker; a trial without a worker is taken back."""
        with self._lock:
            if kind != "stop":
                self._take_back(trial.number)
            for key, task in self._tasks.items():
                if task.address is not None and _runs(task.order, trial.number):
                    self._tell(key, "stop", trial, kind)

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports as a task, and as another if its worker is lost."""
        for n_left in reversed(range(MAX_CALLS)):
            order = _Order(Call(action, trial))
            with self._lock:
                self._enqueue(order)
            try:
                answer: Mapping[str, Any] = order.wait()
                return answer
            except WorkerLostError as error:
                if not n_left or self._is_closed.is_set():
                    raise ActionError(f"{action} of trial {trial.number}: {error}") from error
        raise AssertionError("the last call returns or raises")

    def close(self) -> None:
        """Ends all trials, and closes the client and its own cluster."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            self._end_all(WorkerLostError(CLOSED, counts=False))
            addresses = list(self._workers.places)
        self._watcher.join()
        for topic in (self._topic, "all"):
            self._client.unsubscribe_topic(topic)
        cluster = self._client.cluster
        if cluster is None and addresses and self._client.status == "running":
            self._end_sessions(addresses)
        self._client.close(CLOSE_TIMEOUT_S)
        if cluster is not None:
            cluster.close()

    # ---- tasks; with the lock held

    def _task_of(self, job: int) -> tuple[str, _Task] | None:
        return next(((key, task) for key, task in self._tasks.items() if task.job == job), None)

    def _enqueue(self, order: _Order) -> None:
        if self._failure is not None or self._is_closed.is_set():
            self._end(order, self._failure or WorkerLostError(CLOSED, counts=False))
            return
        self._queue.append(order)
        self._dispatch()

    def _dispatch(self) -> None:
        """Submits the oldest orders while there are workers for them."""
        while self._queue and len(self._tasks) < self._workers.n_places:
            self._submit(self._queue.popleft())

    def _submit(self, order: _Order) -> None:
        self._n_submitted += 1
        key = f"{_name(order.content)}-{self._topic}-{self._n_submitted}"
        job = order.job if self._spec.runtime.jobs_request_trials else None
        task = self._tasks[key] = _Task(None if isinstance(order.content, JobStart) else order, job, order.post)
        packed = PackedOrder.of(self._spec, order.content)
        task.future = self._client.submit(
            run_task, self._topic, key, packed, key=key, pure=False, resources=self._resources or None
        )
        task.future.add_done_callback(lambda future: self._check_end(key, future))

    def _release(self, key: str) -> _Task:
        """Forgets a task. Dask forgets it too, and does not begin it again."""
        task = self._tasks.pop(key)
        if task.future is not None:
            task.future.release()
        self._dispatch()
        return task

    def _take_back(self, trial: int) -> None:
        """Ends a trial that no worker has begun."""
        for waiting in [order for order in self._queue if _runs(order, trial)]:
            self._queue.remove(waiting)
            waiting.end()
        for key in [k for k, task in self._tasks.items() if task.address is None and _runs(task.order, trial)]:
            if (order := self._release(key).order) is not None:
                order.end()

    def _lose(self, key: str, why: str, *, counts: bool) -> None:
        """Ends a task whose worker was lost."""
        task = self._release(key)
        if task.order is not None:
            task.order.end(error=WorkerLostError(why, counts=counts))
        elif task.job is not None and task.requested_s is None:
            task.post(JobLeftWorker(task.job, lost=why, counts=counts))
        elif task.job is not None:
            # Its request may be answered already. A loss told now would be taken for that of its next stay.
            self._homeless[task.job] = task.post

    def _end_all(self, error: BaseException) -> None:
        tasks = list(self._tasks.values())
        orders = [*self._queue, *(task.order for task in tasks if task.order is not None)]
        self._queue.clear()
        for key in list(self._tasks):
            self._release(key)
        for order in orders:
            self._end(order, error)
        for task in tasks:
            if task.order is None:
                task.post(ExecutorFailed(error, task.job))

    def _end(self, order: _Order, error: BaseException) -> None:
        order.end(error=error)
        if isinstance(order.content, JobStart):  # no thread waits for it
            order.post(ExecutorFailed(error, order.job))

    def _fail(self, error: BaseException) -> None:
        """Ends everything with an error that ends the search."""
        if self._failure is None and not self._is_closed.is_set():
            self._failure = error
            self._end_all(error)

    # ---- messages to workers

    def _tell(self, key: str, method: str, *arguments: Any) -> None:
        """Sends a message to the worker of a task.

        Returns at once: to a lost worker it takes half a minute.
        """
        self._client.loop.add_callback(self._send, key, method, arguments)

    async def _send(self, key: str, method: str, arguments: tuple[Any, ...]) -> None:
        task = self._tasks.get(key)
        if task is None or task.address is None:
            return
        try:
            await self._client.run(tell, self._topic, method, key, *arguments, workers=[task.address], wait=False)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: the scheduler has removed the worker
            logger.info("%s to %s: %s", method, task.address, error)
            with self._lock:
                if method in ("run_next", "dismiss") and self._tasks.get(key) is task:
                    self._lose(key, f"its worker {task.address} can't be reached: {error}", counts=True)

    def _end_sessions(self, addresses: list[str]) -> None:
        """Ends the processes of this driver on workers that go on."""

        async def end() -> None:
            told = self._client.run(tell, self._topic, "close", workers=addresses, wait=False, on_error="ignore")
            await asyncio.wait_for(told, CLOSE_TIMEOUT_S)

        try:
            self._client.sync(end, callback_timeout=CLOSE_TIMEOUT_S + 1)
        except (OSError, TimeoutError, ValueError) as error:
            logger.info("workers end their processes by themselves within half a minute: %s", error)

    # ---- messages from workers and from the scheduler; on the client's thread

    def _receive(self, event: tuple[float, Any]) -> None:
        if not isinstance(event[1], bytes):  # the scheduler's own on this client
            return
        key, address, message = unpacked(event[1])
        with self._lock:
            if isinstance(message, WorkerLeaves):
                self._workers.leaving[address] = message.why
                self._workers.places.pop(address, None)
            elif (task := self._tasks.get(key)) is not None:
                self._handle(key, task, address, message)

    def _handle(self, key: str, task: _Task, address: str, message: Message) -> None:
        order = task.order
        match message:
            case Taken():
                task.address = address
            case Started() | Reported():
                self._n_unfit = 0
                if order is not None:
                    order.post(self._answerable(key, message))
            case ExtraResult():
                task.post(message)
            case Finished(trial=trial):
                self._end_order(key, task, trial)
            case TrialLost(why=why, counts=counts):
                task.job = None
                error = None if why == "interrupted" else WorkerLostError(f"{why} (on {address})", counts=counts)
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
            case Refused(error=text):
                self._end_order(key, task, None, ActionError(text))
            case WorkerUnfit():
                self._drop_unfit(key, address, message)

    def _end_order(self, key: str, task: _Task, result: Any, error: BaseException | None = None) -> None:
        order, task.order = task.order, None
        if task.job is None:
            self._release(key)
        if order is not None:
            order.end(result, error)

    def _answerable(self, key: str, event: Started | Reported) -> Event:
        if not isinstance(event, Reported) or event.answer is None:
            return event
        return replace(event, answer=lambda stop: self._tell(key, "decide", event.trial, event.step, stop))

    def _drop_unfit(self, key: str, address: str, message: WorkerUnfit) -> None:
        """Lets a worker go that can't run trials; too many of them end the search."""
        self._n_unfit += 1
        self._workers.places.pop(address, None)
        self._workers.unfit[address] = message.error
        if self._n_unfit >= MAX_UNFIT or (not self._may_grow and not self._workers.places):
            self._fail(self._unfit_error(address, message))
            return
        self._note(f"worker {address} leaves, because it can't run trials: {message.error}")
        self._client.loop.add_callback(self._retire, address)
        self._lose(key, f"its worker {address} can't run trials: {message.error}", counts=False)

    def _unfit_error(self, address: str, message: WorkerUnfit) -> HeirloomError:
        if message.is_mistake:
            return ConfigurationError(message.error)
        return SearchFailedError(
            f"{self._n_unfit} workers in turn can't run trials; the last, {address}: {message.error}"
        )

    async def _retire(self, address: str) -> None:
        await self._client.retire_workers([address], close_workers=True)

    def _receive_from_scheduler(self, event: tuple[float, Any]) -> None:
        match event[1]:
            case {"action": "add-worker"}:
                self._client.loop.add_callback(self._refresh_workers)
            case {"action": "remove-worker", "worker": address, "processing-tasks": keys, "expected": is_expected}:
                with self._lock:
                    self._remove_worker(address, keys, is_expected)

    def _remove_worker(self, address: str, keys: set[str], is_expected: bool) -> None:
        """Ends the tasks of a worker.

        Dask moves those that the worker had not begun.
        """
        self._workers.places.pop(address, None)
        self._workers.n_removed += 1
        planned = self._workers.leaving.pop(address, None) or ("it was retired" if is_expected else None)
        is_unfit = self._workers.unfit.pop(address, None) is not None
        why = f"its worker {address} left: {planned}" if planned else f"its worker {address} was lost"
        if not self._is_closed.is_set() and not is_unfit:
            self._note(why.removeprefix("its "))
        for key in keys:
            task = self._tasks.get(key)
            if task is not None and task.address == address:
                self._lose(key, why, counts=planned is None)

    async def _refresh_workers(self) -> None:
        """Asks the scheduler for its workers, again if one is removed meanwhile."""
        n_removed = -1
        while n_removed != self._workers.n_removed:
            n_removed = self._workers.n_removed
            found = await self._client.scheduler.identity()
        with self._lock:
            absent = self._workers.leaving.keys() | self._workers.unfit.keys()
            self._workers.places = {
                address: self._n_places(worker) for address, worker in found["workers"].items() if address not in absent
            }
            self._dispatch()

    def _n_places(self, worker: Mapping[str, Any]) -> int:
        has = worker["resources"]
        n_threads: int = worker["nthreads"]
        return min([n_threads, *(int(has.get(name, 0) / n) for name, n in self._resources.items())])

    def _check_end(self, key: str, future: Future) -> None:
        """Handles a task that Dask ended: it failed outside its code, or the scheduler is gone."""
        if future.status == "finished":
            return
        error = future.exception() if future.status == "error" else None
        with self._lock:
            if (task := self._tasks.get(key)) is None:
                return
            if error is None:
                self._fail(self._scheduler_lost())
            elif isinstance(error, KilledWorker):
                self._lose(key, f"its workers were lost, one after another: {error}", counts=True)
            else:
                where = task.address or "a worker of Dask"
                self._fail(ConfigurationError(f"{where} can't run trials: {type(error).__name__}: {error}"))

    def _scheduler_lost(self) -> SearchInterruptedError:
        return SearchInterruptedError("the Dask scheduler was lost")

    # ---- what nobody tells

    def _watch(self) -> None:
        while not self._is_closed.wait(WATCH_S):
            with self._lock:
                if self._client.status in ("connecting", "closed"):
                    self._fail(self._scheduler_lost())
                self._show_workers()
                self._tell_busy(time.monotonic())

    def _show_workers(self) -> None:
        n, orders = self._workers.n_places, len(self._queue) + len(self._tasks)
        here = f"{n} worker{'s' * (n != 1)} for {self._slots} slot{'s' * (self._slots != 1)}"
        wait = f"workers: {here}" if orders and not n else ""
        if n != self._shown[0] and (n or self._shown[0] > 0):
            self._note(here)
        if wait != self._shown[1]:
            self._show_wait(wait or None)
        self._shown = n, wait

    def _tell_busy(self, now_s: float) -> None:
        """Tells the controller of trials without workers while jobs wait on workers.

        Only it can dismiss a job.
        """
        n_waiting = len(self._queue) + max(0, len(self._tasks) - self._workers.n_places)
        placed = [task for task in self._tasks.values() if task.address is not None]
        waiting = [t for t in placed if t.requested_s is not None and now_s - t.requested_s > BUSY_S]
        if n_waiting and waiting:
            waiting[0].post(WorkersBusy(n_waiting, is_stuck=len(waiting) == len(placed)))


def _runs(order: _Order | None, trial: int) -> bool:
    return order is not None and order.trial is not None and order.trial.number == trial


def _name(content: Assignment | JobStart | Call) -> str:
    match content:
        case Assignment(trial=trial):
            return f"trial-{trial.number:04d}-{trial.attempt}"
        case JobStart(job=job):
            return f"job-{job:04d}"
    return f"{content.action}-{content.trial.number:04d}"
