"""The identity of a process: its host, pid, boot and start time."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class HostProcess:
    """The process that drives a session of a search, or did.

    A session's record has these fields.
    """

    host: str
    pid: int
    boot: str
    """Id of the host's boot; empty if the system has none."""
    process_started: str
    """Start time of the process, in the kernel's ticks; empty if the system has none."""
    machine: str
    """Ids of the machine and of its pid namespace: a container sees only its own processes."""

    @classmethod
    def current(cls) -> HostProcess:
        """Returns this process."""
        pid, boot = os.getpid(), _read("/proc/sys/kernel/random/boot_id")
        namespace = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""
        machine = f"{_read('/etc/machine-id')} {namespace}".strip()
        return cls(socket.gethostname(), pid, boot, _start_time(pid), machine)

    @classmethod
    def of_session(cls, record: Mapping[str, Any]) -> HostProcess:
        """Returns the process of a session's record."""
        return cls(record["host"], record["pid"], record["boot"], record["process_started"], record["machine"])

    def is_beside(self, other: HostProcess) -> bool:
        """Returns whether the two see each other; clones of a machine differ in boot."""
        return (self.host, self.machine, self.boot) == (other.host, other.machine, other.boot)

    def is_gone(self) -> bool:
        """Returns whether the process ran on this host and boot and has ended."""
        if not self.is_beside(HostProcess.current()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user's process, which /proc may hide
            return _start_time(self.pid) not in ("", self.process_started)
        return self.process_started != _start_time(self.pid)


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _start_time(pid: int) -> str:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return ""
    is_zombie = fields[0] == "Z"  # it has ended, and its parent has not waited for it yet
    return "ended" if is_zombie else fields[19]
