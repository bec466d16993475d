"""The worker's side of ``RayPool``: what an actor runs, in Ray's worker process."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from nas.executors.engine_session import EngineSession, Message
from nas.executors.engine_worker import packed, unpacked

END_S = 5.0
"""Seconds that the driver gets to take in the last messages of an actor that leaves."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The first message of a worker."""

    host: str
    pid: int


class RayWorker(EngineSession):
    """The orders and messages of one actor.

    Ray calls ``messages`` once, on a thread of its own, and ``order`` for each message of the driver.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outbox.put(packed((None, WorkerReady(os.uname().nodename, os.getpid()))))
        vars(sys.modules["__main__"]).pop("__file__", None)  # else each worker process runs Ray's program first
        self._take_sigterm()

    def send(self, key: str | None, message: Message) -> None:
        """Adds a message to those that the driver takes."""
        self._outbox.put(packed((key, message)))

    def messages(self) -> Iterator[bytes]:
        """Yields all messages, until the worker has left."""
        while (content := self._outbox.get()) is not None:
            yield content

    def order(self, content: bytes) -> None:
        """Calls one of this session's methods, on a thread of its own."""
        method, arguments = unpacked(content)
        self.call_in_thread(method, *arguments)

    def _take_sigterm(self) -> None:
        """Leaves at SIGTERM, as when a node is preempted.

        Ray's main thread runs no Python code, so no handler: the signal's number arrives in a pipe.
        """
        inlet, outlet = os.pipe()
        os.set_blocking(outlet, False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.set_wakeup_fd(outlet, warn_on_full_buffer=False)

        def wait() -> None:
            while signal.SIGTERM not in os.read(inlet, 1):
                pass
            self.leave("its worker got SIGTERM")
            self._outbox.put(None)
            threading.Event().wait(END_S)  # the driver ends the actor meanwhile
            os._exit(0)

        threading.Thread(target=wait, name="heirloom-sigterm", daemon=True).start()
