"""Whole searches in S3 and over sftp: warm workers, resuming, reports, lost connections, secrets."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from nas.storage.blobs import BlobStore
from nas.storage.records import Records
from tests.support.commands import Command, Done, run, until
from tests.support.proxies import TcpProxy
from tests.support.servers import S3, SECRET, sftp_root

pytestmark = pytest.mark.slow

SEARCH = (
    "+tuner=evolution",
    "tuner.population_size=4",
    "tuner.sample_size=2",
    "problem._target_=timed_problem.TimedProblem",
    "problem.seconds=0.2",
    "problem.weights=100000",
    "runner=processes",
    "slots=2",
    "threads=1",
    "device=cpu",
    "finalists=1",
    "name=far",
)


@dataclass(frozen=True, slots=True)
class Remote:
    """A root on a server, as a user of the commands names it."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: BlobStore
    proxy: TcpProxy

    def run(self, here: Path, *overrides: str, module: str = "flows.search") -> Done:
        """Runs a command on this root."""
        return run(here, *overrides, *self.arguments, module=module, **self.environment)


@pytest.fixture(params=["s3", "sftp"])
def remote(request: pytest.FixtureRequest, s3: S3, sftp_port: int, tmp_path: Path, api_url: str) -> Iterator[Remote]:
    """Yields each kind of root, behind a proxy that can cut connections."""
    prefect = {"PREFECT_API_URL": api_url}
    if request.param == "s3":
        with TcpProxy(int(s3.endpoint.rpartition(":")[2])) as proxy:
            url = f"s3://bucket/{tmp_path.name}"
            environment = prefect | s3.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
            yield Remote(("storage=s3", f"storage.root={url}"), environment, s3.root(url), proxy)
    else:
        folder = tmp_path / "server"
        with TcpProxy(sftp_port) as proxy:
            url = f"sftp://me@127.0.0.1:{proxy.port}{folder}"
            arguments = ("storage=sftp", f"storage.root={url}", "storage.options.password=${oc.env:FAR_PASSWORD}")
            yield Remote(arguments, prefect | {"FAR_PASSWORD": SECRET}, sftp_root(sftp_port, folder), proxy)


def test_search_and_report(remote: Remote, here: Path) -> None:
    """A search runs, is extended and reported; children inherit, the winner is exported, no secret is written."""
    first = remote.run(here, *SEARCH, "budget.trials=6")
    assert first.status == 0, first.err
    more = remote.run(here, *SEARCH, "budget.trials=8")
    assert more.status == 0, more.err
    table = remote.run(here, "name=far", "format=json", module="flows.report")
    page = remote.run(here, "name=far", "format=html", "out=far.html", module="flows.report")
    whole = remote.run(here, "name=far", module="flows.verify")
    root = remote.run(here, module="flows.verify")
    searches = remote.run(here, module="flows.report")
    weights_deleted = remote.run(here, "name=far", "keep=best:1", module="flows.gc")

    rows = json.loads(table.out)
    assert [row["state"] for row in rows] == ["COMPLETE"] * len(rows)
    assert sum(row["stage"] == "search" for row in rows) == 8
    assert any(row["donor"] is not None and row["inherited"] > 0 for row in rows)
    assert (whole.status, root.status, weights_deleted.status) == (0, 0, 0)
    assert "far: no damage" in whole.out
    assert "9 checks: 9 passed" in root.out
    assert (searches.status, searches.err) == (0, "")
    assert remote.files.names("_check") == []
    assert (here / "far.html").stat().st_size > 10_000
    assert "model.safetensors" in remote.files.names(f"far/{_export(remote.files)}")
    said = (
        "".join(done.out + done.err for done in (first, more, table, page, whole, root, weights_deleted, searches))
        + (here / "far.html").read_text()
    )
    kept = b"".join(content for folder in _folders(remote.files) for content in folder.values())
    assert SECRET not in said
    assert SECRET.encode() not in kept
    assert "Traceback" not in said


@pytest.mark.parametrize("root", ["s3://bucket/far", "sftp://me@127.0.0.1:9/far"])
def test_unreachable_server_is_one_line(here: Path, root: str) -> None:
    """If no server answers, every command says so in one line within seconds."""
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    commands = [("search", "+tuner=random"), ("verify",), *((c, "name=a") for c in ("final", "report", "gc", "verify"))]

    def ask(command: tuple[str, ...]) -> Done:
        return run(here, *command[1:], f"storage.root={root}", module=f"flows.{command[0]}", **nobody)

    with ThreadPoolExecutor(3) as pool:  # each waits for the server most of the time
        all_done = list(pool.map(ask, commands))

    for done in all_done:
        assert done.status == 1
        assert done.complaint.startswith(f"storage root {root} can't be used: ")
        assert done.seconds < 55  # 5 s, and what a loaded machine takes to start; a search in progress waits for 60 s


def test_search_outlives_lost_connections(remote: Remote, here: Path) -> None:
    """Repeatedly cut connections cost no trial and no attempt."""
    with Command(here, *SEARCH, "budget.trials=16", *remote.arguments, forked=True, **remote.environment) as command:
        until(lambda: remote.files.names("far/trials"), what="the first trial")
        stop = threading.Event()

        def cut() -> None:
            n_seen = 0
            while not stop.wait(2.0):
                if (n_files := len(remote.files.names("far/trials"))) > n_seen:  # else slow machines make no progress
                    n_seen = n_files
                    remote.proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            done = command.wait(240)
        finally:
            stop.set()
            cutter.join()

    trials, starts = Records(remote.files.subfolder("far")).load()
    assert done.status == 0, done.err
    assert len(trials) == 17
    assert {trial.attempt for trial in trials} == {1}
    assert starts == {}
    assert remote.proxy.n_connections > 3


def _export(files: BlobStore) -> str:
    newest = max(name for name in files.names("far") if name.startswith("best-"))
    found = json.loads(files.read_if_present(f"far/{newest}") or b"")
    return os.path.dirname(found["files"][0]["path"])


def _folders(files: BlobStore) -> Iterator[dict[str, bytes]]:
    for folder in ("far", *(f"far/{name}" for name in ("sessions", "trials", "manifests", "logs", "tests"))):
        yield files.read_folder(folder, ".log" if folder.endswith("logs") else ".json")
