"""Reads an open file block by block, or ranges of it into the caller's memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO

from blake3 import blake3

from nas.core.reference import Reference
from nas.storage.background import Background, run_in_parallel
from nas.storage.verified import ByteRange, WrongContentsError, check_range, digest_of

_BLOCK = 1 << 20
"""Bytes that one call reads."""
_LARGE_BLOCK = 4 << 20
"""Bytes of a large range that one call reads while the previous block is hashed."""
_GAP = 1 << 16
"""Bytes between two ranges that are faster read than skipped by another call."""
_MAX_RANGES = 128
"""Ranges that one call fills; with their gaps, the system's limit is 512."""


def blocks_of(file: FileIO) -> Iterator[memoryview]:
    """Yields the blocks of a file; each is valid until the next one is read."""
    block = memoryview(bytearray(_BLOCK))
    while n := file.readinto(block):
        yield block[:n]


def drop_page_cache(file: FileIO) -> None:
    """Drops cached contents, so that the disk or the server is read."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_ranges(file: FileIO, reference: Reference, ranges: Sequence[ByteRange]) -> None:
    """Reads ranges into their memory and compares their digests.

    Args:
        file: The file.
        reference: The file's reference, for errors.
        ranges: In the order of their offsets, without overlaps.

    Raises:
        WrongContentsError: the file ends before a range does, or a range has another digest.
    """
    n_bytes = sum(part.memory.nbytes for part in ranges)
    run_in_parallel(_groups(ranges), n_bytes, lambda group: _fill_group(file, reference, group))


def _groups(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yields the ranges of each read call: small ones close together, or a large one."""
    group: list[ByteRange] = []
    for part in ranges:
        is_far = group and part.offset - group[-1].end > _GAP
        is_too_large = group and part.end - group[0].offset > _BLOCK
        if is_far or is_too_large or len(group) == _MAX_RANGES:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _fill_group(file: FileIO, reference: Reference, group: Sequence[ByteRange]) -> None:
    if group[0].memory.nbytes > _BLOCK:
        [part] = group
        _fill_large(file, reference, part)
        return
    views, end = [], group[0].offset
    for part in group:
        if part.offset > end:
            views.append(memoryview(bytearray(part.offset - end)))
        views.append(part.memory)
        end = part.end
    _read_at(file, views, group[0].offset)
    for part in group:
        check_range(reference, part, digest_of(part.memory))


def _fill_large(file: FileIO, reference: Reference, part: ByteRange) -> None:
    """Reads a large range while the blocks before are hashed."""
    hasher = blake3()
    with Background() as background:
        for begin in range(0, part.memory.nbytes, _LARGE_BLOCK):
            block = part.memory[begin : begin + _LARGE_BLOCK]
            _read_at(file, [block], part.offset + begin)
            background.run(block.nbytes, hasher.update, block)
    check_range(reference, part, f"blake3:{hasher.hexdigest()}")


def _read_at(file: FileIO, views: Sequence[memoryview], offset: int) -> None:
    """Fills the views, one after the other, with the file's bytes from ``offset`` on."""
    left = [view for view in views if view.nbytes]
    while left:
        n = os.preadv(file.fileno(), left, offset)
        if not n:
            raise WrongContentsError(f"only {offset} bytes")
        offset += n
        while left and n >= left[0].nbytes:
            n -= left.pop(0).nbytes
        if left and n:
            left[0] = left[0][n:]
