"""A Dask scheduler and its workers, each a process of its own, as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from distributed import Client

from tests.support.commands import MARK, environment, free_port, marked_processes, until
from tests.support.servers import is_listening


class DaskProcess:
    """A scheduler, or a worker with what it has started."""

    def __init__(self, folder: Path, *arguments: str, name: str, **changes: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                cwd=folder,
                env=environment(**{MARK: self.mark}, **changes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def send(self, number: int) -> None:
        """Sends a signal to its process group, as Slurm does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """``kill -9`` of the process alone: what it has started must notice."""
        self.process.kill()
        self.process.wait()

    def leftovers(self) -> list[int]:
        """The processes that it started, itself too, and that live."""
        return marked_processes(self.mark)


class DaskCluster:
    """A scheduler; workers join and leave.

    Args:
        folder: Holds logs and scratch files.
        protocol: ``tcp`` or ``tls``.
        **changes: Variables for the environment of all processes.
    """

    def __init__(self, folder: Path, *, protocol: str = "tcp", **changes: str) -> None:
        self.folder = folder
        self._changes = changes
        self._port = free_port()
        self.address = f"{protocol}://127.0.0.1:{self._port}"
        arguments = ["--host", "127.0.0.1", "--port", str(self._port), "--no-dashboard"]
        arguments += ["--protocol", protocol]
        self.scheduler = DaskProcess(folder, "scheduler", *arguments, name="scheduler", **changes)
        self.workers: list[DaskProcess] = []

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.scheduler):
            process.send(signal.SIGKILL)
            process.process.wait()
            until(lambda: not process.leftovers(), 60, what="the end of all processes")  # noqa: B023

    def join(self, *, nanny: bool = False, **changes: str) -> DaskProcess:
        """Starts a worker once the scheduler listens: workers and drivers wait for it 20 s."""
        until(lambda: is_listening(self._port), what="the scheduler")
        name = f"worker-{len(self.workers)}"
        arguments = ["worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard"]
        arguments += ["--local-directory", str(self.folder / name), "--death-timeout", "20"]
        arguments += ["--nanny" if nanny else "--no-nanny"]
        self.workers.append(DaskProcess(self.folder, *arguments, name=name, **self._changes, **changes))
        return self.workers[-1]

    def leave_alone(self) -> None:
        """Ends all workers, and waits until the scheduler knows."""
        for worker in self.workers:
            worker.send(signal.SIGKILL)
            worker.process.wait()
        with self.client() as client:
            until(lambda: not client.scheduler_info()["workers"], what="a cluster without workers")

    def client(self) -> Client:
        """Returns a client."""
        return Client(self.address, timeout=60, set_as_default=False)
