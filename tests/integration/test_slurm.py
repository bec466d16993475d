"""Searches with ``runner=dask`` on a real Slurm of two nodes (tests/support/slurm/with-slurm)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import ROOT, Command, records, run, trials, until

pytestmark = pytest.mark.slow

SEARCH = (
    *("+tuner=evolution", "tuner.population_size=2", "tuner.sample_size=2", "device=cpu", "threads=1", "slots=2"),
    *("problem._target_=long_trials.LongTrialProblem", "budget.trials=3", "finalists=1", "resume_every_s=0"),
    *("name=mine", "max_attempts=1", "runner=dask", "runner/cluster=slurm", "runner.cluster.job_cpu=1"),
    *("runner.cluster.memory=1GB", "runner.cluster.walltime=00:01:00", "runner.cluster.local_directory=scratch"),
    *("runner.cluster.log_directory=jobs", "runner.cluster.scheduler_options.host=127.0.0.1"),
)
"""With ``max_attempts=1`` a search fails if a lost job counts as an attempt."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Yields the environment in which commands find a Slurm of two nodes with a processor each."""
    wait = 'echo "$SLURM_CONF"; echo "$SLURM_LAB"; read || true'
    command = [str(ROOT / "tests/support/slurm/with-slurm"), "--timeout", "600", "--", "bash", "-c", wait]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        if not all(lines):
            pytest.skip(f"Slurm can't be started here (status {process.wait()})")
        yield {"SLURM_CONF": lines[0], "SLURM_LAB": lines[1]}
        process.stdin.close()


def ask(slurm: dict[str, str], *command: str) -> str:
    """Returns what a command of Slurm prints."""
    return subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True, check=True).stdout


def state(slurm: dict[str, str], job: str) -> str:
    """Returns the state of a job that Slurm remembers."""
    return ask(slurm, "scontrol", "show", "job", "--oneliner", job).partition("JobState=")[2].split()[0]


def job_and_node(search: Path, start: str) -> tuple[str, str]:
    """Returns job and node of a running attempt, from the environment of its process."""
    record = records(search).read(f"trials/{start}.json")
    assert record is not None
    entries = Path(f"/proc/{record['pid']}/environ").read_bytes().split(b"\0")
    variables = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
    return variables["SLURM_JOB_ID"], variables["SLURMD_NODENAME"]


def has_started(search: Path, start: str) -> bool:
    """Returns whether an attempt has started."""
    return (search / "trials" / f"{start}.json").exists()


@pytest.mark.timeout(400)
def test_lost_jobs_cost_nothing(here: Path, api_url: str, slurm: dict[str, str]) -> None:
    """Jobs are cancelled, preempted and killed at their walltime: their trials resume on new jobs."""
    search = here / "heirloom" / "mine"
    for number in (0, 1):
        (here / f"hold-{number}").touch()
    with Command(here, *SEARCH, forked=True, PREFECT_API_URL=api_url, **slurm) as command:
        for number in (0, 1):
            saved = search / "resume" / f"{number:06d}"
            until(lambda: len(list(saved.glob("*.json"))) > 0, what="a resume point")  # noqa: B023
        cancelled, _ = job_and_node(search, "000000.start-1")
        timed_out, _ = job_and_node(search, "000001.start-1")
        ask(slurm, "scancel", cancelled)
        until(lambda: has_started(search, "000000.start-2"), what="a new job after scancel")
        preempted, node = job_and_node(search, "000000.start-2")
        ask(slurm, "sbatch", "-p", "urgent", "-w", node, "-o", "/dev/null", "--wrap", "sleep 3")
        until(lambda: has_started(search, "000000.start-3"), what="a new job after the urgent one")
        until(lambda: has_started(search, "000001.start-2"), what="a new job after the walltime")
        states = [state(slurm, job) for job in (cancelled, preempted, timed_out)]
        for job in ask(slurm, "squeue", "-h", "-t", "running", "-o", "%i").split():  # no other job is lost from here on
            ask(slurm, "scontrol", "update", f"jobid={job}", "timelimit=10:00")
        for number in (0, 1):
            (here / f"hold-{number}").unlink()
        done = command.wait()
        until(lambda: not ask(slurm, "squeue", "-h", "-o", "%i"), 20, what="the end of all jobs")
        until(lambda: not command.leftovers(), 40, what="the end of all processes")

    found = trials(search)
    assert done.status == 0, done.err
    assert states == ["CANCELLED", "PREEMPTED", "TIMEOUT"]
    assert [t.state for t in found] == ["COMPLETE"] * 3
    assert found[0].attempt >= 3
    assert found[1].attempt >= 2
    assert found[2].attempt == 1
    assert all("resumes after step" in records(search).log(number) for number in (0, 1))
    assert (found[2].inherited or 0) > 0
    assert "left: its worker got SIGTERM" in done.err


def test_job_without_python_is_told(here: Path, api_url: str, slurm: dict[str, str]) -> None:
    """Jobs that end before their workers join: each with Slurm's reason and its log; the third ends the search."""
    done = run(here, *SEARCH, "runner.cluster.python=/no/python", PREFECT_API_URL=api_url, **slurm)

    assert done.status == 1
    assert "3 jobs in a row ended before their workers joined" in done.err
    assert done.err.count("ended before its worker joined: FAILED Reason=NonZeroExitCode ExitCode=127:0, log ") == 3
    assert "/no/python: No such file or directory" in done.err


def test_refused_job_is_told(here: Path, api_url: str, slurm: dict[str, str]) -> None:
    """Memory that no node has ends the search with what sbatch says."""
    done = run(here, *SEARCH, "runner.cluster.memory=100GB", PREFECT_API_URL=api_url, **slurm)

    assert done.status == 2
    assert "runner.cluster: sbatch refused a job: Memory specification can not be satisfied" in done.err
