"""Assertions and helpers of the contract suites."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Literal, TypeVar

from nas.core.metric import Metric

T = TypeVar("T")


def in_another_process(function: Callable[..., T], *arguments: object) -> T:
    """Returns the function's result from a new process; the function and its arguments are pickled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def expect(condition: bool, message: str) -> None:
    """Raises an AssertionError with this message if the condition is false."""
    if not condition:
        raise AssertionError(message)


def expect_raises(kind: type[Exception], call: Callable[[], object]) -> None:
    """Raises an AssertionError if the call does not raise an error of this kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}, but nothing was raised")


def share(*parts: object) -> float:
    """Returns a number in [0, 1) that depends only on the parts, in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48


def compare(expected: Sequence[str], found: Sequence[str], where: str) -> None:
    """Raises an AssertionError at the first unexpected answer."""
    for position, (one, other) in enumerate(zip(expected, found, strict=True)):
        expect(one == other, f"{where} gives another answer to ask {position}: {one} became {other}")


def global_states() -> list[object]:
    """Returns the states of the process-wide random generators."""
    states: list[object] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(str(numpy.random.get_state()))
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.get_rng_state().tolist())
    return states


def opposite(metric: Metric) -> Literal["maximize", "minimize"]:
    """Returns the opposite direction of a metric."""
    return "minimize" if metric.direction == "maximize" else "maximize"
