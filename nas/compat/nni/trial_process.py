"""The process of a trial command, as its job sees it: output, requests and exit status."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import dropwhile
from types import TracebackType
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.tracebacks import ends_of
from nas.executors.supervised_process import SupervisedProcess

CHUNK = 1 << 16
MAX_LINE = 8 << 20
"""Bytes of a request: NNI's longest result, with any escapes."""
DRAIN_S = 5.0
TAIL = 10_000
TRACEBACK = "Traceback (most recent call last):\n"
_SOCKET = "job"
_MAX_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""The system's limit for the path of a socket."""


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a new private folder for the socket of a trial process.

    Raises:
        ConfigurationError: the path of the temporary folder is too long for a socket.
    """
    folder = tempfile.TemporaryDirectory(prefix="heirloom-nni-")
    excess = len(os.fsencode(os.path.join(folder.name, _SOCKET))) - _MAX_PATH_BYTES
    if excess > 0:
        folder.cleanup()
        parent = os.path.dirname(folder.name)
        n_bytes = len(os.fsencode(parent))
        raise ConfigurationError(
            f"the path of the temporary folder ({parent}) has {n_bytes} bytes and must have at most "
            f"{n_bytes - excess}, so that a trial's socket fits into it. Set TMPDIR to a shorter path, such as /tmp"
        )
    return folder


class Connection:
    """The connection of one process to its job: one JSON object per line in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the requests received so far; None if the connection is closed or invalid."""
        try:
            data = os.read(self.socket.fileno(), CHUNK)
        except OSError:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            requests = [json.loads(line) for line in lines if line.strip()]
        except ValueError:
            return None
        is_valid = data and len(self._received) < MAX_LINE and all(isinstance(r, dict) for r in requests)
        return requests if is_valid else None

    def reply(self, content: Mapping[str, Any]) -> None:
        """Sends a reply, unless the connection is closed."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(content).encode() + b"\n")


class TrialProcess:
    """A shell command that is connected to this process by a socket; a context manager.

    Args:
        command: The command line for ``/bin/sh``.
        folder: Its working folder.
        environment: All of its variables; the path of the socket is added.
    """

    def __init__(self, command: str, folder: str, environment: Mapping[str, str]) -> None:
        self._private = private_folder()
        address = os.path.join(self._private.name, _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(16)
        self._selector = selectors.DefaultSelector()
        self._process = SupervisedProcess(
            ["/bin/sh", "-c", command],
            output=subprocess.PIPE,
            cwd=folder,
            environment={**environment, "HEIRLOOM_NNI_SOCKET": address},
        )
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._connections: set[Connection] = set()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a chunk may end within a character
        self._tail = ""

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def requests(self, timeout_s: float) -> Iterator[tuple[Connection, dict[str, Any]]]:
        """Copies output to standard output and yields the requests that arrive within ``timeout_s``."""
        if self._process.stdout not in self._selector.get_map():  # the output has ended: the process is about to end
            self._process.wait(timeout_s)
            timeout_s = 0.0
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._process.stdout:
                self._copy_output()
            elif (requests := key.data.read()) is None:
                self._disconnect(key.data)
            else:
                for request in requests:
                    yield key.data, request

    @property
    def status(self) -> int | None:
        """Exit status, 128 plus the number of a signal, or None while the process runs."""
        status = self._process.exit_status
        return 128 - status if status is not None and status < 0 else status

    @property
    def ending(self) -> str:
        """Both ends of the error that ended a Python program; else the last line of output."""
        _, found, shown = self._tail.rpartition(TRACEBACK)
        lines = [line for line in shown.splitlines() if line.strip()]
        if found:
            return ends_of("\n".join(dropwhile(lambda line: line.startswith(" "), lines)))
        return ends_of("\n".join(lines[-1:]))

    def drain(self) -> None:
        """Copies the rest of the output of an ended process."""
        until = time.monotonic() + DRAIN_S
        while self._process.stdout in self._selector.get_map() and time.monotonic() < until:
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._process.stdout:
                    self._copy_output()

    def end(self) -> None:
        """Ends the process and all processes that it started."""
        self._process.kill()
        for connection in list(self._connections):
            self._disconnect(connection)
        self._selector.close()
        self._listener.close()
        self._process.stdout.close()
        self._process.close()
        self._private.cleanup()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        connection = Connection(accepted)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _disconnect(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        connection.socket.close()

    def _copy_output(self) -> None:
        data = os.read(self._process.stdout.fileno(), CHUNK)
        if not data:
            self._selector.unregister(self._process.stdout)
        text = self._decoder.decode(data, final=not data)
        self._tail = (self._tail + text)[-TAIL:]
        sys.stdout.write(text)
