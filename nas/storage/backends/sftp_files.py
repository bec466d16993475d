"""Files on an sftp server, written and read by many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import asyncssh
from asyncssh import SFTPClient
from blake3 import blake3

from nas.core.errors import StorageError
from nas.storage.backends.chunks import Hashed, RangeRead
from nas.storage.backends.ssh import GONE

PIECE = 4 << 20
"""Bytes to send at once; several pieces are sent, and in memory, at a time."""
_REQUESTS = 32
"""Requests of one range at a time: 8 MB with the 256 kB of OpenSSH's."""

T = TypeVar("T")


class Upload:
    """A file that grows under a temporary name, over one connection or, after a loss, several.

    Args:
        persistently: Makes a call with a client, again after its connection is lost.
        temporary: The temporary name.
    """

    def __init__(self, persistently: Callable[[Callable[[SFTPClient], Awaitable[None]]], None], temporary: str) -> None:
        self._persistently = persistently
        self._temporary = temporary
        self._lock = asyncio.Lock()
        self._files: dict[SFTPClient, Any] = {}

    @property
    def has_begun(self) -> bool:
        """Whether there may be such a file."""
        return bool(self._files)

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
            StorageError: a connection was lost, and the server with it lost a part of what it had confirmed.
        """

        async def use(client: SFTPClient) -> None:
            file = await self._file(client)
            with suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()
            await file.close()
            if len(self._files) > 1 and not await holds(client, self._temporary, chunks):
                raise StorageError(f"the server lost a part of {self._temporary} when its connection was lost")

        self._persistently(use)

    async def _file(self, client: SFTPClient) -> Any:
        """Returns the file that this client has open."""
        async with self._lock:
            if client not in self._files:
                self._files[client] = await self._open(client)
            return self._files[client]

    async def _open(self, client: SFTPClient) -> Any:
        flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT
        try:
            return await client.open(self._temporary, flags, encoding=None)
        except GONE:
            await client.makedirs(self._temporary.rpartition("/")[0], exist_ok=True)
            return await client.open(self._temporary, flags, encoding=None)


async def holds(client: SFTPClient, path: str, chunks: Hashed) -> bool:
    """Returns whether a file has the contents that were sent."""
    hasher, block = blake3(), memoryview(bytearray(PIECE))
    try:
        async with client.open(path, "rb") as file:
            if (size := (await file.stat()).size) != chunks.bytes:
                return False
            for begin in range(0, size, PIECE):
                n = await read(file, RangeRead(begin, [block[: size - begin]]))
                hasher.update(block[:n])
    except GONE:
        return False
    return f"blake3:{hasher.hexdigest()}" == chunks.digest


async def read(file: Any, wanted: RangeRead) -> int:
    """Fills a range from an open file by many requests; returns the number of bytes."""
    gate = asyncio.Semaphore(_REQUESTS)

    async def block(offset: int) -> int:
        async with gate:
            data = await file.read(min(file.read_len, wanted.bytes - offset), wanted.begin + offset)
        wanted.write(offset, data)
        return len(data)

    return sum(await _together(block(offset) for offset in range(0, wanted.bytes, file.read_len)))


async def _together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of requests; if one fails, raises its error after all have ended.

    asyncssh can split a large block itself. But after a lost connection or a cancellation it leaves errors that asyncio
    prints.
    """
    ended = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    for error in ended:
        if isinstance(error, BaseException):
            raise error
    return [found for found in ended if not isinstance(found, BaseException)]
