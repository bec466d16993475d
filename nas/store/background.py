"""Hashing beside reading and writing, so that a large file costs the slower of the two instead of their sum."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec

_ALONE = 1 << 20
"""Bytes that are hashed before a second thread is worth its start."""
N_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_AHEAD = 32
"""Calls that may wait, so that the memory that they hold is bounded."""

P = ParamSpec("P")


class Background:
    """Runs calls one after the other, beside the caller once there is much to do; what they raise is raised here.

    Leaving the ``with`` block waits for the last of them.
    """

    def __init__(self) -> None:
        self._n_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._calls: deque[Future[object]] = deque()

    def __enter__(self) -> Background:
        return self

    def run(self, n_bytes: int, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls, now or soon, something that works through this many bytes."""
        self._n_bytes += n_bytes
        if N_PROCESSORS == 1 or (self._pool is None and self._n_bytes < _ALONE):
            call(*args, **kwargs)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="heirloom-hash")
        self._calls.append(self._pool.submit(call, *args, **kwargs))
        if len(self._calls) > _AHEAD:
            self._calls.popleft().result()

    def finish(self) -> None:
        """Waits for all calls."""
        while self._calls:
            self._calls.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
