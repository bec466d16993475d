"""The driver's end of the process in which an experiment's own tuner lives (``sdk/nni/host.py``)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SDK = Path(__file__).with_name("sdk")
"""The folder in which an experiment's processes find ``import nni``."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Host:
    """A process that makes calls, and tells their answers; every call is numbered.

    Args:
        folder: Where it runs; what it prints is appended to ``tuner.log`` there.
        environment: Variables beside this process's own.
        take: Called with each answer, and with None when the process has ended, by a thread of the host's.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], take: Callable[[dict[str, Any] | None], None]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "tuner.log"
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(SDK), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "nni.host"],
                cwd=folder,
                env={**os.environ, **environment, "PYTHONPATH": path, "NNI_HOST_FD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._line = ours
        self._file = ours.makefile("rwb")
        self._take = take
        self._lock = threading.Lock()
        self._n_calls = 0
        threading.Thread(target=self._read, name="heirloom-nni-tuner", daemon=True).start()

    def call(self, do: str, **content: Any) -> int:
        """Asks for a call; gives its number. Where the process is gone, its end is told to ``take``."""
        with self._lock:
            number, self._n_calls = self._n_calls, self._n_calls + 1
            try:
                self._file.write(json.dumps({"call": number, "do": do, **content}).encode() + b"\n")
                self._file.flush()
            except OSError:
                pass  # its end is told by the thread that reads
            return number

    def cpu_s(self) -> float:
        """Seconds of computing that the process has taken, and, on Linux, its ended children; 0 when it is gone."""
        if sys.platform != "linux":
            return _ps_seconds(self._process.pid)
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / _TICKS

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._line.close()

    def _read(self) -> None:
        try:
            for line in self._file:
                self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # closed, or torn by a kill
        self._take(None)


def _ps_seconds(pid: int) -> float:
    """Returns the computing time of a process as ``ps`` tells it: ``[[days-]hours:]minutes:seconds``."""
    told = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    days, _, rest = told.rpartition("-")
    seconds = 0.0
    for part in rest.split(":") if rest else ():
        seconds = seconds * 60 + float(part)
    return seconds + 86_400 * int(days or 0)
