"""Commands as a user starts them, in processes of their own, and what they leave behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nas.core.trial import Trial
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.processes import is_alive

ROOT = Path(__file__).parents[2]
TIMED = ("+tuner=random", "problem._target_=timed_problem.TimedProblem", "device=cpu", "threads=1")
"""A search of a second a trial at most; the module is found by ``PYTHONPATH``."""
MARK = "HEIRLOOM_TEST_MARK"
SERVER_AUTH = "HEIRLOOM_TEST_SERVER_AUTH"
"""Holds the credentials of the server of the fixture ``api_url``."""


@dataclass(frozen=True, slots=True)
class Done:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str
    seconds: float
    pid: int

    @property
    def complaint(self) -> str:
        """The one line on standard error, which must be the only one."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("heirloom: "), self.err
        assert self.out == ""
        return self.err.removeprefix("heirloom: ").strip()


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings of Prefect, with the test's modules to import."""
    dropped = ("PREFECT", "CI", "COLUMNS", "FORCE_COLOR")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    python = os.pathsep.join([str(Path(sys.executable).parent), ours["PATH"]])
    if "PREFECT_API_URL" in changes and SERVER_AUTH in ours:
        ours["PREFECT_API_AUTH_STRING"] = ours[SERVER_AUTH]
    return ours | {"PYTHONPATH": path, "PATH": python, "PYTHONWARNINGS": "default"} | changes


def connected(api_url: str) -> dict[str, str]:
    """Returns the variables of a command that uses the server of the fixture ``api_url``."""
    return {"PREFECT_API_URL": api_url, "PREFECT_API_AUTH_STRING": os.environ[SERVER_AUTH]}


