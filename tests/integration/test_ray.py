"""Searches with ``runner=ray`` as commands: jobs, losses, an existing cluster, credentials, and what is left."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nas.executors.engine_worker import OPTIONS_VARIABLE
from nas.storage.records import Records
from tests.support.commands import Command, records, resume_line, run, trials, until
from tests.support.processes import memory_of
from tests.support.ray_nodes import RayNodes
from tests.support.servers import S3

pytestmark = pytest.mark.slow

EVOLVED = ("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2")
RAY = ("runner=ray", "threads=1", "device=cpu", "finalists=1", "name=mine")
PHASES = ("problem._target_=multi_phase_problem.MultiPhaseProblem", *RAY)
PLAIN = ("+tuner=random", "problem._target_=timed_problem.TimedProblem", *RAY)
HELD = ("+tuner=random", "problem._target_=held_problem.HeldProblem", *RAY)


def starts(search: Path) -> list[str]:
    return sorted(path.name for path in (search / "trials").glob("*.start-*.json"))


def actors(command: Command) -> list[int]:
    """Returns the actors among a command's processes."""
    found = []
    for pid in command.leftovers():
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists() and b"ray::HeirloomWorker" in path.read_bytes():
            found.append(pid)
    return found


def test_a_search_survives_the_loss_of_an_actor(here: Path, api_url: str) -> None:
    """Jobs, stops, inheritance, a final, its test and export; a killed actor costs an attempt, noticed in seconds."""
    search = here / "heirloom" / "mine"
    plan = (*EVOLVED, *PHASES, "stopper=median", "slots=2", "budget.trials=8", "problem.seconds=2")
    with Command(here, *plan, forked=True, PREFECT_API_URL=api_url) as command:
        until(lambda: len(starts(search)) >= 3 and "2 workers for 2 slots" in command.err, what="the third trial")
        os.kill(actors(command)[0], signal.SIGKILL)
        until(lambda: "was lost" in command.err, 20, what="the notice of the loss")
        done = command.wait()
        until(lambda: not command.leftovers(), 20, what="the end of all processes")

    found = trials(search)
    assert done.status == 0, done.err
    assert {t.state for t in found} <= {"COMPLETE", "STOPPED"}
    assert sorted(t.attempt for t in found)[:-1] == [1] * 8
    assert {t.job for t in found if t.stage == "search"} == {0, 1}
    assert any((t.inherited or 0) > 0 for t in found)
    assert "test: score" in done.out
    assert (search / "best-0001.json").exists()
    assert re.search(r"(worker \S+ \(pid \d+\)|trial \d+) was lost", done.err)
    assert "(raylet)" not in done.out + done.err


def test_neither_ctrl_c_nor_a_killed_driver_leaves_a_process(here: Path, api_url: str) -> None:
    """Finished trials are kept and the line resumes; what a killed driver leaves, Ray's helpers too, ends in 10 s."""
    search = here / "heirloom" / "mine"
    plan = (*HELD, f"problem.hold={here}", "slots=1", "budget.trials=9")
    (here / "1").touch()  # the second trial goes on until it is ended
    with Command(here, *plan, PREFECT_API_URL=api_url) as command:
        until((here / "held-1").exists, what="the second trial")
        command.send(signal.SIGINT)
        interrupted = command.wait(60)
        until(lambda: not command.leftovers(), 20, what="the end of all processes")
    log = records(search).log(1)
    with Command(here, line=resume_line(interrupted.err), PREFECT_API_URL=api_url) as command:
        until(lambda: "000001.start-2.json" in starts(search), what="the second trial's second attempt")
        command.kill(to_group=False)
        until(lambda: not command.leftovers(), 10, what="the end of all processes")

    found = trials(search)
    assert interrupted.status == 130
    assert "1 finished trial kept" in interrupted.err
    assert "told by TrialInterrupted" in log
    assert [(t.attempt, t.state) for t in found if t.is_finished] == [(1, "COMPLETE")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Yields a cluster without workers."""
    with RayNodes() as nodes:
        yield nodes


def test_two_jobs_share_the_one_worker_of_a_cluster(here: Path, api_url: str, nodes: RayNodes) -> None:
    """With fewer workers than slots, a job that waits for its next trial makes room for trials without a worker."""
    node = nodes.join()
    try:
        joined = {**nodes.environment, "PREFECT_API_URL": api_url}
        plan = (*EVOLVED, *PHASES, f"runner.address={nodes.address}", "slots=2", "budget.trials=6")
        done = run(here, *plan, **joined)
        absent = run(here, *PLAIN, "runner.address=127.0.0.1:9", "name=absent", PREFECT_API_URL=api_url)
    finally:
        node.kill()

    found = trials(here / "heirloom" / "mine")
    assert done.status == 0, done.err
    assert {t.state for t in found} == {"COMPLETE"}
    assert {t.job for t in found if t.stage == "search"} == {0, 1}
    assert "1 worker for 2 slots" in done.err
    assert absent.status == 1
    assert "runner.address=127.0.0.1:9: no Ray cluster answers" in absent.complaint
    assert not (here / "heirloom" / "absent").exists()


def test_credentials_do_not_travel(here: Path, api_url: str, nodes: RayNodes, s3: S3) -> None:
    """Workers open the root by their own environment; no process of the cluster sees the driver's options.

    Ray's own memory holds what the actors' constructor gets, such as the driver's folder.
    """
    url, secret = f"s3://bucket/{here.parent.name}", "of-the-driver-alone"
    options = [f"storage.options.{key}={value}" for key, value in {**s3.options(), "secret": secret}.items()]
    plan = (*PLAIN, f"runner.address={nodes.address}", "storage=s3", f"storage.root={url}", *options, "slots=1")
    joined = {**nodes.environment, "PREFECT_API_URL": api_url}
    node = nodes.join(**{OPTIONS_VARIABLE: json.dumps(s3.options())})
    found = Records(s3.root(url).subfolder("mine"))
    try:
        with Command(here, *plan, "budget.trials=1", "problem.seconds=5", forked=True, **joined) as driver:
            until(lambda: "000000.start-1.json" in found.files.names("trials"), what="a trial")
            seen = {name: texts_in(memory_of(pid), str(here), secret) for name, pid in engine_processes(nodes)}
            done = driver.wait()
    finally:
        node.kill()

    assert done.status == 0, done.err
    assert [t.state for t in found.load()[0]] == ["COMPLETE"] * 2
    assert {name.partition(" ")[0] for name in seen} == {"gcs_server", "raylet", "ray::HeirloomWo"}
    assert any(str(here) in texts for name, texts in seen.items() if "gcs_server" in name)
    assert [name for name, texts in seen.items() if secret in texts] == []


def engine_processes(nodes: RayNodes) -> list[tuple[str, int]]:
    """Returns the names and numbers of a cluster's schedulers and actors. Actors, which end soon, come first."""
    found = []
    for pid in nodes.processes():
        with suppress(FileNotFoundError):  # it has ended
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name in ("gcs_server", "raylet", "ray::HeirloomWo"):
                found.append((f"{name} {pid}", pid))
    return sorted(found, key=lambda process: not process[0].startswith("ray::"))


def texts_in(memory: bytes, *texts: str) -> set[str]:
    return {text for text in texts if text.encode() in memory}
