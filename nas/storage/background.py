"""Hashing beside reading and writing, on a second processor where there is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from nas.core.cpus import usable_cores

_ALONE = 1 << 20
"""Bytes that are hashed before a second thread is worth its start."""
N_PROCESSORS = usable_cores()
_AHEAD = 8
"""Calls that may wait, so that the memory that they hold is bounded."""

P = ParamSpec("P")
T = TypeVar("T")


def run_in_parallel(items: Iterable[T], n_bytes: int, work: Callable[[T], object]) -> None:
    """Calls ``work`` for each item, on two threads where there is much to do; each takes the next item when it is free.

    So none waits for the other. Handing pieces of some 100 kB from thread to thread costs as much as hashing them.

    Args:
        items: What is to be worked on, in any order.
        n_bytes: How much all of it is.
        work: Lets other threads run while it reads or hashes. What it raises is raised here, and ends all work.
    """
    to_do = iter(list(items))
    has_failed = False

    def take() -> None:
        nonlocal has_failed
        for item in to_do:
            if has_failed:
                return
            try:
                work(item)
            except BaseException:
                has_failed = True
                raise

    if N_PROCESSORS == 1 or n_bytes < _ALONE:
        take()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="heirloom-hash") as pool:
        beside = pool.submit(take)
        take()
        beside.result()


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
