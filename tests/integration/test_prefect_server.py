"""Searches on a shared Prefect server with PostgreSQL: deployments, and a server that is slow, down or locked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import MARK, ROOT, environment, marked_processes
from tests.support.prefect_searches import HELD, Command, Server, SteadySearch, until
from tests.support.proxies import TcpProxy
from tests.support.servers import Postgres, postgres_server

pytestmark = pytest.mark.slow

SERVE = str(ROOT / "examples" / "09_deployment" / "serve.py")
TABLES = "flow_run, task_run, flow_run_state, task_run_state, artifact, log, events"
OVERRIDES = [*HELD, "slots=2", "budget.trials=16", "name=deployed"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        with postgres_server() as server:
            yield server
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "home", postgres.url) as server:
        yield server


@pytest.fixture(scope="module")
def command(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(server, tmp_path_factory.mktemp("searches"))


class Deployment:
    """The deployment of the example, served, and its runs as the UI's buttons start and cancel them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._mark = folder.name
        cache = str(folder / "cache")
        own = {"PREFECT_API_URL": server.url, "HEIRLOOM_CACHE": cache, "PREFECT_HOME": cache, MARK: self._mark}
        own |= {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}
        with (folder / "serve.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, SERVE], cwd=folder, env=environment(**own), stdout=log, stderr=log
            )
        until(lambda: bool(self._found()), 60, "the deployment is served")

    def start(self, overrides: list[str]) -> str:
        """Starts a run and returns its id."""
        body = {"parameters": {"overrides": overrides}, "state": {"type": "SCHEDULED"}}
        return str(self._server.post(f"/deployments/{self._found()[0]['id']}/create_flow_run", body)["id"])

    def cancel(self, run: str) -> None:
        state = {"type": "CANCELLING", "name": "Cancelling"}
        assert self._server.post(f"/flow_runs/{run}/set_state", {"state": state})["status"] == "ACCEPT"

    def wait(self, run: str, state: str) -> float:
        """Returns the seconds until the run is in a state."""
        return until(lambda: self._server.get(f"/flow_runs/{run}")["state_name"] == state, 100, f"the run is {state}")

    def processes(self) -> list[str]:
        """Returns the programs of all processes below this one, except Python's resource tracker."""
        found = []
        for pid in marked_processes(self._mark):
            with suppress(OSError):  # it has ended
                found.append(" ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1:-1]))
        return [program for program in found if "multiprocessing.resource_tracker" not in program]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def _found(self) -> list[dict[str, Any]]:
        return list(self._server.post("/deployments/filter", {"deployments": {"name": {"any_": ["laptop"]}}}))


@pytest.fixture(scope="module")
def deployment(server: Server, command: Command) -> Iterator[Deployment]:
    deployment = Deployment(server, command.folder)
    try:
        yield deployment
    finally:
        deployment.close()


def test_a_deployment_is_started_watched_cancelled_and_resumed(
    server: Server, command: Command, deployment: Deployment
) -> None:
    """A cancel in the UI keeps finished trials and leaves no process; the same parameters resume."""
    hold = command.folder / "hold"
    hold.mkdir()
    held = [hold / str(number) for number in (4, 5)]
    for file in held:
        file.touch()
    overrides = [*OVERRIDES, f"problem.hold={hold}"]
    first = deployment.start(overrides)
    command.wait_for_trials("deployed", 4)
    deployment.cancel(first)
    seconds = deployment.wait(first, "Cancelled")
    until(lambda: deployment.processes() == [SERVE], 30, "only the deployment's process is left")
    trials = command.folder / "heirloom" / "deployed" / "trials"
    kept = {path: path.read_bytes() for path in trials.glob("*.result.json")}
    for file in held:
        file.unlink()
    second = deployment.start(overrides)
    deployment.wait(second, "Completed")
    log = server.logs(flow_run_id=[first])
    until(lambda: any("16 trials (16 COMPLETE)" in line for line in server.logs(flow_run_id=[second])), 30, "the log")

    assert seconds < 30  # then Prefect kills
    assert len(kept) == 4
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(list(trials.glob("*.result.json"))) == 16
    assert not [path for path in kept if Path(f"{path}".replace("result", "start-2")).exists()]
    assert any("(search) COMPLETE" in line for line in log)  # which of the first two is told is by chance
    assert any("interrupted (SIGTERM)" in line and "kept. Resume:" in line for line in log)
    assert [run["state_name"] for run in server.flow_runs("deployed")] == ["Cancelled", "Completed"]


def test_a_deployment_shows_a_users_mistake(server: Server, deployment: Deployment) -> None:
    """The run is Failed with the command's line as message."""
    run = deployment.start(["+tuner=evolutoin"])
    deployment.wait(run, "Failed")

    assert "evolution" in server.get(f"/flow_runs/{run}")["state"]["message"]


def test_a_slow_server_delays_no_trial(server: Server, command: Command) -> None:
    """While each answer takes five seconds, trials run as fast as ever."""
    with TcpProxy(server.port) as proxy:
        search = SteadySearch(command, "slow", n_trials=40, port=proxy.port)
        command.wait_for_trials("slow", 2)
        proxy.delay_s = 5.0
        n_finished = search.n_finished_in(6)
        search.check_end(within_s=40)

    assert n_finished >= search.n_least_in(6)


def test_a_locked_database_delays_no_trial(server: Server, command: Command, postgres: Postgres) -> None:
    """While a client of PostgreSQL locks the tables past the server's timeout of 10 s, trials run as fast as ever."""
    search = SteadySearch(command, "locked", n_trials=70)
    command.wait_for_trials("locked", 2)
    lock = f"LOCK TABLE {TABLES} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(12)"
    client = postgres.start(f"SET deadlock_timeout = '1min'; {lock}")  # in a deadlock the server's query ends, not ours
    n_finished = search.n_finished_in(12)
    assert client.wait() == 0
    search.check_end(within_s=40)

    def is_completed() -> bool:
        return [run["state_name"] for run in server.flow_runs("locked")] == ["Completed"]

    assert n_finished >= search.n_least_in(12)
    until(is_completed, 20, "the flow run is Completed")


def test_a_server_that_is_down_delays_no_trial(server: Server, command: Command) -> None:
    """A server that takes no connection for 20 s, past the tries of Prefect's client, costs no trial.

    The client tries twice, in some 2 s. Artifacts of trials that finished meanwhile are sent afterwards.
    """
    with TcpProxy(server.port) as proxy:
        search = SteadySearch(command, "down", n_trials=140, port=proxy.port, PREFECT_CLIENT_MAX_RETRIES="1")
        command.wait_for_trials("down", 2)
        proxy.go_down()
        down_s = time.time()
        n_finished = search.n_finished_in(20)
        up_s = time.time()
        proxy.come_back()
        search.check_end(within_s=45)

    assert n_finished >= search.n_least_in(20)
    (flow_run,) = server.flow_runs("down")
    artifacts = {artifact["key"] for artifact in server.artifacts(flow_run["id"])}
    missed = [trial for trial in command.trials("down") if down_s < (trial.finished or 0) < up_s]

    assert flow_run["state_name"] == "Completed"
    assert any(f"checkpoint-{trial.number:04d}" in artifacts for trial in missed)


def test_a_server_that_stays_down_ends_no_search(server: Server, command: Command) -> None:
    """The command ends within its bound of 10 s and says that the server did not accept everything."""
    with TcpProxy(server.port) as proxy:
        search = SteadySearch(command, "gone", n_trials=40, port=proxy.port)
        command.wait_for_trials("gone", 2)
        proxy.go_down()
        error = search.check_end(within_s=40)

    assert "Prefect's server did not accept everything" in error
