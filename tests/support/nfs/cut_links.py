"""A search on two machines of a network, whose links are cut: run by tests/integration/test_two_machines.py.

Driver and workers have addresses and mounts of their own in the guest of with-nfs. They are forks of one process, since
imports take long in the guest. Prints what it found as one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from multiprocessing.context import ForkProcess as Process
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ.update(
    OMP_NUM_THREADS="1",
    PYTHONPATH=str(Path(__file__).parents[3]),
    DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP="45s",  # after a cut of 20 s TCP may wait for another 20 s
)

from distributed import Client
from distributed.cli import dask_scheduler, dask_worker

from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.executors.dask_pool import DaskPool
from nas.executors.engine_worker import EngineSpec
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings
from nas.search.definition import Search
from nas.search.identity import claim_identity, open_records
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
from tests.support.nfs.network import Machine, connect
from tests.support.nfs.watched_digits import WatchedDigits, digest

SCRATCH = Path(os.environ["TMPDIR"])
NAME = "digits"
PORT = 8786
CUT_S = 20.0


def drive(root: str, address: str) -> None:
    """Runs the search with the workers of a Dask scheduler; prints each event as one line of JSON."""
    tuner = Spec.of(EvolutionTuner, population_size=2, sample_size=2)
    search = Search(problem=Spec.of(WatchedDigits), tuner=tuner, slots=2)
    prepared = search.build()
    records = open_records(open_root(root).subfolder(NAME))
    pipeline = SearchPipeline(prepared, records, Budget(trials=4), finalists=1)
    claim_identity(records, prepared)
    code = session_code(records, prepared)
    lease = SearchLease(records, settings={"runner": "dask"}, code=code)
    runtime = RuntimeSpec(
        problem=search.problem,
        url=records.files.url,
        options={},
        code=prepared.code["problem"],
        session=lease.number,
        resume_every_s=1.0,
    )
    pool = DaskPool(EngineSpec.of(runtime), Client(address), slots=2, note=lambda line: tell("note", line))
    executor = LocalExecutor(pool, slots=2)
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


def start_scheduler(machine: Machine) -> None:
    """Starts a Dask scheduler."""
    options = ["--host", machine.address, "--port", str(PORT), "--no-dashboard"]
    machine.start(lambda: dask_scheduler.main(options), SCRATCH / "scheduler.log")


def start_worker(machine: Machine, scheduler: Machine) -> Process:
    """Starts a Dask worker for one trial at a time, which has the share at another place than the driver."""
    options = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(SCRATCH / machine.name)]
    places = [f"tcp://{scheduler.address}:{PORT}", "--host", machine.address, "--name", machine.name]

    def work() -> None:
        os.environ["HEIRLOOM_WORKER_ROOT"] = f"{machine.mount}/root"
        dask_worker.main([*places, *options])

    return machine.start(work, SCRATCH / f"{machine.name}.log")


def disturb(driver: Driver, here: Machine, one: Machine, two: Machine, worker: Process) -> dict[str, Any]:
    """Cuts the link of one machine while the other's worker is killed; then the first machine vanishes.

    Args:
        driver: With both machines' workers, which run trials 0 and 1.
        here: The driver's machine.
        one: The machine whose link is cut.
        two: The other.
        worker: Of the other.
    """
    driver.wait_for("Started", 0)
    driver.wait_for("Started", 1)
    one.cut()
    cut_s = time.monotonic()
    worker.kill()
    killed_noticed_s = driver.wait_for("note", two.address) - cut_s
    start_worker(two, here)
    while not (lost := [subject for _, kind, subject in driver.lines() if kind == "TrialLost"]):
        time.sleep(0.05)
    time.sleep(max(0.0, cut_s + CUT_S - time.monotonic()))
    one.restore()
    goes_on_s = driver.wait_for("Reported", 1 - lost[0], after_s=time.monotonic()) - cut_s
    is_kept = driver.find("note", one.address) is None
    one.vanish()
    vanished_s = time.monotonic()
    vanished_noticed_s = driver.wait_for("note", one.address) - vanished_s
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


def main() -> None:
    """Runs the search, and disturbs it."""
    here, one, two = connect("driver", "one", "two")
    start_scheduler(here)
    start_worker(one, here)
    worker = start_worker(two, here)
    log = SCRATCH / "driver.log"
    root, address = f"{here.mount}/root", f"tcp://{here.address}:{PORT}"
    driver = Driver(here.start(lambda: drive(root, address), log), log)
    try:
        found = disturb(driver, here, one, two, worker)
        driver.process.join()
        found |= {"status": driver.process.exitcode} | told("/mnt/a/root")
    finally:
        for log in SCRATCH.glob("*.log"):
            print(log, log.read_text()[-1500:], sep="\n", file=sys.stderr)
        for machine in (here, one, two):
            machine.vanish()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
