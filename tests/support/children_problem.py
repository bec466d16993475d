"""A problem whose trials leave child processes of every kind behind; commands import it by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from glob import glob
from pathlib import Path

from nas import Int, Metric, ParameterSpace, Policy, Problem, TrialRun

KINDS = ("loader", "fork", "ignoring", "daemon", "subprocess", "stopped", "hopping")


class ChildrenProblem(Problem):
    """Starts children, each of which writes its process id to a file ``trial-kind-pid``.

    Args:
        folder: Where the files are written.
        hangs: Whether trials do not end by themselves.
    """

    metrics = (Metric("score"),)
    policies = frozenset(Policy)
    space = ParameterSpace({"x": Int(0, 999)})

    def __init__(self, *, folder: str, hangs: bool = False) -> None:
        self.folder = folder
        self.hangs = hangs

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Starts one child of each kind, waits until all run, and hangs or leaves them."""
        from torch.utils.data import DataLoader

        stem = str(run.number)
        note = Note(f"{self.folder}/{stem}")
        note("worker", os.getpid())
        batches = iter(DataLoader(range(8), num_workers=2, worker_init_fn=lambda index: note("loader", os.getpid())))
        forked(note, "fork")
        forked(note, "ignoring", lambda: [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)])
        forked(note, "daemon", daemonize)
        forked(note, "hopping", lambda: hop(note))
        note("subprocess", subprocess.Popen(["sleep", "600"]).pid)
        stopped = subprocess.Popen(["sleep", "600"])
        stopped.send_signal(signal.SIGSTOP)
        note("stopped", stopped.pid)
        while not all(note.n_written(kind) >= (2 if kind == "loader" else 1) for kind in KINDS):
            time.sleep(0.01)
        next(batches)
        print("all children run")
        Path(f"{self.folder}/ready-{run.number}").touch()
        while self.hangs:
            time.sleep(600)
        return {"score": run.point["x"]}


class Note:
    """Writes a file for a process."""

    def __init__(self, stem: str) -> None:
        self.stem = stem

    def __call__(self, kind: str, pid: int) -> None:
        Path(f"{self.stem}-{kind}-{pid}").touch()

    def n_written(self, kind: str) -> int:
        """Returns how many processes of a kind have a file."""
        return len(glob(f"{self.stem}-{kind}-*"))


def forked(note: Note, kind: str, begin: Callable[[], object] = lambda: None) -> None:
    """Forks a child that does something, writes its file and stays for ten minutes."""
    if os.fork() == 0:
        begin()
        note(kind, os.getpid())
        time.sleep(600)
        os._exit(0)


def daemonize() -> None:
    """Leaves session and parent behind, as daemons do."""
    os.setsid()
    if os.fork():
        os._exit(0)


def hop(note: Note) -> None:
    """Forks and ends on and on, so that no look at the processes shows it for long."""
    note("hopping", os.getpid())
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if os.fork():
            os._exit(0)
        os.setsid()
    sys.exit()
