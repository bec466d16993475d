"""The watch over a cluster's batch jobs; tests/integration/test_slurm.py has a real queue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from nas.core.errors import HeirloomError
from nas.executors import batch_jobs
from nas.executors.batch_jobs import BatchJobs
from tests.support.commands import until


class FirstWorker(dict[str, str]):
    """A worker during whose look-up another one joins."""

    def __init__(self, workers: dict[str, Any]) -> None:
        super().__init__(name="0")
        self.workers = workers

    def __getitem__(self, name: str) -> str:
        self.workers["tcp://second"] = {"name": "1"}
        return super().__getitem__(name)


@pytest.fixture(autouse=True)
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_jobs, "FIRST_POLL_S", 0.01)
    monkeypatch.setattr(batch_jobs, "POLL_S", 0.01)


def cluster_of(workers: dict[str, Any], submit_command: str, **jobs: str) -> Any:
    """Returns what is watched of a cluster whose jobs have these ids by name."""
    return SimpleNamespace(
        job_cls=type("Job", (), {"submit_command": submit_command}),
        new_spec={},
        scheduler_info={"workers": workers},
        workers={name.lstrip("_"): SimpleNamespace(job_id=job_id) for name, job_id in jobs.items()},
        status=Status.running,
    )


def test_workers_that_join_during_a_check() -> None:
    """The watch goes on; without it, nobody tells of refused and ended jobs or replaces them."""
    workers: dict[str, Any] = {}
    workers["tcp://first"] = FirstWorker(workers)
    cluster = cluster_of(workers, "bsub", _0="7", _1="8")
    watched = BatchJobs(cluster)
    watched.watch(note=lambda line: None, fail=lambda error: None)
    until(lambda: watched._joined == {"0", "1"}, 20, what="a second check")
    cluster.status = Status.closed


def test_slurm_may_print_any_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job's name in another encoding hides no reason."""
    job = r"JobName=caf\351 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 StdErr=/none"
    for command, line in (("squeue", "7|FAILED|NonZeroExitCode"), ("scontrol", job)):
        (tmp_path / command).write_text(f"#!/bin/sh\nprintf '{line}\\n'\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(batch_jobs, "MAX_ENDED", 1)
    errors: list[HeirloomError] = []
    cluster = cluster_of({}, "sbatch", _0="7")
    BatchJobs(cluster).watch(note=lambda line: None, fail=errors.append)
    until(lambda: errors, 20, what="the reason")
    cluster.status = Status.closed

    assert "joined: FAILED Reason=NonZeroExitCode ExitCode=1:0, log /none" in str(errors[0])
