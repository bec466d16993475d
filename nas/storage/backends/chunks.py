"""Contents that are sent to a store or read from it, chunk by chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from blake3 import blake3

from nas.storage.verified import Buffer, ByteRange

PART = 16 << 20
"""Bytes of each part of a large upload, of which S3 allows 10,000."""
GAP = 1 << 20
"""Unwanted bytes between two ranges that cost less to read than another request."""
SINGLE = 64 << 20
"""Most bytes to read in one request; a connection to S3 gives 80 MB/s."""
BLOCK = 8 << 20
"""Bytes of each request if more than ``SINGLE`` are read."""


class Hashed:
    """An iterator over chunks that computes their digest and size, and keeps their error."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self._hasher = blake3()
        self.bytes = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[memoryview]:
        """Yields the chunks, without empty ones."""
        try:
            for chunk in self._chunks:
                view = memoryview(chunk)
                if view.nbytes:  # memoryview.cast refuses others
                    view = view.cast("B")
                    self._hasher.update(view)
                    self.bytes += view.nbytes
                    yield view
        except Exception as error:
            self.error = error
            raise

    @property
    def digest(self) -> str:
        """The digest of all chunks until now."""
        return f"blake3:{self._hasher.hexdigest()}"


def pieces(views: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yields the bytes in copied pieces of this size; the last may be shorter."""
    waiting: list[memoryview] = []
    left = size
    for view in views:
        while view:
            waiting.append(view[:left])
            view = view[left:]
            left -= waiting[-1].nbytes
            if not left:
                yield b"".join(waiting)
                waiting, left = [], size
    if waiting:
        yield b"".join(waiting)


class RangeRead:
    """A range of an object, and the memory that takes it.

    Args:
        begin: Offset of the range in the object, in bytes.
        views: Writable memory, in order.
    """

    def __init__(self, begin: int, views: Sequence[memoryview]) -> None:
        self.begin = begin
        self.views = views
        self._ends = list(accumulate(view.nbytes for view in views))
        self.bytes = self._ends[-1]

    def at(self, offset: int) -> memoryview:
        """Returns the memory from this byte of the range to the end of the view."""
        index = bisect_right(self._ends, offset)
        return self.views[index][offset - self._ends[index] :]

    def write(self, offset: int, data: Buffer) -> None:
        """Copies data to the memory from this byte of the range on."""
        left = memoryview(data)
        while left:
            memory = self.at(offset)[: left.nbytes]
            memory[:] = left[: memory.nbytes]
            left, offset = left[memory.nbytes :], offset + memory.nbytes


def reads_of(size: int) -> Iterator[RangeRead]:
    """Yields reads of all of an object into new memory, block by block."""
    for begin in range(0, size, BLOCK):
        yield RangeRead(begin, [memoryview(bytearray(min(BLOCK, size - begin)))])


def reads_for(spans: Sequence[ByteRange]) -> Iterator[RangeRead]:
    """Yields reads of ranges in order, none empty; near ranges share a read."""
    gap = memoryview(bytearray(GAP))
    for group in _near(spans):
        begin, size = group[0].offset, group[-1].end - group[0].offset
        room = block = size if size <= SINGLE else BLOCK
        views: list[memoryview] = []
        end = begin
        for span in group:
            for memory in (gap[: span.offset - end], span.memory):
                while memory:
                    views.append(memory[:room])
                    memory = memory[room:]
                    room -= views[-1].nbytes
                    if not room:
                        yield RangeRead(begin, views)
                        begin, views, room = begin + block, [], block
            end = span.end
        if views:
            yield RangeRead(begin, views)


def _near(spans: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    group: list[ByteRange] = []
    for span in spans:
        if group and span.offset - group[-1].end > GAP:
            yield group
            group = []
        group.append(span)
    if group:
        yield group
