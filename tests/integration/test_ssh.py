"""Workers that are started over SSH, by the guide's lines and by Dask's SSHCluster, on a real SSH server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import MARK, ROOT, environment, free_port, marked_processes, run, trials, until
from tests.support.servers import openssh_server

pytestmark = pytest.mark.slow
GUIDE = (ROOT / "docs" / "guides" / "machines.md").read_text()
SLOW = "problem.seconds=8"
"""On a busy machine a worker may join many seconds after the other."""
OWN = ("+tuner=random", "problem._target_=mine.Mine", "threads=1", "device=cpu", "policy=search_only", "name=mine")
"""A problem in a module of the working folder."""
PROBLEM = """
from timed_problem import TimedProblem

class Mine(TimedProblem):
    pass
"""


@dataclass(frozen=True)
class Server:
    """An SSH server on this machine, in the place of all others."""

    port: int
    options: dict[str, Any]
    mark: str
    """In the environment of all that it starts."""

    def client(self, folder: Path) -> Path:
        """Returns a folder with a program ``ssh`` that reaches it as any host."""
        [key] = self.options["client_keys"]
        lines = ["Hostname 127.0.0.1", f"Port {self.port}", f"IdentityFile {key}", "StrictHostKeyChecking no"]
        (folder / "config").write_text("\n".join([*lines, "UserKnownHostsFile /dev/null", "LogLevel ERROR"]))
        (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
        (folder / "ssh").chmod(0o755)
        return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yields a server whose users find Heirloom, as where it is installed."""
    (tmp_path / "keys").mkdir()
    try:
        variables = {"PYTHONPATH": environment()["PYTHONPATH"], MARK: uuid.uuid4().hex}
        with openssh_server(tmp_path / "keys", **variables) as (port, options):
            yield Server(port, options, variables[MARK])
    except FileNotFoundError as error:
        pytest.skip(f"OpenSSH's server is needed: {error}")


@pytest.fixture
def project(here: Path) -> Path:
    """Returns a working folder with a problem."""
    (here / "mine.py").write_text(PROBLEM)
    return here


def processes_of(text: str) -> list[int]:
    """Returns the processes with a text in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [int(path.parent.name)] if text.encode() in path.read_bytes() else []
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_guide_starts_workers_over_ssh(project: Path, api_url: str, server: Server, tmp_path: Path) -> None:
    """The guide's lines start a scheduler and two workers, which find the problem; workers end with the scheduler."""
    port = free_port()
    [block] = [found for found in re.findall(r"```bash\n(.+?)```", GUIDE, re.DOTALL) if "for node" in found]
    lines = block.replace("--host node-1", "--host 127.0.0.1").replace("--port 8786", f"--port {port}")
    lines = lines.replace("tcp://node-1:8786", f"tcp://127.0.0.1:{port}").partition("python -m flows.search")[0]
    path = f"{server.client(tmp_path)}:{environment()['PATH']}"
    address = f"tcp://127.0.0.1:{port}"
    plan = (*OWN, "runner=dask", f"runner.cluster.address={address}", "slots=2", "budget.trials=4", SLOW)
    with subprocess.Popen(["bash", "-c", f"{lines} wait"], cwd=project, env=environment(PATH=path)) as shell:
        try:
            done = run(project, *plan, PREFECT_API_URL=api_url)
            [scheduler] = processes_of(f"--port\0{port}")
            os.kill(scheduler, signal.SIGTERM)
            until(lambda: not processes_of(address), 30, what="the end of the workers")
        finally:
            for pid in (*processes_of(address), *processes_of(f"--port\0{port}")):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shell.kill()

    assert done.status == 0, done.err
    assert "2 workers for 2 slots" in done.err, done.err
    assert [trial.state for trial in trials(project / "heirloom" / "mine")] == ["COMPLETE"] * 4


def test_ssh_cluster_runs_a_search(project: Path, api_url: str, server: Server) -> None:
    """``runner/cluster=ssh`` starts and ends scheduler and workers; without hosts it is refused in one line."""
    [key] = server.options["client_keys"]
    connect = [f"port:{server.port}", f"client_keys:[{key}]", "known_hosts:null", "config:null"]
    plan = (*OWN, "runner=dask", "runner/cluster=ssh", "slots=2", "budget.trials=4", SLOW)
    ways = f"+runner.cluster.connect_options={{{','.join(connect)}}}"
    hosts = "runner.cluster.hosts=[127.0.0.1,127.0.0.1,127.0.0.1]"
    done = run(project, *plan, ways, hosts, PREFECT_API_URL=api_url)
    until(lambda: not marked_processes(server.mark), 20, what="the end of the workers")
    refused = run(project, *plan, "name=other", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    assert "2 workers for 2 slots" in done.err, done.err
    assert [trial.state for trial in trials(project / "heirloom" / "mine")] == ["COMPLETE"] * 4
    assert refused.status == 2
    assert "runner.cluster._target_=distributed.SSHCluster: can't start: ValueError: `hosts`" in refused.err
