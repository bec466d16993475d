"""``cut_links`` on Ray."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).parents[3]))

from nas.executors.engine_worker import EngineSpec
from nas.executors.ray_pool import RayCluster, RayPool
from tests.support.nfs.cut_links import SCRATCH, Cluster, PrintedDisplay, main, wait_for_line, worker_variables
from tests.support.nfs.network import OWN, Machine, command_line, connect
from tests.support.ray_nodes import ray_environment, start_command

PORT = 6379


class RayMachines(Cluster):
    """A Ray head without CPUs, and nodes of one CPU."""

    def __init__(self, head: Machine) -> None:
        self._address = f"{head.address}:{PORT}"
        # A machine that vanished is noticed after 40 s instead of 65
        os.environ.update(ray_environment(RAY_health_check_failure_threshold="3"))

    def start_head(self, machine: Machine) -> None:
        """Starts the head."""
        self._start(machine, "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")

    def start_worker(self, machine: Machine) -> None:
        """Starts a node."""
        self._start(machine, f"--address={self._address}", "--num-cpus=1")

    def kill_worker(self, machine: Machine) -> None:
        """Kills the node's actor; the pool starts another."""
        [actor] = [pid for pid in machine.pids() if b"ray::HeirloomWorker" in command_line(pid)]
        os.kill(actor, signal.SIGKILL)

    def pool(self, spec: EngineSpec) -> RayPool:
        """Returns a pool on the nodes."""
        return RayPool(spec, RayCluster(address=self._address), PrintedDisplay(), 2)

    def name_of(self, machine: Machine) -> str:
        """Returns its host name."""
        return f"worker {machine.name} "

    def join_driver(self, machine: Machine) -> None:
        """Starts a node without CPUs: a driver needs one beside it."""
        self._start(machine, f"--address={self._address}", "--num-cpus=0")

    def _start(self, machine: Machine, *arguments: str) -> None:
        log = SCRATCH / f"{machine.name}.log"
        command = start_command(*arguments, f"--node-ip-address={machine.address}", f"--temp-dir={OWN}")
        variables = {**os.environ, **worker_variables(machine)}
        machine.start(lambda: os.execve(command[0], command, variables), log)
        wait_for_line("Ray runtime started", log)


if __name__ == "__main__":
    machines = connect("driver", "one", "two")
    main(RayMachines(machines[0]), *machines)
