"""Searches with ``runner=dask`` as commands: a whole search, interruptions, kills of the driver and credentials."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas.executors.engine_worker import OPTIONS_VARIABLE
from nas.storage.records import Records
from tests.support.commands import Command, records, resume_line, run, trials, until
from tests.support.dask_cluster import DaskCluster
from tests.support.processes import memory_of
from tests.support.servers import S3, SECRET

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

EVOLVED = ("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2")
DASK = ("runner=dask", "threads=1", "finalists=1", "name=mine")
PHASES = ("problem._target_=multi_phase_problem.MultiPhaseProblem", *DASK)
TIMED = ("+tuner=random", "problem._target_=timed_problem.TimedProblem", *DASK)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Yields a cluster with a worker."""
    with DaskCluster(tmp_path_factory.mktemp("dask")) as found:
        found.join()
        yield found


def starts(search: Path) -> list[str]:
    return sorted(path.name for path in (search / "trials").glob("*.start-*.json"))


def test_a_search_on_a_local_cluster(here: Path, api_url: str) -> None:
    """Jobs, stops, inheritance, a final, its test and export run on Dask's workers; no process is left.

    Ctrl-C in the middle keeps finished trials, and the line that it prints goes on: on workers that come as needed.
    """
    search = here / "heirloom" / "mine"
    plan = (*EVOLVED, *PHASES, "stopper=median", "slots=2", "budget.trials=8", "problem.seconds=2")
    with Command(here, *plan, PREFECT_API_URL=api_url) as command:
        until(lambda: len(starts(search)) >= 4 and "2 workers for 2 slots" in command.err, what="four trials")
        command.send(signal.SIGINT)
        first = command.wait(60)
        until(lambda: not command.leftovers(), 20, what="the end of all processes")
    n_kept = sum(trial.is_finished for trial in trials(search))
    adaptive = f"{resume_line(first.err)} runner.adapt.minimum=0 runner.adapt.maximum=2 runner.cluster.n_workers=0"
    with Command(here, line=adaptive, PREFECT_API_URL=api_url) as command:
        done = command.wait()
        until(lambda: not command.leftovers(), 20, what="the end of all processes")

    found = trials(search)
    assert first.status == 130, first.err
    assert 2 <= n_kept < 9
    assert f"interrupted (SIGINT); {n_kept} finished trials kept" in first.err
    assert done.status == 0, done.err
    assert {t.state for t in found} <= {"COMPLETE", "STOPPED"}
    assert len(found) == 9
    assert any((t.inherited or 0) > 0 for t in found)
    assert "test: score" in done.out
    assert (search / "best-0001.json").exists()
    assert sum(name.endswith(".start-1.json") for name in starts(search)) == 9
    assert re.search(r"^[12] workers? for 2 slots", done.err, re.MULTILINE)


def test_a_killed_driver_ends_its_trials(here: Path, api_url: str, cluster: DaskCluster) -> None:
    """After kill -9 of the driver nothing of its session is left on a cluster's worker within a minute."""
    search = here / "heirloom" / "mine"
    worker = cluster.workers[0]
    address = f"runner.cluster.address={cluster.address}"
    plan = (*TIMED, address, "slots=1", "budget.trials=2", f"storage.root={here / 'heirloom'}")
    held = ("problem.seconds=30", f"problem.marks={here}")
    with Command(here, *plan, *held, forked=True, PREFECT_API_URL=api_url) as driver:
        until((here / "0").exists, what="a trial")
        driver.kill()
        until(lambda: worker.leftovers() == [worker.process.pid], 60, what="the end of the trial")

    assert not trials(search)[0].is_finished
    assert "told by TrialInterrupted" in records(search).log(0)


def test_credentials_do_not_travel(here: Path, api_url: str, cluster: DaskCluster, s3: S3) -> None:
    """Workers open the root by their own environment; the scheduler never sees the driver's options."""
    url = f"s3://bucket/{here.parent.name}"
    options = [f"storage.options.{key}={value}" for key, value in s3.options().items()]
    address = f"runner.cluster.address={cluster.address}"
    plan = (*TIMED, address, "storage=s3", f"storage.root={url}", *options, "slots=1", "budget.trials=1")
    cluster.leave_alone()
    cluster.join(**{OPTIONS_VARIABLE: json.dumps(s3.options())})
    found = Records(s3.root(url).subfolder("mine"))
    with Command(here, *plan, "problem.seconds=3", forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: "000000.start-1.json" in found.files.names("trials"), what="a trial")
        memory = memory_of(cluster.scheduler.process.pid)
        done = driver.wait()

    assert done.status == 0, done.err
    assert [t.state for t in found.load()[0]] == ["COMPLETE"] * 2
    assert url.encode() in memory
    assert SECRET.encode() not in memory


def test_a_cluster_with_tls(here: Path, api_url: str, tmp_path: Path) -> None:
    """The guide's certificate and configuration encrypt a search; a driver without them is refused in one line."""
    guide = (ROOT / "docs" / "guides" / "clusters.md").read_text()
    [openssl] = re.findall(r"^openssl .+", guide, re.MULTILINE)
    [settings] = re.findall(r"```yaml\n(.+?)```", guide, re.DOTALL)
    subprocess.run(openssl, shell=True, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "dask.yaml").write_text(settings.replace("/etc/heirloom", str(tmp_path)))
    tls = {"DASK_CONFIG": str(tmp_path / "dask.yaml")}
    with DaskCluster(tmp_path, protocol="tls", **tls) as cluster:
        cluster.join()
        plan = (*TIMED, f"runner.cluster.address={cluster.address}", "slots=1", "budget.trials=1", "storage.root=.")
        done = run(here, *plan, PREFECT_API_URL=api_url, **tls)
        refused = run(here, *plan[:-1], "storage.root=other", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    assert [t.state for t in trials(here / "mine")] == ["COMPLETE"] * 2
    assert refused.status == 2
    assert not (here / "other").exists()
    assert f"runner.cluster.address={cluster.address}: must have certificates" in refused.complaint
