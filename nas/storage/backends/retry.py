"""Network calls: several at a time in threads, and again after temporary errors."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nas.storage.verified import waits

T = TypeVar("T")

_random = random.SystemRandom()  # a problem may have seeded the others


def in_order(calls: Iterable[Callable[[], T]], limit: int) -> Generator[T, None, None]:
    """Yields the result of each call in order, while the next ones run.

    If it ends early, by an error or ``close``, it waits for the running calls: they may write to the caller's memory.

    Args:
        calls: Read by this thread as they are needed.
        limit: The most calls to run at once.
    """
    source = iter(calls)
    first = list(zip(range(2), source, strict=False))
    if len(first) < 2:
        yield from (call() for _, call in first)
        return
    pool = ThreadPoolExecutor(limit, thread_name_prefix="heirloom-remote")
    waiting: deque[Future[T]] = deque(pool.submit(call) for _, call in first)
    try:
        for call in source:
            waiting.append(pool.submit(call))
            if len(waiting) >= limit:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def persist(attempt: Callable[[], T], is_temporary: Callable[[Exception], bool], retry_s: float) -> T:
    """Returns the result of the first attempt that ends without a temporary error.

    Args:
        attempt: A call that may be repeated.
        is_temporary: Whether another attempt may succeed: a lost connection, a busy server.
        retry_s: Seconds to retry after the first error. Attempts that take longer than this are repeated, too.

    Raises:
        Exception: the last temporary error, or the first other one.
    """
    pauses: Iterator[float] | None = None
    while True:
        try:
            return attempt()
        except Exception as error:
            if not is_temporary(error):
                raise
            if pauses is None:
                pauses = waits(retry_s, first_s=0.05, longest_s=5.0)
                next(pauses)  # the pause before the first attempt; the clock starts here
            if (pause_s := next(pauses, None)) is None:
                raise
            time.sleep(pause_s * _random.uniform(0.5, 1.0))  # not all workers at once
