"""A Ray cluster on this machine, whose nodes are processes that join, vanish and are stopped as machines are."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from nas.executors.supervised_process import SupervisedProcess
from tests.support.commands import free_port, marked_processes

START_TIMEOUT_S = 120.0
RAY = str(Path(sys.executable).with_name("ray"))


class RayNodes:
    """A head without CPUs, and nodes of one CPU each.

    Attributes:
        address: ``HOST:PORT`` of the head.
        environment: Variables by which drivers may join.
    """

    def __init__(self, **variables: str) -> None:
        self.environment = ray_environment(**variables)
        self._folder = tempfile.mkdtemp(prefix="hrn-", dir="/tmp")
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.nodes: list[SupervisedProcess] = []
        self.head = self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in (*self.nodes, self.head):
            node.kill()
            node.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def join(self, **variables: str) -> SupervisedProcess:
        """Starts a node, and returns it. Its ``kill`` is the loss of a machine."""
        self.nodes.append(self._start(f"--address={self.address}", "--num-cpus=1", **variables))
        return self.nodes[-1]

    def processes(self) -> list[int]:
        """Returns the processes of its nodes and of its drivers."""
        return marked_processes(self.environment["RAY_AUTH_TOKEN"], "RAY_AUTH_TOKEN")

    def _start(self, *arguments: str, **variables: str) -> SupervisedProcess:
        log = Path(self._folder) / f"{secrets.token_hex(4)}.log"
        folder = [f"--temp-dir={self._folder}"] if "--head" in arguments else []
        with log.open("wb") as output:
            process = SupervisedProcess(
                start_command(*folder, *arguments),
                output=output,
                environment={**_plain_environment(), **self.environment, **variables},
            )
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while "Ray runtime started" not in log.read_text():
            assert process.exit_status is None and time.monotonic() < give_up_s, log.read_text()
            time.sleep(0.05)
        return process


def ray_environment(**variables: str) -> dict[str, str]:
    """Returns the variables that the nodes and drivers of a new cluster share."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",  # with Ray's 15, other tests leave actors no time
        **variables,
    }


def start_command(*arguments: str) -> list[str]:
    """Returns the command of a node."""
    return [sys.executable, "-P", RAY, "start", "--block", "--object-store-memory=80000000", *arguments]


def _plain_environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY", "PYTHONWARNINGS"))}
