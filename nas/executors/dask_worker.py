"""The functions that Dask's workers run for ``DaskPool``.

Messages go to the driver by ``Worker.log_event``. Each is a pickled tuple: key of the task (None: all tasks of the
worker), address of the worker, content.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from nas.executors.engine_session import EngineSession, Message
from nas.executors.engine_worker import PackedOrder, packed

WATCH_S = 1.0
IDLE_S = 30.0
"""Seconds after which a warm process without a task ends. A new one starts in seconds."""
RUNNING = frozenset({"executing", "long-running"})
"""States of a task that its driver has not released."""


class WorkerSession(EngineSession):
    """The processes of one driver on one Dask worker: one per thread."""

    def __init__(self, worker: Worker, topic: str) -> None:
        super().__init__()
        self._worker = worker
        self._topic = topic
        self._plugin = f"heirloom-{topic}-{id(self)}"
        worker.loop.add_callback(worker.plugin_add, ShutdownPlugin(self), name=self._plugin)
        threading.Thread(target=self._watch, name="heirloom-dask-watch", daemon=True).start()

    def send(self, key: str | None, message: Message) -> None:
        """Tells the driver."""
        self._worker.log_event(self._topic, packed((key, self._worker.address, message)))

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
                quiet_since_s = now_s if self._tasks or self._beginning or self._idle else quiet_since_s
                self.is_closed = self.is_closed or now_s - quiet_since_s > IDLE_S
            for engine in over:
                engine.close()
        _forget(self)
        self._worker.loop.add_callback(self._remove_plugin)

    async def _remove_plugin(self) -> None:
        if self._plugin in self._worker.plugins:  # not if the worker closes
            await self._worker.plugin_remove(self._plugin)


class ShutdownPlugin(WorkerPlugin):  # type: ignore[misc]  # mypy skips Dask
    """Lets a worker that closes, or gets SIGTERM, tell the driver first.

    Its trials then do not count as attempts.

    Slurm sends SIGTERM to all processes of a job. Dask's worker would end at once by it, without a word.
    """

    def __init__(self, session: WorkerSession) -> None:
        self._session = session
        self._leaving: list[Any] = []

    def setup(self, worker: Worker) -> None:
        """Takes SIGTERM in; the worker closes after it, as by Dask's own handler."""
        loop = asyncio.get_running_loop()

        def leave(number: int, frame: object) -> None:
            loop.call_soon_threadsafe(lambda: self._leaving.append(loop.create_task(self._close(worker))))

        if threading.current_thread() is threading.main_thread():  # not that of a driver with Dask's threads
            signal.signal(signal.SIGTERM, leave)

    async def teardown(self, worker: Worker) -> None:
        """Ends what runs, before the worker closes its connections."""
        if not self._session.is_closed:
            await asyncio.to_thread(self._session.leave, "its worker was closed")

    async def _close(self, worker: Worker) -> None:
        await asyncio.to_thread(self._session.leave, "its worker got SIGTERM")
        await worker.close(reason="SIGTERM", executor_wait=False, timeout=2)


_sessions: dict[tuple[str, str], WorkerSession] = {}
"""By topic and address: one process may hold several workers."""
_lock = threading.Lock()


def _forget(session: WorkerSession) -> None:
    with _lock:
        for place in [place for place, found in _sessions.items() if found is session]:
            del _sessions[place]


RUN_TASK = """
from distributed import get_worker
try:
    from nas.executors.dask_worker import run_task
    from nas.executors.engine_worker import unpacked
    order = unpacked(order)
except Exception as error:
    import pickle, sys
    worker = get_worker()
    worker.log_event(topic, pickle.dumps((key, worker.address, f"{type(error).__name__}: {error} ({sys.executable})")))
else:
    run_task(topic, key, order)
"""
"""The body of a task, as source.

Dask's worker ends without a word if a task is a function of a module that it does not have. With this source, a worker
that can't import Heirloom answers by a text.
"""


def run_task(topic: str, key: str, order: PackedOrder) -> None:
    """Runs one order of a driver."""
    worker = get_worker()
    with _lock:
        session = _sessions.get((topic, worker.address))
        if session is None or session.is_closed:
            session = _sessions[topic, worker.address] = WorkerSession(worker, topic)
    session.run(key, order)


async def tell(topic: str, method: str, *arguments: Any, dask_worker: Worker) -> None:
    """Calls a method of this worker's session, also while its task runs."""
    if (session := _sessions.get((topic, dask_worker.address))) is not None:
        session.call_in_thread(method, *arguments)
