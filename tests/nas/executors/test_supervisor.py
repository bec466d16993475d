"""The supervisor of a command on systems that lack what Linux has; see also tests/faults/test_processes.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nas.executors import supervisor
from tests.support.processes import is_alive

REPOSITORY = Path(__file__).parents[3]
LESS = """
import sys
from nas.executors import supervisor
supervisor.open_handle = lambda pid: None
supervisor.IS_LINUX = sys.argv.pop(1) == "old Linux"
supervisor.main(sys.argv[1:])
"""
"""The supervisor without process descriptors, or with neither those nor /proc nor subreapers, as on macOS."""


def test_ps_shows_what_proc_shows() -> None:
    """Both lists of processes agree on this process."""
    from_ps, from_proc = supervisor.rows_of_ps()[os.getpid()], supervisor.rows_of_proc()[os.getpid()]

    assert from_ps.parent == from_proc.parent == os.getppid()
    assert from_ps.is_zombie == from_proc.is_zombie is False
    assert supervisor.is_one_of(["python"], os.getpid())
    assert not supervisor.is_one_of(["torch_shm_manager"], os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize("system", ["old Linux", "macOS"])
def test_everything_ends_on_other_systems(tmp_path: Path, system: str) -> None:
    """A command, its children and an orphan of its group end when the driver closes the socket."""
    ours, theirs = socket.socketpair()
    orphan, session = "(sleep 600 & echo $! > orphan)", "setsid sh -c 'echo $$ > session; exec sleep 600' &"
    program = f"{orphan}; {session} sleep 600 & echo $! > child; wait"
    arguments = [system, str(os.getpid()), str(theirs.fileno()), "", "sh", "-c", program]
    command = [sys.executable, "-c", LESS, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        files = [tmp_path / name for name in ("orphan", "session", "child")]
        until_ended(lambda: not all(file.exists() and file.read_text() for file in files))
        ours.sendall(b"pid\n")
        command_pid = int(ours.recv(100))
        children = [int(file.read_text()) for file in files]
        ours.close()
        until_ended(lambda: any(map(is_alive, [process.pid, command_pid, *children])), process)


def until_ended(holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    until_s = time.monotonic() + 60
    while holds():
        if process is not None:
            process.poll()
        assert time.monotonic() < until_s
        time.sleep(0.02)
