"""Calls over a network: several at a time, each in a thread of its own, and again after errors that may pass."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from nas.storage.verified import waits

T = TypeVar("T")

_dice = random.SystemRandom()  # a problem may have seeded the others


def in_order(calls: Iterable[Callable[[], T]], limit: int) -> Generator[T, None, None]:
    """What each call gives, in their order, while the next ones are under way.

    Where it ends early, by an error or by ``close``, it waits for the calls that are under way: they may write to the
    caller's memory.

    Args:
        calls: Asked for by this thread as they are needed.
        limit: How many are under way at once, at most.
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


def persist(attempt: Callable[[], T], is_passing: Callable[[Exception], bool], retry_s: float) -> T:
    """What the first attempt gives that ends without a passing error.

    Args:
        attempt: What may be done more than once.
        is_passing: Whether an error may be gone the next time: a lost connection, a server that is busy.
        retry_s: How long to go on after the first error, so that what takes long by itself is tried again, too.

    Raises:
        Exception: the last passing error, or the first other one.
    """
    pauses: Iterator[float] | None = None
    while True:
        try:
            return attempt()
        except Exception as error:
            if not is_passing(error):
                raise
            if pauses is None:
                pauses = waits(retry_s, first_s=0.05, longest_s=5.0)
                next(pauses)  # that before the first attempt; the clock runs from here on
            if (pause_s := next(pauses, None)) is None:
                raise
            time.sleep(pause_s * _dice.uniform(0.5, 1.0))  # not all workers at once
