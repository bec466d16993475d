"""Files on an sftp server, as they are written and read: many requests under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

import asyncssh
from asyncssh import SFTPClient
from blake3 import blake3

from nas.core.errors import StorageError
from nas.storage.backends.chunks import Hashed, Run
from nas.storage.backends.ssh import GONE

PIECE = 4 << 20
"""Bytes that are sent at once; several are on their way and in memory."""
_REQUESTS = 32
"""Of one run, under way at once: 8 MB with OpenSSH's 256 kB each."""

T = TypeVar("T")


class Upload:
    """A file that grows under a temporary name, on one connection or, where that is lost, on several.

    Args:
        persistently: Calls something with a client, again where its connection is lost.
        temporary: The name.
    """

    def __init__(self, persistently: Callable[[Callable[[SFTPClient], Awaitable[None]]], None], temporary: str) -> None:
        self._persistently = persistently
        self._temporary = temporary
        self._lock = asyncio.Lock()
        self._opened: list[tuple[SFTPClient, Any]] = []

    @property
    def has_begun(self) -> bool:
        """Whether there may be such a file."""
        return bool(self._opened)

    def write(self, piece: bytes, offset: int) -> None:
        """Sends a piece, and waits until the server has it."""

        async def use(client: SFTPClient) -> None:
            file, view = await self._file(client), memoryview(piece)
            starts = range(0, len(piece), file.write_len)
            await _together(file.write(view[n : n + file.write_len], offset + n) for n in starts)

        self._persistently(use)

    def finish(self, chunks: Hashed) -> None:
        """Makes the file durable, and closes it.

        Raises:
            StorageError: the server has lost a part of what it had taken, when it went away meanwhile.
        """

        async def use(client: SFTPClient) -> None:
            file = await self._file(client)
            with suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()
            await file.close()
            if len(self._opened) > 1 and not await holds(client, self._temporary, chunks):
                raise StorageError(f"the server lost a part of {self._temporary} when its connection was lost")

        self._persistently(use)

    async def _file(self, client: SFTPClient) -> Any:
        """The file as this client has it open."""
        async with self._lock:
            if not self._opened or self._opened[-1][0] is not client:
                self._opened.append((client, await self._open(client)))
            return self._opened[-1][1]

    async def _open(self, client: SFTPClient) -> Any:
        flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT
        try:
            return await client.open(self._temporary, flags, encoding=None)
        except GONE:
            await client.makedirs(self._temporary.rpartition("/")[0], exist_ok=True)
            return await client.open(self._temporary, flags, encoding=None)


async def holds(client: SFTPClient, path: str, chunks: Hashed) -> bool:
    """Whether a file holds what was sent."""
    hasher, block = blake3(), memoryview(bytearray(PIECE))
    try:
        async with reader(client, path) as file:
            if (size := (await file.stat()).size) != chunks.bytes:
                return False
            for begin in range(0, size, PIECE):
                n = await read(file, Run(begin, [block[: size - begin]]))
                hasher.update(block[:n])
    except GONE:
        return False
    return f"blake3:{hasher.hexdigest()}" == chunks.digest


def reader(client: SFTPClient, path: str) -> AbstractAsyncContextManager[Any]:
    """A file that is open as long as it is read."""
    return client.open(path, asyncssh.FXF_READ, encoding=None)


async def read(file: Any, run: Run) -> int:
    """Fills a run from an open file, as far as that goes, by many requests at once; how many bytes came."""
    gate = asyncio.Semaphore(_REQUESTS)

    async def block(offset: int) -> int:
        async with gate:
            data = await file.read(min(file.read_len, run.bytes - offset), run.begin + offset)
        run.write(offset, data)
        return len(data)

    return sum(await _together(block(offset) for offset in range(0, run.bytes, file.read_len)))


async def _together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What requests of one block each give; where one fails, when all have ended.

    asyncssh can do the same with a large block, but where the connection is lost, or the call is cancelled, it leaves
    errors behind that asyncio then prints.
    """
    ended = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    for error in ended:
        if isinstance(error, BaseException):
            raise error
    return [found for found in ended if not isinstance(found, BaseException)]
