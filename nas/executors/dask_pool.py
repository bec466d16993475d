"""A worker pool on a Dask cluster; ``dask_worker`` is the workers' side."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from distributed import Client, Future, KilledWorker

from nas.core.errors import ConfigurationError, SearchInterruptedError
from nas.executors.dask_worker import RUN_TASK, tell
from nas.executors.driver_folder import DriverFolder
from nas.executors.engine_pool import CLOSED, Display, EnginePool, EngineTask
from nas.executors.engine_session import WorkerLeaves
from nas.executors.engine_worker import EngineSpec, PackedOrder, WorkerUnfit, packed, unpacked
from nas.executors.pool import WorkerLostError

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0
RETIRE_AGAIN_S = 0.1
ASK_AGAIN_S = 5.0
"""Seconds between two questions for the workers, besides those when one joins."""
MUST_ARRIVE = ("run_next", "decide", "dismiss")
"""Messages without which a trial or a job would wait forever."""
MUST_STOP = ("kill", "interrupt")
"""Stops without which a trial is given up, so that its worker ends it."""


@dataclass(slots=True)
class _Workers:
    """The cluster's workers, as the scheduler tells of them."""

    capacities: dict[str, int] = field(default_factory=dict)
    """Number of tasks that each may run at a time, by address."""
    n_changes: int = 0
    """Number of times that a worker joined or was removed."""
    leaving: dict[str, str] = field(default_factory=dict)
    """Reasons of workers that said that they leave."""
    unfit: set[str] = field(default_factory=set)
    """Workers that can't run trials and have not left yet."""

    @property
    def capacity(self) -> int:
        return sum(self.capacities.values())

    @property
    def usable(self) -> set[str]:
        """Workers that can run tasks."""
        return {address for address, capacity in self.capacities.items() if capacity > 0}


