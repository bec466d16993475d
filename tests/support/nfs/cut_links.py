"""A search on two machines of a network, whose links are cut: run by tests/integration/test_two_machines.py.

Driver and workers have addresses and mounts of their own, in the guest of with-nfs or in namespaces of this machine.
``cut_links_dask.py`` and ``cut_links_ray.py`` are the scripts. They print what they found as one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess as Process
from pathlib import Path
from typing import Any

from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.executors.engine_worker import ROOT_VARIABLE, EngineSpec
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerPool
from nas.search.controller import ControllerSettings
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.lease import SearchLease
from nas.search.pipeline import SearchPipeline
from nas.search.session_code import session_code
from nas.storage.lazy_weights import StoredWeights
from nas.storage.maintenance.verification import verify_search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.search_records import code_id
from nas.training.messages import RuntimeSpec
from nas.tuners.evolution import EvolutionTuner
from tests.support.nfs.network import SHARE, Machine, command_line
from tests.support.nfs.watched_digits import HOLD_VARIABLE, WatchedDigits, digest

SCRATCH = Path(os.environ["TMPDIR"])
NAME = "digits"
CUT_S = 20.0
GIVE_UP_S = 90.0


class Cluster(ABC):
    """An engine with a head on the driver's machine and a worker on each other machine."""

    @abstractmethod
    def start_head(self, machine: Machine) -> None:
        """Starts what workers join."""

    @abstractmethod
    def start_worker(self, machine: Machine) -> None:
        """Starts a worker for one trial at a time, and waits for it. It has the share elsewhere than the driver."""

    @abstractmethod
    def join_driver(self, machine: Machine) -> None:
        """Does what the engine needs on a driver's machine that is not the head's."""

    @abstractmethod
    def kill_worker(self, machine: Machine) -> None:
        """Kills the worker's process and, if the engine starts no other, starts one."""

    @abstractmethod
    def pool(self, spec: EngineSpec) -> WorkerPool:
        """Returns a pool for two slots, in the driver's process."""

    @abstractmethod
    def name_of(self, machine: Machine) -> str:
        """Returns how lines name the machine's worker."""


class PrintedDisplay:
    """Prints lines for the script that started the driver."""

    def note(self, text: str) -> None:
        """Prints a line."""
        tell("note", text)

    def show_wait(self, what: str | None) -> None:
        """Prints what trials wait for."""
        tell("wait", what)


def drive(root: str, cluster: Cluster) -> None:
    """Runs the search with the workers of a cluster; prints each event as one line of JSON."""
    tuner = Spec.of(EvolutionTuner, population_size=2, sample_size=2)
    search = Search(problem=Spec.of(WatchedDigits), tuner=tuner, slots=2)
    prepared = search.build()
    records = Records(open_root(root).subfolder(NAME))
    pipeline = SearchPipeline(prepared, records, Budget(trials=4), finalists=1)
    claim_identity(records, prepared)
    code = session_code(records, prepared)
    lease = SearchLease(records, settings={}, code=code)
    runtime = RuntimeSpec(
        problem=search.problem,
        url=records.files.url,
        options={},
        code=prepared.code["problem"],
        session=lease.number,
        resume_every_s=1.0,
    )
    executor = LocalExecutor(cluster.pool(EngineSpec(runtime=runtime)), slots=2)
    try:
        settings = ControllerSettings(seed=0, budget=pipeline.budget, code=code_id(code["code"]["problem"]))
        pipeline.run(executor, lease, settings, observe=observe)
    finally:
        executor.close()
        lease.close()


def tell(kind: str, what: Any) -> None:
    """Prints a line for the script that started the driver."""
    print(json.dumps([time.monotonic(), kind, what]), flush=True)


def observe(event: Any) -> None:
    """Prints an event with the trial's number."""
    trial = getattr(event, "trial", None)
    tell(type(event).__name__, getattr(trial, "number", trial))


