"""Digests, and reading that checks them."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

from blake3 import blake3

from nas.core.errors import CorruptError, MissingError, StorageError
from nas.core.reference import Reference

T = TypeVar("T")


Buffer: TypeAlias = bytes | bytearray | memoryview


OnBlock: TypeAlias = Callable[[memoryview], object]
"""Is shown the contents of a file block by block; a block's memory is used again afterwards."""


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Returns the digest as every record writes it: ``blake3:`` and 64 hexadecimal digits."""
    return f"blake3:{blake3(data).hexdigest()}"


def is_stale(error: OSError) -> bool:
    """Returns whether a network file system's server has lost the file behind a cached name: opening it again helps."""
    return error.errno == errno.ESTALE


def waits(retry_s: float, *, first_s: float = 0.005, longest_s: float = 0.25) -> Iterator[float]:
    """Yields the seconds to wait before each attempt: none before the first, then longer and longer until the bound."""
    give_up_s = time.monotonic() + retry_s
    yield 0.0
    wait_s = first_s
    while (left_s := give_up_s - time.monotonic()) > 0:
        yield min(wait_s, left_s)
        wait_s = min(2 * wait_s, longest_s)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a published file, and the memory that takes it.

    Attributes:
        offset: Where the part begins, in bytes.
        digest: What it holds, as ``digest_of`` writes it.
        memory: Writable bytes, as many as the part has.
    """

    offset: int
    digest: str
    memory: memoryview

    @property
    def end(self) -> int:
        """Where the part ends."""
        return self.offset + self.memory.nbytes


def checked_spans(reference: Reference, spans: Sequence[Span]) -> list[Span]:
    """Returns the parts in the order of their offsets.

    Raises:
        CorruptError: two overlap, or one lies outside the file.
    """
    ordered = sorted(spans, key=lambda span: (span.offset, span.end))
    for one, other in pairwise(ordered):
        if other.offset < one.end:
            raise CorruptError(f"{reference.path}: two parts can't share bytes, at {other.offset}")
    if ordered and (ordered[0].offset < 0 or ordered[-1].end > reference.bytes):
        raise CorruptError(f"{reference.path}: a part lies outside of its {reference.bytes} bytes")
    return ordered


class WrongContentsError(Exception):
    """An attempt to read a file found other contents than were promised; the message says what it found."""


def expect(reference: Reference, data: bytes | bytearray | memoryview) -> None:
    """Compares contents with the reference.

    Raises:
        WrongContentsError: they are others.
    """
    if len(data) != reference.bytes or digest_of(data) != reference.digest:
        raise WrongContentsError(f"{len(data)} bytes {digest_of(data)}")


def expect_span(reference: Reference, span: Span, digest: str) -> None:
    """Compares the digest of a part with the promised one.

    Raises:
        WrongContentsError: it is another.
    """
    if digest != span.digest:
        raise WrongContentsError(
            f"{reference.bytes} bytes, of which those from {span.offset} to {span.end} are {digest} "
            f"instead of {span.digest}"
        )


def read_verified(reference: Reference, attempt: Callable[[bool], T], where: Callable[[], str], retry_s: float) -> T:
    """What the first attempt gives that finds what was promised; they go on while a cache may be at fault.

    Args:
        reference: What to read.
        attempt: Reads the file; raises ``WrongContentsError`` where it holds something else. Told whether to go around
            the caches, because the last contents were wrong.
        where: Names the file and its mount for the error.
        retry_s: The bound; at least one attempt is made.

    Raises:
        MissingError: not found within the bound.
        CorruptError: other contents than promised, still at the bound.
    """
    kind: type[StorageError] = MissingError
    reason, cause = "", None
    for wait_s in waits(retry_s):
        if wait_s:  # sleep(0) would give the processor away
            time.sleep(wait_s)
        try:
            return attempt(kind is CorruptError)
        except WrongContentsError as error:
            kind, reason, cause = CorruptError, str(error), None
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_stale(error)):
                raise
            kind, reason, cause = MissingError, error.strerror or "no such file", error
    raise kind(
        f"{where()} on host {socket.gethostname()} is {'missing' if kind is MissingError else 'corrupt'}: expected "
        f"{reference.bytes} bytes {reference.digest}, found {reason}, looked for {retry_s:g} s"
    ) from cause


def ignore_block() -> OnBlock:
    """One that does not look."""
    return lambda block: None
