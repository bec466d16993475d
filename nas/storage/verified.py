"""Digests, and reads that are retried until the contents have the expected digest."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from blake3 import blake3

from nas.core.errors import CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.os_errors import is_stale

Buffer: TypeAlias = bytes | bytearray | memoryview


OnBlock: TypeAlias = Callable[[memoryview], object]
"""Gets the blocks of a file. A block is valid only during the call."""


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Returns the digest as every record writes it: ``blake3:`` and 64 hexadecimal digits."""
    return f"blake3:{blake3(data).hexdigest()}"


def ignore_block(block: memoryview) -> None:
    """Does nothing."""


def digest_of_blocks(blocks: Iterable[memoryview], on_block: OnBlock = ignore_block) -> str:
    """Returns the digest of all blocks, after calling ``on_block`` with each one."""
    hasher = blake3()
    for block in blocks:
        hasher.update(block)
        on_block(block)
    return f"blake3:{hasher.hexdigest()}"


def waits(retry_s: float, *, first_s: float = 0.005, longest_s: float = 0.25) -> Iterator[float]:
    """Yields the seconds to wait before each attempt, until ``retry_s`` is over.

    The first is 0, and each of the others is twice the one before, up to ``longest_s``.
    """
    end_s = time.monotonic() + retry_s
    yield 0.0
    wait_s = first_s
    while (left_s := end_s - time.monotonic()) > 0:
        yield min(wait_s, left_s)
        wait_s = min(2 * wait_s, longest_s)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of a published file, and the memory that takes it.

    Attributes:
        offset: Start of the range in the file, in bytes.
        digest: Expected digest of the range, as ``digest_of`` writes it.
        memory: Writable bytes, as many as the range has.
    """

    offset: int
    digest: str
    memory: memoryview

    @property
    def end(self) -> int:
        """End of the range in the file, in bytes."""
        return self.offset + self.memory.nbytes


def sorted_ranges(reference: Reference, ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Returns the ranges in the order of their offsets.

    Raises:
        CorruptError: two ranges overlap, or one lies outside the file.
    """
    ordered = sorted(ranges, key=lambda part: (part.offset, part.end))
    for one, other in pairwise(ordered):
        if other.offset < one.end:
            raise CorruptError(f"{reference.path}: two parts can't share bytes, at {other.offset}")
    if ordered and (ordered[0].offset < 0 or ordered[-1].end > reference.bytes):
        raise CorruptError(f"{reference.path}: a part lies outside of its {reference.bytes} bytes")
    return ordered


class WrongContentsError(Exception):
    """Other contents than expected; the message says what was found."""


class WrongSizeError(WrongContentsError):
    """Another size than expected.

    Attributes:
        size: The size found, in bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


def check_range(reference: Reference, part: ByteRange, digest: str) -> None:
    """Compares the digest found for a range with the expected one.

    Raises:
        WrongContentsError: they differ.
    """
    if digest == part.digest:
        return
    if part.memory.nbytes == reference.bytes:
        raise WrongContentsError(f"{reference.bytes} bytes {digest}")
    raise WrongContentsError(
        f"{reference.bytes} bytes, of which those from {part.offset} to {part.end} are {digest} "
        f"instead of {part.digest}"
    )


def retry_read(
    reference: Reference, attempt: Callable[[bool], object], location: Callable[[], str], retry_s: float
) -> None:
    """Calls ``attempt`` until it finds the expected contents, because caches may hide them for a while.

    Args:
        reference: The file.
        attempt: Reads the file and raises ``WrongContentsError`` if it finds other contents. Its argument is True, to
            bypass caches, after an attempt that found other contents.
        location: Returns the file's name and mount, for the error.
        retry_s: Seconds after which no new attempt begins; at least one is made.

    Raises:
        MissingError: the last attempt did not find the file.
        CorruptError: the last attempt found other contents.
    """
    kind: type[StorageError] = MissingError
    reason, cause = "", None
    for wait_s in waits(retry_s):
        if wait_s:  # sleep(0) would yield the processor
            time.sleep(wait_s)
        try:
            attempt(kind is CorruptError)
            return
        except WrongContentsError as error:
            kind, reason, cause = CorruptError, str(error), None
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_stale(error)):
                raise
            kind, reason, cause = MissingError, error.strerror or "no such file", error
    raise kind(
        f"{location()} on host {socket.gethostname()} is {'missing' if kind is MissingError else 'corrupt'}: expected "
        f"{reference.bytes} bytes {reference.digest}, found {reason}, tried for {retry_s:g} s"
    ) from cause