class Driver:
    """The driver's process, and the lines that it has printed."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    def lines(self) -> list[list[Any]]:
        """Returns time, kind and subject of each event and note."""
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("[") and line.endswith("\n")]

    def find(self, kind: str, what: int | str, *, after_s: float = 0.0) -> float | None:
        """Returns the time of the first such line: an event of a trial, or a note with a text."""
        for at_s, name, subject in self.lines():
            is_meant = subject == what if isinstance(what, int) else what in str(subject)
            if at_s > after_s and name == kind and is_meant:
                return at_s
        return None

    def wait_for(self, kind: str, what: int | str, *, after_s: float = 0.0) -> float:
        """Waits for a line; returns its time."""
        while (at_s := self.find(kind, what, after_s=after_s)) is None:
            if self.process.exitcode is not None:
                raise AssertionError(f"the driver ended without {kind} {what}")
            time.sleep(0.05)
        return at_s


def disturb(driver: Driver, cluster: Cluster, one: Machine, two: Machine) -> dict[str, Any]:
    """Cuts the link of one machine while the other's worker is killed; then the first machine vanishes.

    Args:
        driver: With both machines' workers, which run trials 0 and 1. They are held until the end.
        cluster: Of the workers.
        one: The machine whose link is cut.
        two: The other.
    """
    driver.wait_for("Started", 0)
    driver.wait_for("Started", 1)
    one.cut()
    cut_s = time.monotonic()
    cluster.kill_worker(two)
    killed_noticed_s = driver.wait_for("note", cluster.name_of(two)) - cut_s
    while not (lost := [subject for _, kind, subject in driver.lines() if kind == "TrialLost"]):
        time.sleep(0.05)
    time.sleep(max(0.0, cut_s + CUT_S - time.monotonic()))
    one.restore()
    goes_on_s = driver.wait_for("Reported", 1 - lost[0], after_s=time.monotonic()) - cut_s
    is_kept = driver.find("note", cluster.name_of(one)) is None
    one.vanish()
    vanished_s = time.monotonic()
    vanished_noticed_s = driver.wait_for("note", cluster.name_of(one)) - vanished_s
    release(0, 1)
    return {
        "lost": lost[0],
        "killed_noticed_s": killed_noticed_s,
        "goes_on_s": goes_on_s,
        "is_kept": is_kept,
        "vanished_noticed_s": vanished_noticed_s,
    }


def told(root: str) -> dict[str, Any]:
    """Returns what the records hold, read by another client than the driver's."""
    files = open_root(f"{root}/{NAME}")
    records = Records(files)
    trials = records.load()[0]
    names = files.names("trials")
    return {
        "trials": [
            {
                **{name: getattr(trial, name) for name in ("number", "state", "attempt", "parents", "donor")},
                "inherits": re.findall(r"^inherits (\w+)$", records.log(trial.number), re.MULTILINE),
                "digest": trial.checkpoint and digest(StoredWeights(files, trial.checkpoint).read_all()),
                "n_results": sum(name.startswith(f"{trial.number:06d}.result") for name in names),
            }
            for trial in trials
        ],
        "damages": [str(damage) for damage in verify_search(files, pause_s=0).damages],
    }


def hold(*trials: int) -> None:
    """Lets trials go on until they are released."""
    for trial in trials:
        path = Path(SHARE, "hold", str(trial))
        path.parent.mkdir(exist_ok=True)
        path.touch()


def release(*trials: int) -> None:
    """Lets trials end."""
    for trial in trials:
        Path(SHARE, "hold", str(trial)).unlink()


def worker_variables(machine: Machine) -> dict[str, str]:
    """Returns the variables of a worker."""
    return {ROOT_VARIABLE: f"{machine.mount}/root", HOLD_VARIABLE: f"{machine.mount}/hold"}


def start_driver(machine: Machine, cluster: Cluster) -> Driver:
    """Starts a search."""
    log = SCRATCH / "search.log"
    return Driver(machine.start(lambda: drive(f"{machine.mount}/root", cluster), log), log)


def wait_for_line(text: str, log: Path) -> None:
    """Waits until a text is in a log."""
    while not log.exists() or text not in log.read_text():
        time.sleep(0.05)


@contextmanager
def logs_shown(*machines: Machine) -> Iterator[None]:
    """Shows the ends of all logs, and ends all machines."""
    try:
        yield
    finally:
        for log in SCRATCH.glob("*.log"):
            print(log, log.read_text()[-1500:], sep="\n", file=sys.stderr)
        for machine in machines:
            machine.vanish()


def lose_workers(cluster: Cluster, here: Machine, one: Machine, two: Machine) -> dict[str, Any]:
    """Runs a search whose workers are disturbed, and returns what was seen of it and what its records hold."""
    cluster.start_head(here)
    cluster.start_worker(one)
    cluster.start_worker(two)
    hold(0, 1)
    driver = start_driver(here, cluster)
    found = disturb(driver, cluster, one, two)
    driver.process.join()
    return found | {"status": driver.process.exitcode} | told(f"{SHARE}/root")


def lose_driver(cluster: Cluster, head: Machine, here: Machine, worker: Machine) -> dict[str, Any]:
    """Lets the machine of a driver vanish. Returns what is left of its search, and the seconds until nothing is."""
    cluster.start_head(head)
    cluster.join_driver(here)
    cluster.start_worker(worker)
    before = set(worker.pids())
    hold(0)
    driver = start_driver(here, cluster)
    driver.wait_for("Started", 0)
    n_processes = len(new_processes(worker, before))
    here.vanish()
    vanished_s = time.monotonic()
    while (left := new_processes(worker, before)) and time.monotonic() < vanished_s + GIVE_UP_S:
        time.sleep(0.2)
    return {"n_processes": n_processes, "ended_s": time.monotonic() - vanished_s, "left": list(left.values())}


def new_processes(machine: Machine, before: set[int]) -> dict[int, str]:
    """Returns the processes that a machine has got since, without those that Ray keeps for others."""
    found = {pid: command_line(pid).replace(b"\0", b" ").decode() for pid in machine.pids() if pid not in before}
    return {pid: command for pid, command in found.items() if command and "ray::IDLE" not in command}


def main(cluster: Cluster, here: Machine, one: Machine, two: Machine) -> None:
    """Does what the script's argument says."""
    with logs_shown(here, one, two):
        lose = lose_driver if sys.argv[1:] == ["driver"] else lose_workers
        print(json.dumps(lose(cluster, here, one, two)))
