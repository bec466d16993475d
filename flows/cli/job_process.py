"""Jobs that a launcher starts in another process: each is a command of its own.

The command ends with the launcher's process, from which it gets its orders and to which it returns a result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from flows.cli.output import tell

VARIABLE = "HEIRLOOM_JOB"
"""Names the folder with a job's orders, into which its command writes its result."""
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job, as it travels through Hydra's return values.

    Attributes:
        status: The exit status.
        search: The name of the search, or None if it has no result.
        text: The standard output of a job that ran in another process.
    """

    status: int
    search: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A job as a command.

    Attributes:
        words: The command's words after the Python program.
        folder: The folder in which the multirun was started.
        label: The job's label in lines on standard error.
        orders: The multirun's command line, and the keys that it varies.
    """

    words: tuple[str, ...]
    folder: str
    label: str
    orders: dict[str, Any]

    def run(self) -> JobResult:
        """Runs the command to its end; an interruption of this process stops it.

        If the multirun has ended meanwhile, this process ends as well: nobody takes its result.
        """
        parent = os.getppid()
        result = self._run(parent)
        if os.getppid() != parent:
            os._exit(result.status)
        return result

    def _run(self, parent: int) -> JobResult:
        with tempfile.TemporaryDirectory(prefix="heirloom-job-") as folder:
            exchange_folder = Path(folder)
            (exchange_folder / "orders.json").write_text(json.dumps(self.orders))
            output = exchange_folder / "out"
            with output.open("wb") as out:
                process = self._start(exchange_folder, out)
                assert process.stdin is not None
                lines = threading.Thread(target=self._forward, args=(process.stderr,), daemon=True)
                lines.start()
                status = _wait(process, parent)
                process.stdin.close()
                lines.join(1.0)
            result = exchange_folder / "result.json"
            search = None
            with suppress(FileNotFoundError, ValueError):  # a full disk may have cut the result
                search = json.loads(result.read_text())["search"]
            return JobResult(status, search, output.read_text(encoding="utf-8", errors="backslashreplace"))

    def _start(self, exchange_folder: Path, out: IO[bytes]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self.words],
            cwd=self.folder,
            env={**os.environ, VARIABLE: str(exchange_folder)},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C reaches it by this process, once
            encoding="utf-8",
            errors="backslashreplace",
        )

    def _forward(self, lines: IO[str]) -> None:
        """Repeats the command's lines on standard error, with the job's label."""
        with lines:
            for line in lines:
                text = line.rstrip("\n")
                said = text.removeprefix("heirloom: ")
                tell(f"heirloom: {self.label}: {said}" if said != text else f"{self.label}: {text}")


def _wait(process: subprocess.Popen[str], parent: int) -> int:
    """Returns the exit status; an interruption, or the end of the parent, stops the command."""
    assert process.stdin is not None
    try:
        while (status := _status(process)) is None:
            if os.getppid() != parent:
                process.stdin.close()
                return process.wait()
    except KeyboardInterrupt:
        process.stdin.close()
        return process.wait()
    return 128 - status if status < 0 else status


def _status(process: subprocess.Popen[str]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_POLL_S)
    return None


@cache
def job_orders() -> dict[str, Any] | None:
    """Returns the orders of the launcher's process that started this command, or None."""
    exchange_folder = os.environ.get(VARIABLE)
    if exchange_folder is None:
        return None
    os.environ.pop(VARIABLE)  # it is not for processes that this one starts
    orders: dict[str, Any] = json.loads((Path(exchange_folder) / "orders.json").read_text())
    threading.Thread(target=_stop_with_launcher, daemon=True).start()
    return {**orders, "exchange_folder": exchange_folder}


def return_search(search: str | None) -> None:
    """Returns the name of the search to the launcher's process, if there is one."""
    if (orders := job_orders()) is not None:
        try:
            (Path(orders["exchange_folder"]) / "result.json").write_text(json.dumps({"search": search}))
        except OSError as error:
            tell(f"heirloom: the multirun does not learn the name of this search: {error}")


def _stop_with_launcher() -> None:
    """Interrupts this command when the launcher's process closes the pipe, or ends."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGINT)
