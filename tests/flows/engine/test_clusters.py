"""Clusters that a search starts: their options, how many workers, what each may run, and the GPUs that it sees."""

from __future__ import annotations

import inspect
import pydoc
import re
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from distributed import LocalCluster, Status

from flows.cli.command import Invocation, run_command
from flows.cli.options import CONF
from flows.cli.settings.clusters import DaskCluster, read_dask
from flows.cli.settings.machine import Machine
from flows.engine.clusters import open_dask_pool, open_ray_pool
from nas import Metric, Proposal
from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from nas.core.trial import Trial
from nas.executors.pool import WorkerPool
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec
from nas.views.progress import Progress
from tests.support.commands import until
from tests.support.problems import SharedGpusProblem

JOBS = {
    "pbs": ["#PBS -q gpu", "#PBS -l select=1:ncpus=4:mem=8GB", "#PBS -l walltime=04:00:00"],
    "slurm": ["#SBATCH -p gpu", "#SBATCH --cpus-per-task=4", "#SBATCH -t 04:00:00", "#SBATCH --no-requeue"],
}
"""Lines of the jobs of batch systems."""


def composed(page: Path) -> DaskCluster:
    """Returns the cluster of the command in a yaml's first line."""
    found: list[DaskCluster] = []

    def body(invocation: Invocation) -> int:
        found.append(read_dask(invocation.values))
        return 0

    command = re.search(r"flows\.search (.*?)(: |$)", page.read_text().splitlines()[0])
    assert command is not None
    assert run_command("search", body, ["problem=digits", *shlex.split(command[1])]) == 0
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(page.stem for page in (CONF / "runner" / "cluster").glob("*.yaml")))
def test_every_cluster_takes_its_options(name: str) -> None:
    """The class of each cluster's yaml has its arguments, and a batch system's job asks for what they say."""
    cluster = composed(CONF / "runner" / "cluster" / f"{name}.yaml")
    package = cluster.target.partition(".")[0]
    pytest.importorskip(package, reason=f"{package} is not installed")
    target: Any = pydoc.locate(cluster.target)
    inspect.signature(target).bind(**cluster.arguments)

    if name in JOBS:
        with target(**cluster.arguments) as jobs:
            script = jobs.job_script()
        assert set(JOBS[name]) <= set(script.splitlines())
        assert " --nthreads 1 " in script


def test_each_search_has_its_own_pods() -> None:
    """The operator's class puts a new UUID into each name, and ends a cluster whose driver was killed."""
    arguments = composed(CONF / "runner" / "cluster" / "kubernetes.yaml").arguments

    assert arguments["name"] == "heirloom-{uuid}"
    assert arguments["idle_timeout"] == 3600


