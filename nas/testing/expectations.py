"""What the contract suites expect, and how they say what they found."""

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
    """What the function gives in a new process, to which everything was pickled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def expect(holds: bool, line: str) -> None:
    """Raises AssertionError with this line where it does not hold."""
    if not holds:
        raise AssertionError(line)


def expect_raises(kind: type[Exception], call: Callable[[], object]) -> None:
    """Raises AssertionError where the call does not raise an error of this kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")


def share(*parts: object) -> float:
    """Returns a number in [0, 1) that follows from the parts, in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48


def compare(expected: Sequence[str], found: Sequence[str], where: str) -> None:
    """Raises AssertionError at the first answer that is not the expected one."""
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        expect(one == other, f"{where} gives another answer to ask {place}: {one} became {other}")


def global_states() -> list[object]:
    """Returns the states of all random generators that a process shares."""
    states: list[object] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(str(numpy.random.get_state()))
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.get_rng_state().tolist())
    return states


def opposite(metric: Metric) -> Literal["maximize", "minimize"]:
    """Returns the other direction."""
    return "minimize" if metric.direction == "maximize" else "maximize"
