"""The process of an experiment's own tuner, as the driver sees it; it runs ``sdk/nni/tuner_server.py``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nas.compat.nni.sdk import SDK
from nas.executors.supervised_process import SupervisedProcess

_TICKS = os.sysconf("SC_CLK_TCK")


class TunerProcess:
    """A child process that receives numbered calls and sends a reply to each.

    Args:
        folder: The working folder. The process's output is appended to ``tuner.log`` there.
        environment: Variables in addition to those of this process.
        on_reply: Called on a thread with each reply, and with None when the process has ended.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], on_reply: Callable[[dict[str, Any] | None], None]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "tuner.log"
        parent_socket, child_socket = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(SDK), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path, "HEIRLOOM_TUNER_FD": str(child_socket.fileno())}
        with self.log.open("ab") as log, child_socket:
            self._process = SupervisedProcess(
                [sys.executable, "-u", "-m", "nni.tuner_server"],
                output=log,
                pass_fds=[child_socket.fileno()],
                cwd=str(folder),
                environment={**os.environ, **environment, **variables},
            )
        self._pid = int(self._process.order("pid") or 0)
        self._socket = parent_socket
        self._file = parent_socket.makefile("rwb")
        self._on_reply = on_reply
        self._lock = threading.Lock()
        self._n_calls = 0
        threading.Thread(target=self._read, name="heirloom-nni-tuner", daemon=True).start()

    def call(self, method: str, **arguments: Any) -> int:
        """Sends a call and returns its number."""
        with self._lock:
            number, self._n_calls = self._n_calls, self._n_calls + 1
            line = json.dumps({"call": number, "method": method, **arguments})
            try:
                self._file.write(line.encode() + b"\n")
                self._file.flush()
            except (OSError, ValueError):
                pass  # the process has ended: the reading thread reports it, and closes the file
            return number

    def cpu_s(self) -> float:
        """Returns the CPU seconds of the process and, on Linux, of its ended children.

        After the end of the process it is 0.
        """
        if sys.platform != "linux":
            return _ps_seconds(self._pid)
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / _TICKS

    def close(self) -> None:
        """Kills the process and everything that it started."""
        self._process.kill()
        self._process.close()
        self._socket.close()

    def _read(self) -> None:
        try:
            for line in self._file:
                self._on_reply(json.loads(line))
        except (OSError, ValueError):
            pass  # closed, or a line cut off by a kill
        self._on_reply(None)
        with self._lock, suppress(OSError):
            self._file.close()  # the socket stays open until then


def _ps_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process from ``ps``, which prints ``[[days-]hours:]minutes:seconds``."""
    output = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    days, _, rest = output.rpartition("-")
    seconds = 0.0
    for part in rest.split(":") if rest else ():
        seconds = seconds * 60 + float(part)
    return seconds + 86_400 * int(days or 0)
