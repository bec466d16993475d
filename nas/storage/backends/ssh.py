"""A connection to a server that speaks sftp, made anew where it is lost; and what its errors mean."""

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
    """What a call gives that is made on fsspec's event loop; where the waiting is interrupted, it ends, too."""
    future = asyncio.run_coroutine_threadsafe(call, get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class Connection:
    """One connection for all threads of a process, made when it is needed and again when it is lost.

    Args:
        host: The server's.
        port: Its, too.
        options: What asyncssh connects with.
    """

    def __init__(self, host: str, port: int, options: asyncssh.SSHClientConnectionOptions) -> None:
        self._server = (host, port)
        self._options = options
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: SFTPClient | None = None
        self._ssh: asyncssh.SSHClientConnection | None = None

    async def client(self) -> SFTPClient:
        """The client of a connection that was there a moment ago."""
        if (loop := asyncio.get_running_loop()) is not self._loop:  # the first one, or after a fork
            self._loop, self._lock, self._ssh = loop, asyncio.Lock(), None
        async with self._lock:
            if self._client is None or self._ssh is None or self._ssh.is_closed():
                ssh = await asyncssh.connect(*self._server, options=self._options)
                weakref.finalize(self, _end, loop, ssh)
                self._client, self._ssh = await ssh.start_sftp_client(path_errors="surrogateescape"), ssh
            return self._client

    def drop(self, client: SFTPClient) -> None:
        """Makes the next call connect anew, if this client is still the one."""
        if client is self._client and self._ssh is not None:
            self._ssh.abort()
            self._ssh = None


def _end(loop: asyncio.AbstractEventLoop, ssh: asyncssh.SSHClientConnection) -> None:
    if loop.is_running():
        loop.call_soon_threadsafe(ssh.abort)


def is_lost(error: Exception) -> bool:
    """Whether the connection is gone, or could not be made for now."""
    if isinstance(error, asyncssh.DisconnectError):
        return not isinstance(error, _FINAL)
    told = (FileNotFoundError, FileExistsError, PermissionError, HeirloomError)
    return isinstance(error, _LOST) or (isinstance(error, OSError) and not isinstance(error, told))


def translate(error: Exception) -> NoReturn:
    """Raises the error that a driver raises."""
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
        raise OSError(errno.EIO, f"{error} (sftp has no word for more: a full disk, a quota, a broken disk)") from error
    raise error
