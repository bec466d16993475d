"""Contents on their way to a store and back, chunk by chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from blake3 import blake3

from nas.storage.verified import Buffer, ByteRange

GAP = 1 << 20
"""Unwanted bytes between two parts that cost less to get than another request."""
SINGLE = 64 << 20
"""Bytes that one request gets, at most: on one connection S3 gives some 80 MB a second ..."""
BLOCK = 8 << 20
"""... so that more of them are got in several requests at once."""


class Hashed:
    """Chunks as they pass by: their digest and size, and the error, if it is their own."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self._hasher = blake3()
        self.bytes = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[memoryview]:
        """The chunks, but for empty ones."""
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
        """Of what has passed."""
        return f"blake3:{self._hasher.hexdigest()}"


def pieces(views: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of this size, each copied when it is asked for; the last one may be shorter."""
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


def take_bytes(views: Iterator[memoryview], size: int) -> tuple[list[memoryview], memoryview | None]:
    """Views of this many bytes or fewer, and the one, if any, that would be too much; nothing is copied."""
    found: list[memoryview] = []
    left = size
    for view in views:
        if view.nbytes > left:
            return found, view
        found.append(view)
        left -= view.nbytes
    return found, None


class Run:
    """Bytes of an object from somewhere on, and the memory that takes them.

    Args:
        begin: Where they begin.
        views: Writable memory, one piece after the other.
    """

    def __init__(self, begin: int, views: Sequence[memoryview]) -> None:
        self.begin = begin
        self.views = views
        self._ends = list(accumulate(view.nbytes for view in views))
        self.bytes = self._ends[-1]

    def at(self, offset: int) -> memoryview:
        """The memory from this byte of the run on, as far as it goes in one piece."""
        index = bisect_right(self._ends, offset)
        return self.views[index][offset - self._ends[index] :]

    def write(self, offset: int, data: Buffer) -> None:
        """Puts data in the memory from this byte of the run on."""
        left = memoryview(data)
        while left:
            memory = self.at(offset)[: left.nbytes]
            memory[:] = left[: memory.nbytes]
            left, offset = left[memory.nbytes :], offset + memory.nbytes


def runs_of(size: int, block: int = 0) -> Iterator[Run]:
    """All of an object of this size, in memory of its own; block by block, or in as few runs as ``SINGLE`` allows."""
    block = block or (SINGLE if size <= SINGLE else BLOCK)
    for begin in range(0, size, block):
        yield Run(begin, [memoryview(bytearray(min(block, size - begin)))])


def runs_for(spans: Sequence[ByteRange]) -> Iterator[Run]:
    """What is got for these parts, which are in order and have bytes: near ones in one go."""
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
                        yield Run(begin, views)
                        begin, views, room = begin + block, [], block
            end = span.end
        if views:
            yield Run(begin, views)


def _near(spans: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    group: list[ByteRange] = []
    for span in spans:
        if group and span.offset - group[-1].end > GAP:
            yield group
            group = []
        group.append(span)
    if group:
        yield group