class DaskPool(EnginePool):
    """Runs attempts as tasks of a Dask cluster.

    No task is bound to a worker, and each thread of a worker runs one task. Tasks beyond that capacity wait in the
    driver, but for ``n_ahead``. Until an unfit worker has left, ``n_ahead`` counts as 0, and tasks name the other
    workers. The scheduler tells of lost workers. Dask begins a lost task again; the pool has released it by then, and
    the worker trains nothing. Messages from workers and from the scheduler arrive on the client's thread.

    Args:
        spec: The settings of workers; it holds no credentials.
        client: A client of the cluster, not used for anything else. ``close`` closes it.
        display: Shows the user what happens.
        slots: Number of trials that there may be at a time, for messages.
        resources: Abstract resources of Dask that each trial takes, such as ``{"GPU": 1}``.
        n_ahead: Number of tasks to submit even without workers, so that an adaptive cluster starts some.
        may_grow: Whether workers may join: a fixed cluster whose last worker is unfit ends the search.
    """

    def __init__(
        self,
        spec: EngineSpec,
        client: Client,
        display: Display,
        *,
        slots: int = 1,
        resources: Mapping[str, float] | None = None,
        n_ahead: int = 0,
        may_grow: bool = True,
    ) -> None:
        self._claims = DriverFolder() if spec.gpus else None
        claims = "" if self._claims is None else str(self._claims.path)
        super().__init__(replace(spec, claims=claims), display, slots, may_grow=may_grow)
        self._n_ahead_of_workers = n_ahead
        self._client = client
        self._resources = dict(resources or {})
        self._topic = str(client.id)  # Dask drops the events of this topic when the client is gone
        self._workers = _Workers()
        self._futures: dict[str, Future] = {}
        self._chosen: dict[str, set[str]] = {}
        """The only workers of tasks that were sent while another was unfit."""
        self._asked_s = time.monotonic()
        client.subscribe_topic(self._topic, self._receive)
        client.subscribe_topic("all", self._receive_from_scheduler)
        client.loop.add_callback(self._refresh_workers)
        self._watcher.start()

    def fail(self, error: BaseException) -> None:
        """Ends everything with an error that ends the search; called by who watches the cluster."""
        with self._lock:
            self._fail(error)

    def close(self) -> None:
        """Ends all trials, and closes the client and its own cluster."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            self._end_all(WorkerLostError(CLOSED, counts=False))
            addresses = list(self._workers.capacities)
        self._watcher.join()
        for topic in (self._topic, "all"):
            _try(partial(self._client.unsubscribe_topic, topic))  # it closes itself when the scheduler is gone
        cluster = self._client.cluster
        if cluster is None and addresses and self._client.status == "running":
            self._end_sessions(addresses)
        _try(partial(self._client.close, CLOSE_TIMEOUT_S))
        if cluster is not None:
            _try(cluster.close)  # a job that starts meanwhile is an AssertionError; its worker ends without a scheduler
        if self._claims is not None:
            self._claims.remove()

    @property
    def _capacity(self) -> int:
        return self._workers.capacity

    @property
    def _n_workers(self) -> int:
        return len(self._workers.usable)

    @property
    def _n_ahead(self) -> int:
        return 0 if self._workers.unfit else self._n_ahead_of_workers

    @property
    def _shortage(self) -> str:
        n = sum(not capacity for capacity in self._workers.capacities.values())
        takes = ", ".join(f"{name}={amount:g}" for name, amount in self._resources.items())
        lacking = f"; {n} without the resources {takes}" if n and takes else ""
        return lacking + "".join(f"; {name} can't run trials and has not left" for name in sorted(self._workers.unfit))

    def _start(self, key: str, task: EngineTask, order: PackedOrder) -> None:
        if self._workers.unfit:
            self._chosen[key] = self._workers.usable
        names = {"topic": self._topic, "key": key, "order": packed(order)}
        future = self._futures[key] = self._client.submit(
            exec,
            RUN_TASK,
            names,
            key=key,
            pure=False,
            resources=self._resources or None,
            workers=self._chosen.get(key),
        )
        future.add_done_callback(lambda future: self._check_end(key, future))

    def _forget(self, key: str, task: EngineTask) -> None:
        """Releases a task: Dask forgets it too, and does not begin it again."""
        self._futures.pop(key).release()
        self._chosen.pop(key, None)

    def _exclude(self, worker: Any) -> None:
        self._workers.capacities.pop(worker, None)
        self._workers.unfit.add(worker)

    def _retire(self, worker: Any) -> None:
        self._client.loop.add_callback(self._retire_worker, worker)

    def _check(self) -> None:
        if self._client.status in ("connecting", "closed"):
            self._fail(self._scheduler_lost())
        elif time.monotonic() - self._asked_s >= ASK_AGAIN_S:  # a worker may have joined before the subscription
            self._asked_s = math.inf  # until the answer
            self._client.loop.add_callback(self._refresh_workers)

    def _tell(self, key: str, method: str, *arguments: Any) -> None:
        """Sends a message to the worker of a task.

        Returns at once: to a lost worker it takes half a minute.
        """
        self._client.loop.add_callback(self._send, key, method, arguments)

    async def _send(self, key: str, method: str, arguments: tuple[Any, ...]) -> None:
        task = self._tasks.get(key)
        if task is None or task.worker is None:
            return
        try:
            await self._client.run(tell, self._topic, method, key, *arguments, workers=[task.worker], wait=False)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: the scheduler has removed the worker
            logger.info("%s to %s: %s", method, task.worker, error)
            with self._lock:
                if (method in MUST_ARRIVE or arguments[-1] in MUST_STOP) and self._tasks.get(key) is task:
                    self._lose(key, f"its worker {task.worker} can't be reached: {error}", counts=True)

    def _end_sessions(self, addresses: list[str]) -> None:
        """Ends the processes of this driver on workers that go on."""

        async def end() -> None:
            told = self._client.run(tell, self._topic, "close", workers=addresses, wait=False, on_error="ignore")
            await asyncio.wait_for(told, CLOSE_TIMEOUT_S)

        try:
            self._client.sync(end, callback_timeout=CLOSE_TIMEOUT_S + 1)
        except (OSError, TimeoutError, ValueError) as error:
            logger.info("workers end their processes by themselves within half a minute: %s", error)

    def _receive(self, event: tuple[float, Any]) -> None:
        if not isinstance(event[1], bytes):  # the scheduler's own on this client
            return
        key, address, message = unpacked(event[1])
        with self._lock:
            if isinstance(message, WorkerLeaves):
                self._workers.leaving[address] = message.why
                self._workers.capacities.pop(address, None)
            elif (task := self._tasks.get(key)) is not None:
                self._handle(
                    key, task, address, WorkerUnfit.without_heirloom(message) if isinstance(message, str) else message
                )

    async def _retire_worker(self, address: str) -> None:
        """Retires a worker.

        Dask refuses while the worker alone holds a result, as that of a task not yet released.
        """
        try:
            while not self._is_closed.is_set():
                await self._client.retire_workers([address], close_workers=True)
                if address not in (await self._client.scheduler.identity())["workers"]:
                    return
                await asyncio.sleep(RETIRE_AGAIN_S)
        except OSError as error:  # the scheduler is gone, or the client closes
            logger.info("%s was not retired: %s", address, error)

    def _receive_from_scheduler(self, event: tuple[float, Any]) -> None:
        match event[1]:
            case {"action": "add-worker"}:
                self._workers.n_changes += 1
                self._client.loop.add_callback(self._refresh_workers)
            case {"action": "remove-worker", "worker": address, "processing-tasks": keys, "expected": is_expected}:
                done = event[1].get("lost-computed-tasks", ())  # for Dask also that of a job which waited for a trial
                with self._lock:
                    self._remove_worker(address, {*keys, *done}, is_expected)

    def _remove_worker(self, address: str, keys: set[str], is_expected: bool) -> None:
        """Ends the tasks of a worker.

        Dask moves those that the worker had not begun.
        """
        self._workers.capacities.pop(address, None)
        self._workers.n_changes += 1
        planned = self._workers.leaving.pop(address, None) or ("it was retired" if is_expected else None)
        is_unfit = address in self._workers.unfit
        self._workers.unfit.discard(address)
        why = f"its worker {address} left: {planned}" if planned else f"its worker {address} was lost"
        if not self._is_closed.is_set() and not is_unfit:
            self._display.note(why.removeprefix("its "))
        for key in keys:
            task = self._tasks.get(key)
            if task is not None and task.worker == address:
                self._lose(key, why, counts=planned is None)
        for key in [key for key, chosen in self._chosen.items() if not chosen & self._workers.usable]:
            if self._tasks[key].worker is None:  # Dask would wait for these workers forever
                self._lose(key, why, counts=False)
        self._dispatch()  # what waited while it was unfit

    async def _refresh_workers(self) -> None:
        """Asks the scheduler for its workers, again if one joins or is removed meanwhile.

        Answers may arrive in another order than that of the questions.
        """
        n_changes = -1
        try:
            while n_changes != self._workers.n_changes:
                n_changes = self._workers.n_changes
                found = await self._client.scheduler.identity()
        except OSError as error:  # the scheduler is gone, or the client closes
            logger.info("the scheduler does not tell its workers: %s", error)
            return
        finally:
            self._asked_s = time.monotonic()
        with self._lock:
            absent = self._workers.leaving.keys() | self._workers.unfit
            self._workers.capacities = {
                address: self._capacity_of(worker)
                for address, worker in found["workers"].items()
                if address not in absent
            }
            self._dispatch()

    def _capacity_of(self, worker: Mapping[str, Any]) -> int:
        has = worker["resources"]
        n_threads: int = worker["nthreads"]
        return min([n_threads, *(int(has.get(name, 0) / n) for name, n in self._resources.items())])

    def _check_end(self, key: str, future: Future) -> None:
        """Handles a task that failed outside its code, was cancelled, or lost its scheduler."""
        if future.status == "finished":
            return
        error = future.exception() if future.status == "error" else None
        with self._lock:
            if (task := self._tasks.get(key)) is None:
                return
            if error is None and self._client.status == "running":
                self._lose(key, "another client of the cluster has cancelled its task", counts=False)
            elif error is None:
                self._fail(self._scheduler_lost())
            elif isinstance(error, KilledWorker):
                self._lose(key, f"its workers were lost, one after another: {error}", counts=True)
            else:
                where = task.worker or "a worker of Dask"
                self._fail(ConfigurationError(f"{where} can't run trials: {type(error).__name__}: {error}"))

    def _scheduler_lost(self) -> SearchInterruptedError:
        return SearchInterruptedError("the Dask scheduler was lost")


def _try(close: Callable[[], object]) -> None:
    """Calls ``close``. Its error is logged, since it would hide the outcome of the session."""
    try:
        close()
    except Exception as error:  # of any package that has a cluster
        logger.warning("the Dask cluster was not closed: %s: %s", type(error).__name__, error)
