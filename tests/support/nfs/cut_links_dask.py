"""``cut_links`` on Dask. All processes are forks of one, since imports take long in the guest."""

from __future__ import annotations

import os
import sys
from multiprocessing.context import ForkProcess as Process
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ.update(
    OMP_NUM_THREADS="1",
    PYTHONPATH=str(Path(__file__).parents[3]),
)
if sys.argv[1:] != ["driver"]:  # after a cut of 20 s TCP may wait for another 20 s
    os.environ["DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP"] = "45s"

from distributed import Client
from distributed.cli import dask_scheduler, dask_worker

from nas.executors.dask_pool import DaskPool
from nas.executors.engine_worker import EngineSpec
from tests.support.nfs.cut_links import SCRATCH, Cluster, PrintedDisplay, main, wait_for_line, worker_variables
from tests.support.nfs.network import Machine, connect

PORT = 8786


class DaskCluster(Cluster):
    """A Dask scheduler and workers without nannies."""

    def __init__(self, head: Machine) -> None:
        self._address = f"tcp://{head.address}:{PORT}"
        self._workers: dict[str, Process] = {}

    def start_head(self, machine: Machine) -> None:
        """Starts a scheduler."""
        options = ["--host", machine.address, "--port", str(PORT), "--no-dashboard"]
        machine.start(lambda: dask_scheduler.main(options), SCRATCH / "scheduler.log")

    def start_worker(self, machine: Machine) -> None:
        """Starts a worker."""
        options = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(SCRATCH / machine.name)]
        places = [self._address, "--host", machine.address, "--name", machine.name]

        def work() -> None:
            os.environ.update(worker_variables(machine))
            dask_worker.main([*places, *options])

        log = SCRATCH / f"{machine.name}.log"
        self._workers[machine.name] = machine.start(work, log)
        wait_for_line("Starting established connection", log)

    def join_driver(self, machine: Machine) -> None:
        """Does nothing: a client is enough."""

    def kill_worker(self, machine: Machine) -> None:
        """Kills a worker and starts another."""
        self._workers[machine.name].kill()
        self.start_worker(machine)

    def pool(self, spec: EngineSpec) -> DaskPool:
        """Returns a pool on the scheduler's workers."""
        return DaskPool(spec, Client(self._address), PrintedDisplay(), slots=2)

    def name_of(self, machine: Machine) -> str:
        """Returns its address."""
        return machine.address


if __name__ == "__main__":
    machines = connect("driver", "one", "two")
    main(DaskCluster(machines[0]), *machines)
