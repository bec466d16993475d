"""A trial's own process, as the job that runs it sees it: what it prints, what it asks, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nas.core.errors import ConfigurationError

PING_S = 5.0
CHUNK = 1 << 16
MAX_LINE = 8 << 20
"""A question's bytes: a result of NNI's greatest size, however it is escaped."""
DRAIN_S = 5.0
TAIL = 400
_WARDEN = Path(__file__).with_name("warden.py")
_SOCKET = "job"
_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Of a socket's path, the most that the system takes."""


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a new folder of this user's own, in which a process's socket has room.

    Raises:
        ConfigurationError: the folder for temporary files has too long a path.
    """
    folder = tempfile.TemporaryDirectory(prefix="heirloom-nni-")
    excess = len(os.fsencode(os.path.join(folder.name, _SOCKET))) - _PATH_BYTES
    if excess > 0:
        folder.cleanup()
        parent = os.path.dirname(folder.name)
        n_bytes = len(os.fsencode(parent))
        raise ConfigurationError(
            f"the path of the folder for temporary files ({parent}) has {n_bytes} bytes, and at most "
            f"{n_bytes - excess} leave room for a trial's socket: set TMPDIR to a shorter one, such as /tmp"
        )
    return folder


class Connection:
    """One process's line to the job: lines of JSON both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = b""
        self._lock = threading.Lock()

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the questions that have come; None: it was closed, or does not speak our language."""
        try:
            data = os.read(self.socket.fileno(), CHUNK)
        except OSError:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            questions = [json.loads(line) for line in lines if line.strip()]
        except ValueError:
            return None
        is_sound = data and len(self._received) < MAX_LINE and all(isinstance(q, dict) for q in questions)
        return questions if is_sound else None

    def answer(self, content: Mapping[str, Any]) -> None:
        """Answers a question; who is gone needs no answer."""
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(content).encode() + b"\n")

    def ping(self) -> None:
        """Says that the job lives."""
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(b"\n")


class TrialProcess:
    """A shell command that speaks with this process over a socket in a private folder; used as a context.

    Args:
        command: For ``/bin/sh``.
        folder: Where it runs.
        environment: All of its variables; the socket's is added.
    """

    def __init__(self, command: str, folder: str, environment: Mapping[str, str]) -> None:
        self._private = private_folder()
        address = os.path.join(self._private.name, _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(16)
        self._selector = selectors.DefaultSelector()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(_WARDEN), command],
            cwd=folder,
            env={**environment, "HEIRLOOM_NNI_SOCKET": address},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._connections: set[Connection] = set()
        self._tail = ""

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def questions(self, wait_s: float) -> Iterator[tuple[Connection, dict[str, Any]]]:
        """Writes what was printed to standard output, and gives what was asked within so many seconds."""
        if self._process.stdout not in self._selector.get_map():  # all is printed, so that it is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            wait_s = 0.0
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._process.stdout:
                self._pass_on()
            elif (asked := key.data.read()) is None:
                self._forget(key.data)
            else:
                for question in asked:
                    yield key.data, question

    @property
    def status(self) -> int | None:
        """Its exit status, 128 and more for a signal; None: it runs."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """The last line that it has printed."""
        return next((line for line in reversed(self._tail.splitlines()) if line.strip()), "")

    @contextlib.contextmanager
    def pinged(self) -> Iterator[None]:
        """Meanwhile whoever waits for an answer is told that it will come."""
        done = threading.Event()

        def ping() -> None:
            while not done.wait(PING_S):
                for connection in list(self._connections):
                    connection.ping()

        threading.Thread(target=ping, name="heirloom-nni-ping", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def drain(self) -> None:
        """Writes the rest of what was printed, once the process has ended."""
        until = time.monotonic() + DRAIN_S
        while self._process.stdout in self._selector.get_map() and time.monotonic() < until:
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._process.stdout:
                    self._pass_on()

    def end(self) -> None:
        """Ends the process and all that it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the warden's signal
        self._process.wait()
        for connection in list(self._connections):
            self._forget(connection)
        self._selector.close()
        self._listener.close()
        self._process.stdout.close()
        self._private.cleanup()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        connection = Connection(accepted)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _forget(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.discard(connection)
        connection.socket.close()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), CHUNK)
        if not data:
            self._selector.unregister(self._process.stdout)
        text = data.decode(errors="replace")
        self._tail = (self._tail + text)[-TAIL:]
        sys.stdout.write(text)