def bash_blocks(page: Path) -> list[str]:
    """Returns the blocks of shell commands of a page."""
    return re.findall(r"^```bash\n(.*?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Command:
    """A command that runs in a process group of its own, its streams in files.

    Args:
        folder: Where it is started.
        overrides: What follows ``python -m flows.search``.
        module: Another command.
        line: One for a shell instead.
        forked: True forks it from a process that has most imports behind it. Its start takes a third of the time.
        changes: Variables of its environment.
    """

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        module: str = "flows.search",
        line: str | None = None,
        forked: bool = False,
        **changes: str,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._began = time.monotonic()
        streams = folder.parent / f"{folder.name}-{self.mark[:6]}"
        self.streams = self._out, self._err = streams.with_suffix(".out"), streams.with_suffix(".err")
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if forked:
            forker, changes = free_forker(), changes | {MARK: self.mark}
            pid = forker.start(folder, *overrides, module=module, streams=self.streams, **changes)
            self.process, self._began = ForkedProcess(forker, pid), time.monotonic()
            return
        arguments = [sys.executable, "-m", module, *overrides] if line is None else ["bash", "-c", f"exec {line}"]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment(**{MARK: self.mark}, **changes),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for pid in self.leftovers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._err.read_text()

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._out.read_text()

    def wait(self, timeout_s: float = 240.0) -> Done:
        """Returns its status and output, once it has ended."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still runs after {timeout_s} s: {self.out}\n{self.err}") from error
        return Done(status, self.out, self.err, time.monotonic() - self._began, self.process.pid)

    def send(self, number: int, *, to_group: bool = True) -> None:
        """A signal, as a terminal sends it to the whole group, or to the driver alone."""
        with suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.process.pid, number)

    def kill(self, *, to_group: bool = True) -> None:
        """``kill -9``."""
        self.send(signal.SIGKILL, to_group=to_group)
        self.process.wait()

    def leftovers(self) -> list[int]:
        """Processes that it started, itself too, and that live."""
        itself = [self.process.pid] if isinstance(self.process, ForkedProcess) and self.process.poll() is None else []
        return itself + marked_processes(self.mark)


def marked_processes(mark: str, name: str = MARK) -> list[int]:
    """Returns the processes that live and have this value of a variable in their environment."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_marked(pid, f"{name}={mark}")]


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return is_alive(pid) and mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def run(
    folder: Path,
    *overrides: str,
    module: str = "flows.search",
    line: str | None = None,
    forked: bool = True,
    timeout_s: float = 240.0,
    **changes: str,
) -> Done:
    """Runs a command to its end.

    It is forked from a process that has most imports behind it, which are most of the time of a small search.

    Args:
        folder: Where it is started.
        overrides: What follows ``python -m flows.search``.
        module: Another command.
        line: One for a shell instead, in a new process.
        forked: False starts a new process.
        timeout_s: For the command.
        changes: Variables of its environment; one of Python's starts a new process, too.
    """
    if line is None and forked and not any(name.startswith("PYTHON") for name in changes):
        with Command(folder, *overrides, module=module, forked=True, **changes) as command:
            return command.wait(timeout_s)
    with Command(folder, *overrides, module=module, line=line, forked=False, **changes) as command:
        return command.wait(timeout_s)


def run_printed(folder: Path, line: str, **changes: str) -> Done:
    """Runs a command that another one printed, ``python -m MODULE OVERRIDE ...``, as `run` does."""
    python, option, module, *overrides = shlex.split(line, comments=True)
    assert (python, option) == ("python", "-m"), line
    with Command(folder, *overrides, module=module, forked=True, **changes) as command:
        return command.wait()


class Forker:
    """A process with the imports of commands, which forks one command at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "command_forker.py")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def start(self, folder: Path, *overrides: str, module: str, streams: tuple[Path, Path], **changes: str) -> int:
        """Starts a command. Returns its process."""
        order = {"module": module, "arguments": overrides, "cwd": str(folder), "environment": environment(**changes)}
        out, err = map(str, streams)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "out": out, "err": err}).encode() + b"\n")
        pid = self.answer(120.0)
        assert pid is not None, "no command was started within 120 s"
        return pid

    def answer(self, timeout_s: float) -> int | None:
        """Returns the next number that the process prints, or None if it prints none in time."""
        assert self._process.stdout is not None
        answers, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        return int(self._process.stdout.readline()) if answers else None


class ForkedProcess:
    """A command that was started by a forker, as ``subprocess.Popen`` shows one."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status, or None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float = 120.0) -> int:
        """Returns the exit status once it has ended."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired([], timeout)
        return status

    def _look(self, timeout_s: float) -> int | None:
        if self._status is None and (status := self._forker.answer(timeout_s)) is not None:
            self._status = status
            FORKERS.append(self._forker)
        return self._status


FORKERS: list[Forker] = []
"""Those that are free; they end with this process."""


def free_forker() -> Forker:
    """Returns a forker that has no command."""
    return FORKERS.pop() if FORKERS else Forker()


def on_terminal(folder: Path, *overrides: str, columns: int = 80, interrupt_at: str | None = None) -> tuple[int, str]:
    """The status of a command on a terminal of so many columns, and what the terminal got.

    With ``interrupt_at`` it is interrupted when that text has appeared.
    """
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "flows.search", *overrides],
        cwd=folder,
        env=environment(TERM="xterm-256color"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        output = b""
        with suppress(OSError):  # Linux's end of file for a terminal
            while chunk := os.read(master, 65536):
                output += chunk
                if interrupt_at is not None and interrupt_at.encode() in output:
                    interrupt_at = None
                    os.killpg(process.pid, signal.SIGINT)
        os.close(master)
    return process.returncode, output.decode()


def until(holds: Callable[[], object], timeout_s: float = 240.0, *, what: str = "it") -> float:
    """Waits until something holds; gives the seconds that it took.

    Its questions take little of the time: what it waits for needs the processor, too.
    """
    began = asked = time.monotonic()
    while not holds():
        assert time.monotonic() < began + timeout_s, f"{what} did not come about within {timeout_s:g} s"
        time.sleep(min(max(0.01, 4 * (time.monotonic() - asked)), 0.2))
        asked = time.monotonic()
    return time.monotonic() - began


def free_port() -> int:
    """Returns a free port that outgoing connections of Linux don't get, unless its range of ports was changed."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("none of 100 ports from 20,000 to 32,000 is free")


def records(folder: Path) -> Records:
    """The records of the search in this folder."""
    return Records(open_root(str(folder)))


def trials(folder: Path) -> list[Trial]:
    """The trials of the search in this folder."""
    return records(folder).load()[0]


def everything(folder: Path) -> list[str]:
    """All files and folders below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def resume_line(err: str) -> str:
    """The command that the last line of an interrupted search names."""
    return err.strip().splitlines()[-1].partition("Resume: ")[2]


def only_search(folder: Path, root: str = "heirloom") -> Path:
    """The folder of the one search under the root."""
    (found,) = (folder / root).iterdir()
    return found