@pytest.mark.slow
def test_workers_of_several_threads_are_as_many_as_slots_need(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two slots are one worker of two threads, and the terminal says that it has room for two trials."""
    arguments = {"_target_": "distributed.LocalCluster", "threads_per_worker": 2, "dashboard_address": "127.0.0.1:0"}
    dask = read_dask({"runner": {"cluster": arguments}})
    machine = Machine(runner="dask", slots=2, n_threads=1, device="cpu", gpus=(), trial_timeout_s=None, dask=dask)
    runtime = RuntimeSpec(problem=Spec("no.Problem"), url=str(tmp_path / "search"), options={})
    said: list[str] = []
    with Progress((Metric("score"),), {"search": 2}, []) as progress:
        pool = open_dask_pool(machine, runtime, progress)
        try:
            until(lambda: said.append(capfd.readouterr().err) or "1 worker with room" in "".join(said), 120)
        finally:
            pool.close()

    assert "1 worker with room for 2 trials for 2 slots\n" in "".join(said)


class FailingCluster(LocalCluster):
    """A cluster without workers.

    Args:
        fails: ``close`` or ``adapt``, which raises, or ``grow``: it starts no more workers, as ``SSHCluster``.
    """

    opened: ClassVar[list[FailingCluster]] = []

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        super().__init__(n_workers=0, processes=False, dashboard_address="127.0.0.1:0")
        self.opened.append(self)
        if fails == "grow":
            self.new_spec = None

    def close(self, timeout: float | None = None) -> None:
        super().close(timeout)
        if self.fails == "close":
            raise RuntimeError("no answer")

    def adapt(self, **limits: int) -> None:
        if self.fails == "adapt":
            raise ValueError("the queue takes fewer")
        super().adapt(**limits)


def open_failing(tmp_path: Path, adapt: Mapping[str, int] | None = None, **arguments: str) -> WorkerPool:
    """Returns the pool of a ``FailingCluster``."""
    cluster = {"_target_": f"{__name__}.FailingCluster", **arguments}
    machine = Machine(
        runner="dask", slots=1, n_threads=1, device="cpu", gpus=(), trial_timeout_s=None,
        dask=read_dask({"runner": {"cluster": cluster, "adapt": adapt}}),
    )  # fmt: skip
    return open_pool(machine, RuntimeSpec(problem=Spec("no.Problem"), url=str(tmp_path), options={}))


def test_a_cluster_that_does_not_close_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The session's outcome follows a warning, in the place of a traceback."""
    pool = open_failing(tmp_path, {"maximum": 1}, fails="close")
    pool.close()

    assert "the Dask cluster was not closed: RuntimeError: no answer" in caplog.messages
    assert FailingCluster.opened.pop().status == Status.closed


def test_a_cluster_that_does_not_adapt_is_closed(tmp_path: Path) -> None:
    """Its error is one line, as is one of the cluster's start, and no cluster stays."""
    with pytest.raises(ConfigurationError, match="FailingCluster: can't start: ValueError: the queue takes fewer"):
        open_failing(tmp_path, {"maximum": 9}, fails="adapt")

    assert FailingCluster.opened.pop().status == Status.closed


def test_a_cluster_that_starts_no_more_workers_is_not_adapted(tmp_path: Path) -> None:
    """Dask would end its workers one by one, and replace none."""
    with pytest.raises(ConfigurationError, match=r"runner.adapt={'maximum': 2}: must be null with .* Leave it out"):
        open_failing(tmp_path, {"maximum": 2}, fails="grow")
    open_failing(tmp_path, fails="grow").close()

    assert [FailingCluster.opened.pop().status for _ in range(2)] == [Status.closed] * 2


def open_pool(machine: Machine, runtime: RuntimeSpec) -> WorkerPool:
    """Returns the pool of ``runner=dask`` or ``runner=ray``."""
    open_it = open_ray_pool if machine.runner == "ray" else open_dask_pool
    return open_it(machine, runtime, Progress((Metric("score"),), {"search": machine.slots}, []))


def train_at_once(pool: WorkerPool, records: Records, n_trials: int) -> list[Mapping[str, float]]:
    """Returns the metrics of trials of which each has a slot of its own."""
    trials = []
    for slot in range(n_trials):
        trials.append(Trial(number=slot, index=slot, proposal=Proposal(point={"x": 1}), slot=slot, attempt=1))
        records.propose(trials[-1])
    with ThreadPoolExecutor(n_trials) as threads:
        ended = list(threads.map(lambda trial: pool.run(Assignment(trial), lambda event: None), trials))
    return [trial.metrics for trial in ended if trial is not None]


def digits(score: float) -> str:
    """Returns the GPUs of ``GpusProblem``'s score in order; Ray has another."""
    return "".join(sorted(str(int(score))))


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["dask", "ray"])
@pytest.mark.parametrize(
    ("gpus_per_trial", "gpus", "seen"), [(0.5, (0, 1), ["4", "4", "7"]), (2, (0, 1, 2, 3), ["47", "89"])]
)
def test_workers_see_their_gpus(
    runner: str,
    gpus_per_trial: float,
    gpus: tuple[int, ...],
    seen: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with processes, two trials share a GPU, or each has two, of those that the driver sees.

    A cluster of RAY_ADDRESS is not used unasked.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,8,9")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (tmp_path / "begun").mkdir()
    slots, url = len(seen), str(tmp_path / "search")
    problem = Spec.of(SharedGpusProblem, folder=str(tmp_path / "begun"), n_trials=slots)
    local = {"_target_": "distributed.LocalCluster", "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    machine = Machine(
        runner=runner,
        slots=slots,
        n_threads=1,
        device="cuda",
        gpus=gpus,
        gpus_per_trial=gpus_per_trial,
        trial_timeout_s=90,
        dask=read_dask({"runner": {"cluster": local}}) if runner == "dask" else None,
    )
    runtime = RuntimeSpec(problem=problem, url=url, options={}, session=1, device="cuda", gpus_per_trial=gpus_per_trial)
    pool = open_pool(machine, runtime)
    try:
        metrics = train_at_once(pool, Records(open_root(url)), slots)
    finally:
        pool.close()

    assert sorted(digits(found["score"]) for found in metrics) == seen
    assert {found["n_gpus"] for found in metrics} == {gpus_per_trial}
