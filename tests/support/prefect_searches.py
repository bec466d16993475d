"""A Prefect server as users run it, and searches that are connected to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from nas.core.trial import Trial
from tests.support import commands
from tests.support.commands import environment, free_port

OUTCOMES = (
    "problem._target_=outcome_problem.OutcomeProblem",
    "stopper._target_=outcome_problem.OutcomeStopper",
    "max_failures=100",
)
CHAINS = (*OUTCOMES, "tuner._target_=outcome_problem.ChainTuner")
HELD = ("+tuner=random", "problem._target_=held_problem.HeldProblem", "policy=search_only")


class Server:
    """``prefect server start`` as users run it: own home, own port, with the UI.

    Args:
        home: Folder of its files.
        database: URL of its database; default: SQLite in ``home``.
    """

    def __init__(self, home: Path, database: str | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.home = home
        self._database = {} if database is None else {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database}
        self._client = httpx.Client(base_url=self.url, timeout=30)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        settings = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_SERVER_UI_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            **self._database,
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.home.mkdir(exist_ok=True)
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment(**settings), stdout=log, stderr=log, cwd=self.home, start_new_session=True
            )
        until(self._is_healthy, 120, "the server is healthy")

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._client.close()

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._client.post(path, json=dict(body)).raise_for_status().json()

    def flow_runs(self, search: str) -> list[dict[str, Any]]:
        """Returns the flow runs of a search, oldest first."""
        asked = {"flow_runs": {"name": {"any_": [search]}}, "sort": "START_TIME_ASC"}
        return list(self.post("/flow_runs/filter", asked))

    def task_runs(self, flow_run: str, least: int = 1) -> list[dict[str, Any]]:
        """Returns a flow run's task runs, once the server has processed all events.

        A busy server processes them seconds later, so it waits for the least number of task runs.
        """
        asked = {"flow_runs": {"id": {"any_": [flow_run]}}, "limit": 200}
        ended = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")
        runs: list[dict[str, Any]] = []

        def settled() -> bool:
            before, runs[:] = len(runs), self.post("/task_runs/filter", asked)
            time.sleep(0.5)
            return least <= before == len(runs) and all(run["state_type"] in ended for run in runs)

        until(settled, 60, "all task runs have ended")
        return runs

    def shows_running(self, search: str) -> bool:
        """Returns whether the server shows a running task run of the search."""
        flow_runs = {"id": {"any_": [run["id"] for run in self.flow_runs(search)]}}
        running = {"state": {"type": {"any_": ["RUNNING"]}}}
        return bool(self.post("/task_runs/filter", {"flow_runs": flow_runs, "task_runs": running}))

    def artifacts(self, flow_run: str, key: str | None = None) -> list[dict[str, Any]]:
        asked = {"flow_runs": {"id": {"any_": [flow_run]}}, "limit": 200}
        found = self.post("/artifacts/filter", asked)
        return [artifact for artifact in found if artifact["key"] and key in (None, artifact["key"])]

    def logs(self, **filters: list[str]) -> list[str]:
        """Returns the messages that the server's log pages show, for ``task_run_id`` or ``flow_run_id``."""
        asked = {"logs": {name: {"any_": ids} for name, ids in filters.items()}, "limit": 200}
        return [line["message"] for line in self.post("/logs/filter", asked)]

    def edges(self, flow_run: str) -> set[tuple[str, str]]:
        """Returns (parent, child) by name, from the data of the UI's run graph."""
        nodes = dict(self.get(f"/flow_runs/{flow_run}/graph-v2")["nodes"])
        assert not [node["label"] for node in nodes.values() if node["encapsulating"]]
        return {(nodes[p["id"]]["label"], node["label"]) for node in nodes.values() for p in node["parents"]}

    def _is_healthy(self) -> bool:
        try:
            return self._client.get("/health").is_success
        except httpx.HTTPError:
            return False


def until(holds: Callable[[], bool], bound_s: float, what: str) -> float:
    """Returns the seconds until the condition holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + bound_s, f"not within {bound_s:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


@dataclass(frozen=True)
class Command:
    """``python -m flows.search`` in a folder of its own, connected to a server."""

    server: Server
    folder: Path

    def start(self, *overrides: str, **variables: str) -> commands.Command:
        own = {"PREFECT_API_URL": self.server.url, "HEIRLOOM_CACHE": str(self.folder / "cache")}
        return commands.Command(self.folder, *overrides, forked=True, **(own | variables))

    def run(self, *overrides: str, **variables: str) -> str:
        """Returns the output of a search that must end with status 0."""
        done = self.start(*overrides, **variables).wait(560)
        assert done.status == 0, f"status {done.status}\n{done.err}{done.out}"
        assert "Warning" not in done.err
        return done.out

    def trials(self, search: str) -> list[Trial]:
        return commands.trials(self.folder / "heirloom" / search)

    def n_finished(self, search: str) -> int:
        return len(list((self.folder / "heirloom" / search / "trials").glob("*.result.json")))

    def wait_for_trials(self, search: str, n: int, bound_s: float = 100) -> None:
        until(lambda: self.n_finished(search) >= n, bound_s, f"{n} trials have finished")


class SteadySearch:
    """A search of 0.4 s a trial in two slots, for tests that disturb its server.

    Args:
        command: Starts it.
        name: Name of the search.
        n_trials: Number of trials.
        port: Port of the API; default: the server's.
        variables: Variables of its environment.
    """

    def __init__(
        self, command: Command, name: str, n_trials: int, *, port: int | None = None, **variables: str
    ) -> None:
        self._name, self._n_trials, self._command = name, n_trials, command
        plan = ("tuner.outcomes=complete", "problem.seconds=0.4", "slots=2", "runner=threads")
        variables["PREFECT_API_URL"] = f"http://127.0.0.1:{port or command.server.port}/api"
        self._search = command.start(*CHAINS, *plan, f"budget.trials={n_trials}", f"name={name}", **variables)

    def n_finished_in(self, seconds: float) -> int:
        """Returns the number of trials that finish within some seconds."""
        before = self._command.n_finished(self._name)
        time.sleep(seconds)
        return self._command.n_finished(self._name) - before

    def n_least_in(self, seconds: float) -> float:
        """Returns a quarter of the trials that two slots finish without any overhead.

        A search whose trials wait for a server, even 2 s for each try to connect, finishes a sixth at most.
        """
        return 2 * seconds / 0.4 / 4

    def check_end(self, within_s: float) -> str:
        """Checks that no trial is lost or repeated and returns what the command printed on standard error."""
        self._command.wait_for_trials(self._name, self._n_trials, 300)
        seconds = until(lambda: self._search.process.poll() is not None, 60, "the command has ended")
        done = self._search.wait()
        trials = self._command.trials(self._name)
        assert done.status == 0, done.err
        assert f"{self._n_trials} trials ({self._n_trials} COMPLETE)" in done.out
        assert all(trial.is_finished and trial.attempt == 1 for trial in trials)
        assert seconds < within_s
        return done.err
