"""Objects on an sftp server, over one connection of asyncssh with many requests at once.

A file is written under a temporary name beside its own, fsynced if the server can do that (``fsync@openssh.com``), and
renamed. The rename of sftp refuses a name that is taken; OpenSSH's ``posix-rename`` replaces it.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, final
from urllib.parse import unquote, urlsplit

import asyncssh
from asyncssh import SFTPClient

from nas.core.reference import TEMPORARY
from nas.storage.backends.chunks import Hashed, RangeRead, pieces
from nas.storage.backends.object_backend import ObjectBackend, check_small
from nas.storage.backends.retry import in_order, persist
from nas.storage.backends.sftp_files import PIECE, Upload, holds, read
from nas.storage.backends.ssh import GONE, Connection, is_lost, translate, wait_for
from nas.storage.blobs import BlobInfo

_AT_ONCE = 4
_DEFAULTS: dict[str, Any] = {
    "keepalive_interval": 10,
    "keepalive_count_max": 1,  # lost after 20 s without an answer, well below retry_s
    "connect_timeout": 15,
    "encryption_algs": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",  # 1.5 times as fast
}
_TAKEN = (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists)
"""Refusals of a name; servers call most other errors "failure", too."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@final
class SftpBackend(ObjectBackend):
    """Whole files on an sftp server; a full name is a path on it."""

    def __init__(self, connection: Connection, retry_s: float) -> None:
        self._connection = connection
        self.retry_s = retry_s

    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Writes a temporary file piece by piece, and renames it."""
        temporary = f"{target.rpartition('/')[0]}/{TEMPORARY}{secrets.token_hex(8)}"
        upload = Upload(self.persistently, temporary)
        try:
            numbered = enumerate(pieces(chunks, PIECE))
            writes = (partial(upload.write, piece, number * PIECE) for number, piece in numbered)
            for _ in in_order(writes, _AT_ONCE):
                pass
            upload.finish(chunks)
            self._rename(temporary, target, chunks, exclusive=exclusive)
        except BaseException:
            if upload.has_begun:
                self._discard(temporary)
            raise

    def get(self, target: str) -> bytes:
        """Opens, reads and closes the file."""

        async def whole(client: SFTPClient) -> bytes:
            async with client.open(target, "rb") as file:
                size = (await file.stat()).size or 0
                check_small(target, size)
                data = bytearray(size)
                n = await read(file, RangeRead(0, [memoryview(data)]))
                return bytes(data[:n])

        return self._reading(whole)

    def size(self, target: str) -> int:
        """Returns the size that the server reports."""
        return self._reading(lambda client: client.stat(target)).size or 0

    def fill(self, target: str, reads: Iterable[RangeRead]) -> Generator[tuple[int, RangeRead], None, None]:
        """Fills several ranges at once, each by many requests."""

        async def filled(wanted: RangeRead, client: SFTPClient) -> tuple[int, RangeRead]:
            async with client.open(target, "rb") as file:
                found, _ = await asyncio.gather(file.stat(), read(file, wanted))
            return found.size or 0, wanted

        return in_order((partial(self._reading, partial(filled, wanted)) for wanted in reads), _AT_ONCE)

    def names(self, folder: str) -> list[str]:
        """Returns the server's listing."""
        names = self._reading(lambda client: client.listdir(folder or "/"))
        return [name for name in names if name not in (".", "..")]

    def walk(self, folder: str) -> list[BlobInfo]:
        """Returns the server's listings, folder by folder."""

        async def below(client: SFTPClient, path: str) -> list[BlobInfo]:
            found: list[BlobInfo] = []
            with suppress(*GONE):  # deleted meanwhile
                async for entry in client.scandir(f"{folder}/{path}".rstrip("/") or "/"):
                    name, attributes = path + str(entry.filename), entry.attrs
                    if attributes.type != asyncssh.FILEXFER_TYPE_DIRECTORY:
                        found.append(BlobInfo(name, attributes.size or 0, attributes.mtime))
                    elif entry.filename not in (".", ".."):
                        found += await below(client, f"{name}/")
            return found

        return self._reading(lambda client: below(client, ""))

    def delete(self, target: str) -> None:
        """Removes the file."""
        self.persistently(lambda client: client.remove(target))

    def prune(self, folder: str) -> bool:
        """Asks the server, which refuses to remove a folder with entries."""

        async def remove(client: SFTPClient) -> bool:
            with suppress(*GONE, *_TAKEN, asyncssh.SFTPDirNotEmpty):
                await client.rmdir(folder)
                return True
            return False

        return self.persistently(remove)

    def _rename(self, temporary: str, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Gives the file its name; after a lost reply, checks whether it has the name already."""
        n_attempts = 0

        async def rename(client: SFTPClient) -> None:
            nonlocal n_attempts
            n_attempts += 1
            try:
                await (client.rename if exclusive else client.posix_rename)(temporary, target)
            except (*GONE, *_TAKEN) as error:
                is_renamed = n_attempts > 1 and not await client.lexists(temporary)
                if is_renamed and await holds(client, target, chunks):
                    return
                if exclusive and isinstance(error, _TAKEN) and await client.lexists(target):
                    raise FileExistsError(errno.EEXIST, "the name is taken") from error
                raise

        self.persistently(rename)

    def _discard(self, temporary: str) -> None:
        """Removes the temporary file of a failed upload."""
        try:
            with suppress(FileNotFoundError):
                self.within(min(self.retry_s, 5.0)).delete(temporary)
        except Exception as error:
            logger.warning("can't remove %s: %s", temporary, type(error).__name__)

    def _reading(self, use: Callable[[SFTPClient], Awaitable[T]]) -> T:
        """Makes a call that reads; a "failure" is temporary, since it may be a stale handle."""
        return self.persistently(use, asyncssh.SFTPFailure)

    def persistently(self, use: Callable[[SFTPClient], Awaitable[T]], *temporary: type[Exception]) -> T:
        """Makes a call with a client, again after a lost connection; raises errors of backends."""

        async def attempt() -> T:
            client = await self._connection.client()
            try:
                return await use(client)
            except Exception as error:
                if is_lost(error):
                    self._connection.drop(client)
                raise

        def is_temporary(error: Exception) -> bool:
            return is_lost(error) or isinstance(error, temporary)

        try:
            return persist(lambda: wait_for(attempt()), is_temporary, self.retry_s)
        except Exception as error:
            translate(error)


def open_backend(url: str, options: Mapping[str, object], *, retry_s: float) -> tuple[SftpBackend, str]:
    """Returns the backend, and the URL's path on the server. Options are those of ``asyncssh.connect``.

    A host, port, username or password of None is the URL's. The key of a host must be known
    (``~/.ssh/known_hosts``), except for this machine.

    Raises:
        ImportError, TypeError, ValueError: as ``nas.storage.backends.object_backend.open_backend``.
    """
    parts = urlsplit(url)
    given = {"username": parts.username, "password": parts.password, "port": parts.port, "host": parts.hostname}
    in_url = {key: unquote(str(value)) for key, value in given.items() if value is not None}
    in_options = {key: value for key, value in options.items() if value is not None or key not in given}
    settings = _DEFAULTS | in_url | in_options
    host, port = str(settings.pop("host", "")), int(settings.pop("port", 22))
    if not host or parts.query or parts.fragment:
        raise ValueError("an sftp root must be sftp://user@host:port/path")
    if _is_here(host):
        settings.setdefault("known_hosts", None)
    connection = Connection(host, port, asyncssh.SSHClientConnectionOptions(**settings))
    path = f"{parts.path}/".removeprefix("/~/")
    return SftpBackend(connection, retry_s), path.rstrip("/") or ("." if parts.path.startswith("/~") else "/")


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
