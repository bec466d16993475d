"""A connection to an sftp server, made again after a loss, and its errors."""

from __future__ import annotations

import asyncio
import errno
import weakref
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import asyncssh
from asyncssh import SFTPClient
from fsspec.asyn import get_loop

from nas.core.errors import HeirloomError

T = TypeVar("T")

GONE = (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath)
_LOST = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost, asyncssh.SFTPBadMessage, asyncssh.ChannelOpenError)
_FINAL = (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed)


def wait_for(call: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a call on fsspec's event loop; an interrupt cancels the call."""
    future = asyncio.run_coroutine_threadsafe(call, get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class Connection:
    """One connection for all threads of a process, made again after a loss.

    Args:
        host: The server's name or address.
        port: The server's port.
        options: Options of asyncssh's connect().
    """

    def __init__(self, host: str, port: int, options: asyncssh.SSHClientConnectionOptions) -> None:
        self._server = (host, port)
        self._options = options
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: SFTPClient | None = None
        self._ssh: asyncssh.SSHClientConnection | None = None

    async def client(self) -> SFTPClient:
        """Returns the client of the open connection, or of a new one."""
        if (loop := asyncio.get_running_loop()) is not self._loop:  # the first one, or after a fork
            self._loop, self._lock, self._ssh = loop, asyncio.Lock(), None
        async with self._lock:
            if self._client is None or self._ssh is None or self._ssh.is_closed():
                ssh = await asyncssh.connect(*self._server, options=self._options)
                weakref.finalize(self, _end, loop, ssh)
                self._client, self._ssh = await ssh.start_sftp_client(path_errors="surrogateescape"), ssh
            return self._client

    def drop(self, client: SFTPClient) -> None:
        """Closes the connection of this client, so that the next call makes a new one."""
        if client is self._client and self._ssh is not None:
            self._ssh.abort()
            self._ssh = None


def _end(loop: asyncio.AbstractEventLoop, ssh: asyncssh.SSHClientConnection) -> None:
    if loop.is_running():
        loop.call_soon_threadsafe(ssh.abort)


def is_lost(error: Exception) -> bool:
    """Returns whether the connection is lost, or could not be made for now."""
    if isinstance(error, asyncssh.DisconnectError):
        return not isinstance(error, _FINAL)
    answers = (FileNotFoundError, FileExistsError, PermissionError, HeirloomError)
    return isinstance(error, _LOST) or (isinstance(error, OSError) and not isinstance(error, answers))


def translate(error: Exception) -> NoReturn:
    """Raises the error that a backend raises."""
    if isinstance(error, GONE):
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        raise PermissionError(
            f"{error}; compare its key, add it to ~/.ssh/known_hosts (ssh-keyscan HOST shows it), or name another file "
            "in storage.options.known_hosts"
        ) from error
    if isinstance(error, asyncssh.SFTPPermissionDenied | asyncssh.PermissionDenied):
        raise PermissionError(errno.EACCES, str(error)) from error
    if isinstance(error, asyncssh.SFTPOpUnsupported):
        raise OSError(errno.ENOTSUP, f"the server can't do that: {error}") from error
    if isinstance(error, asyncssh.SFTPFailure):
        raise OSError(errno.EIO, f"{error} (sftp says the same of a full disk, a quota, a broken disk)") from error
    raise error
