"""A thread-safe queue of events."""

from __future__ import annotations

import queue
import time

from nas.core.errors import SearchInterruptedError
from nas.executors.events import Event, StopRequested

POLL_S = 0.1
"""Seconds between two checks for a requested stop during a wait."""
MAX_WAIT_S = 86400.0
"""The longest wait in one call. Python's limits are 24 days for files, and ``threading.TIMEOUT_MAX``."""


class EventQueue:
    """The events of an executor, in the order posted. A signal handler may post too."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stop: StopRequested | None = None

    def now_s(self) -> float:
        """Returns the seconds of the system's monotonic clock."""
        return time.monotonic()

    def post(self, event: Event) -> None:
        """Adds an event."""
        if isinstance(event, StopRequested):
            self._stop = event
        self._queue.put(event)

    def raise_if_stop_requested(self) -> None:
        """Checks for a requested stop; for waits during which no events are taken.

        Raises:
            SearchInterruptedError: a stop was requested.
        """
        if self._stop is not None:
            raise SearchInterruptedError(self._stop.why, self._stop.signal)

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s`` and after a day."""
        left_s = None if until_s is None else min(max(0.0, until_s - self.now_s()), MAX_WAIT_S)
        try:
            return self._queue.get(timeout=left_s)
        except queue.Empty:
            return None
