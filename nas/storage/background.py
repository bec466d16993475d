"""Hashing on a second thread, in parallel with reading and writing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from nas.core.cpus import usable_cores

_MIN_PARALLEL_BYTES = 1 << 20
"""Bytes below which starting a second thread costs more than it saves."""
N_CORES = usable_cores()
_MAX_QUEUED = 8
"""Maximum number of queued calls, to bound the memory that they hold."""

P = ParamSpec("P")
T = TypeVar("T")


def run_in_parallel(items: Iterable[T], n_bytes: int, work: Callable[[T], object]) -> None:
    """Calls ``work`` for each item, on two threads if there are enough bytes.

    Each thread takes the next item when it is free. A queue would cost as much as hashing items of 100 kB.

    Args:
        items: Items, processed in any order.
        n_bytes: Their total size.
        work: Function that releases the GIL while it reads or hashes. Its first exception stops all work and is raised.
    """
    pending = iter(list(items))
    has_failed = False

    def process() -> None:
        nonlocal has_failed
        for item in pending:
            if has_failed:
                return
            try:
                work(item)
            except BaseException:
                has_failed = True
                raise

    if N_CORES == 1 or n_bytes < _MIN_PARALLEL_BYTES:
        process()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="heirloom-hash") as pool:
        other = pool.submit(process)
        process()
        other.result()


class Background:
    """A thread that runs calls one after the other, started when there are enough bytes.

    Exceptions of calls are raised by later calls or at the end of the ``with`` block, which waits for all calls.
    """

    def __init__(self) -> None:
        self._n_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._calls: deque[Future[object]] = deque()

    def __enter__(self) -> Background:
        return self

    def run(self, n_bytes: int, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Runs a call that processes this many bytes, now or later on the thread."""
        self._n_bytes += n_bytes
        if N_CORES == 1 or (self._pool is None and self._n_bytes < _MIN_PARALLEL_BYTES):
            call(*args, **kwargs)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="heirloom-hash")
        self._calls.append(self._pool.submit(call, *args, **kwargs))
        if len(self._calls) > _MAX_QUEUED:
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
