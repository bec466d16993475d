"""A child process that ends together with everything that it started; see ``supervisor.py``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_ORDER_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 5.0


class SupervisedProcess:
    """A command that ends together with its descendants, and with this process, even after SIGKILL.

    It has a session of its own, no standard input, and none of this process's descriptors.

    Args:
        command: A program with its arguments.
        output: Where its standard output and error go: a file, or ``subprocess.PIPE``.
        pass_fds: Descriptors that it inherits.
        cwd: Its working folder; None: that of this process.
        environment: All of its variables; None: those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: int | IO[bytes],
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.was_killed = False
        """Whether ``kill`` was called. The process may still hang in the kernel."""
        self._control, control = socket.socketpair()
        fds = ",".join(map(str, pass_fds))
        supervisor = [sys.executable, "-I", "-S", _SUPERVISOR, str(os.getpid()), str(control.fileno()), fds]
        # Signals to this process's group do not end the supervisor before it ignores them: it inherits the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._process = subprocess.Popen(
                [*supervisor, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(control.fileno(), *pass_fds),
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            control.close()

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when the command and all its descendants have ended."""
        return self._control.fileno()

    @property
    def stdout(self) -> IO[bytes]:
        """The output of the command, if it is a pipe."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def exit_status(self) -> int | None:
        """The exit status, minus the number of a signal, or None while something runs."""
        return self._process.poll()

    def order(self, text: Literal["pid", "mark", "sweep"]) -> str | None:
        """Returns the supervisor's answer; None: there was none in time, or it has ended."""
        with contextlib.suppress(OSError):
            self._control.settimeout(_ORDER_TIMEOUT_S)
            self._control.sendall(f"{text}\n".encode())
            return self._control.recv(4096).decode().strip() or None
        return None

    def wait(self, timeout_s: float) -> bool:
        """Waits until the command and its descendants end. Returns whether they did in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def kill(self, timeout_s: float = KILL_TIMEOUT_S) -> bool:
        """Kills the command and its descendants. Returns whether all have ended in time.

        A process that outlives SIGKILL hangs in the kernel. It runs no more code of its own, so a replacement may
        start at once.
        """
        self.was_killed = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        return self.wait(timeout_s)

    def close(self) -> None:
        """Closes the socket to the supervisor, which kills whatever still runs."""
        self._control.close()
        if self.exit_status is None:  # it hangs in the kernel: leaves no zombie when it ends
            threading.Thread(target=self._process.wait, name="heirloom-abandoned", daemon=True).start()
