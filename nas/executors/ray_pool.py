"""A worker pool on Ray: an actor for each slot.

``ray_driver`` talks to Ray, ``ray_worker`` is the actors' side.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError, HeirloomError, SearchInterruptedError, ServerError
from nas.executors.driver_folder import DriverFolder
from nas.executors.engine_pool import CLOSED, Display, EnginePool, EngineTask
from nas.executors.engine_session import WorkerLeaves
from nas.executors.engine_worker import EngineSpec, PackedOrder, WorkerUnfit, packed, unpacked
from nas.executors.pool import WorkerLostError
from nas.executors.process_pool import visible_gpus
from nas.executors.ray_driver import RayStart
from nas.executors.ray_worker import WorkerReady
from nas.executors.supervised_process import SupervisedProcess

MAX_LOST_AT_START = 3
"""Workers in a row that are lost before they are ready; then the search ends."""
CLOSE_TIMEOUT_S = 10.0
OBJECT_STORE_BYTES = 80_000_000
"""The smallest store of objects that Ray starts with; messages need less."""
MAX_REASON = 300
"""Characters of Ray's explanations that are shown."""
MAX_FOLDER_CHARACTERS = 20
"""Longest parent of Ray's folder: paths of its sockets have at most 103 characters."""
_PROGRAM = """
import sys
from multiprocessing import connection
import ray  # before the working folder can hide it
pipe = connection.Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from nas.executors.ray_driver import main
main(pipe)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """The Ray cluster of a search.

    Attributes:
        address: ``HOST:6379`` of a cluster that runs; None: Ray is started on this machine.
        gpus: The GPUs of this machine that Ray may use.
        environment: Variables for workers that inherit them: those of this machine.
    """

    address: str | None = None
    gpus: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Worker:
    """An actor, as the driver sees it."""

    name: str = ""
    is_ready: bool = False
    is_unfit: bool = False
    leaves: str | None = None
    """Why it leaves, if it said so."""
    task: str | None = None

    def __str__(self) -> str:
        return self.name or "(not started)"


class RayPool(EnginePool):
    """Runs attempts on actors, one for each slot, which Ray places.

    A lost actor is replaced. An actor waits until the cluster has its CPUs and GPUs, and trials wait with it. Messages
    of the process that talks to Ray arrive on the link's thread.

    Args:
        spec: The settings of workers; it holds no credentials.
        cluster: The cluster to join or to start.
        display: Shows the user what happens.
        slots: Number of actors.
    """

    def __init__(self, spec: EngineSpec, cluster: RayCluster, display: Display, slots: int) -> None:
        super().__init__(spec, display, slots)
        self._cluster = cluster
        self._workers: dict[int, _Worker] = {}
        self._n_started = 0
        self._n_lost_at_start = 0
        self._folder = DriverFolder(_short_folder())
        self._link = _Link(self._receive, self._folder.path / "ray.log", self._environment())
        self._link.send(list(sys.path), self._ray_start())
        self._watcher.start()

    @property
    def pid(self) -> int | None:
        """The process that talks to Ray."""
        return self._link.pid

    def close(self) -> None:
        """Ends all actors, and Ray if it was started here."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            self._end_all(WorkerLostError(CLOSED, counts=False))
        self._watcher.join()
        self._link.close(0.0 if self._cluster.address is None else CLOSE_TIMEOUT_S)
        self._folder.remove()

    @property
    def _capacity(self) -> int:
        return sum(worker.is_ready for worker in self._workers.values())

    @property
    def _shortage(self) -> str:
        runtime = self._spec.runtime
        gpus = f", {runtime.gpus_per_trial:g} GPU" if runtime.device == "cuda" else ""
        return "" if self._cluster.address is None else f"; each takes {runtime.n_threads} CPU{gpus} of the cluster"

    def _start(self, key: str, task: EngineTask, order: PackedOrder) -> None:
        number = next(n for n, worker in self._workers.items() if worker.is_ready and worker.task is None)
        self._workers[number].task = key
        task.worker = self._workers[number]  # it begins at once: only a stop ends it
        self._link.send(("order", number, packed(("run", (key, order)))))

    def _tell(self, key: str, method: str, *arguments: Any) -> None:
        with self._lock:
            number = next((n for n, worker in self._workers.items() if worker.task == key), None)
        if number is not None:
            self._link.send(("order", number, packed((method, (key, *arguments)))))

    def _forget(self, key: str, task: EngineTask) -> None:
        for worker in self._workers.values():
            if worker.task == key:
                worker.task = None

    def _exclude(self, worker: Any) -> None:
        worker.is_unfit, worker.is_ready = True, False

    def _retire(self, worker: Any) -> None:
        for number in [number for number, known in self._workers.items() if known is worker]:
            self._link.send(("end", number))

    def _receive(self, message: tuple[Any, ...] | None) -> None:
        with self._lock:
            match message:
                case None:
                    self._fail(self._ended())
                case "connected", resources:
                    self._connect(resources)
                case "failed", kind, text:
                    self._fail(self._failed(kind, text))
                case "message", number, (host, pid, why):
                    self._refuse(number, f"{host} (pid {pid})", why)
                case "message", number, content:
                    self._take(number, *unpacked(content))
                case "lost", number, why, counts:
                    self._lose_worker(number, why, counts)

    def _connect(self, resources: Mapping[str, float]) -> None:
        if self._spec.runtime.device == "auto":
            device = "cuda" if resources.get("GPU") else "cpu"
            self._spec = replace(self._spec, runtime=replace(self._spec.runtime, device=device))
        for _ in range(self._slots):
            self._start_worker()

    def _start_worker(self) -> None:
        if self._failure is None and not self._is_closed.is_set():
            self._n_started += 1
            self._workers[self._n_started] = _Worker()
            self._link.send(("start", self._n_started))

    def _take(self, number: int, key: str | None, message: Any) -> None:
        if (worker := self._workers.get(number)) is None:
            return
        match message:
            case WorkerReady(host=host, pid=pid):
                worker.name, worker.is_ready = f"{host} (pid {pid})", True
                self._n_lost_at_start = 0
                self._dispatch()
            case WorkerLeaves(why=why):
                worker.leaves, worker.is_ready = why, False
            case _ if key is not None and (task := self._tasks.get(key)) is not None:
                self._handle(key, task, worker, message)

    def _refuse(self, number: int, name: str, why: str) -> None:
        """Lets a worker go that can't import Heirloom."""
        if (worker := self._workers.get(number)) is not None:
            worker.name = name
            self._drop_unfit(None, worker, WorkerUnfit.without_heirloom(why))

    def _lose_worker(self, number: int, why: str, counts: bool) -> None:
        """Replaces a worker that was lost or has left."""
        worker = self._workers.pop(number)
        is_planned = worker.leaves is not None or not counts
        if not worker.name and not is_planned:
            self._n_lost_at_start += 1
            if self._n_lost_at_start >= MAX_LOST_AT_START:
                self._fail(ConfigurationError(f"runner=ray: workers can't start: {_shortened(why)}"))
                return
        verb = "left" if is_planned else "was lost"
        text = f"worker {worker} {verb}: {worker.leaves or _shortened(why)}"
        if not self._is_closed.is_set() and not worker.is_unfit:
            self._display.note(text)
        if worker.task is not None:
            self._lose(worker.task, f"its {text}", counts=not is_planned)
        self._start_worker()

    def _failed(self, kind: str, text: str) -> HeirloomError:
        """Returns the error of a cluster that can't be joined or started."""
        if self._cluster.address is None:
            return HeirloomError(f"runner=ray: Ray can't start on this machine: {_shortened(text)}")
        name = f"runner.address={self._cluster.address}"
        if kind == "ConnectionError":
            return ServerError(f"{name}: no Ray cluster answers: {_shortened(text)}")
        return ConfigurationError(f"{name}: can't be joined: {_shortened(text)}")

    def _ended(self) -> BaseException:
        """Returns the error for the end of the process that talks to Ray.

        Ray ends it a minute after the head of the cluster was lost.
        """
        text = self._link.last_line()
        if not self._workers:
            return self._failed("ConnectionError", text)
        return SearchInterruptedError(f"the head of the Ray cluster was lost ({_shortened(text)})")

    def _ray_start(self) -> RayStart:
        runtime = self._spec.runtime
        init: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._cluster.address is None:
            init |= {
                "address": "local",  # never one that runs, whatever RAY_ADDRESS says
                "num_cpus": self._slots * runtime.n_threads,
                "num_gpus": len(self._cluster.gpus),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self._folder.path),
            }
        else:
            init["address"] = self._cluster.address
        return RayStart(
            init=init,
            n_cpus=runtime.n_threads,
            n_gpus=0 if runtime.device in ("cpu", "mps") else runtime.gpus_per_trial,
            needs_gpus=runtime.device == "cuda",
            path=tuple(spawn.get_preparation_data("heirloom-ray")["sys_path"]),
            folder=os.getcwd(),
        )

    def _environment(self) -> dict[str, str]:
        """Returns the variables of the process that talks to Ray, and of its children."""
        variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        if self._cluster.address is not None:
            return variables
        variables |= self._cluster.environment
        variables["RAY_memory_monitor_refresh_ms"] = "0"  # at 95 % of the memory it would kill the youngest trial
        if "RAY_AUTH_MODE" not in variables:  # Ray's ports are open to the network
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        if self._cluster.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = visible_gpus(self._cluster.gpus, os.environ)
        return variables


class _Link:
    """The process that talks to Ray, and the pipe to it. No call waits for Ray."""

    def __init__(
        self, receive: Callable[[tuple[Any, ...] | None], None], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._receive = receive
        self._log = log
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._connection, theirs = multiprocessing.Pipe()
        command = [os.fsdecode(spawn.get_executable()), "-P", "-c", _PROGRAM, str(theirs.fileno())]
        with theirs, log.open("ab") as file:
            self._process = SupervisedProcess(command, output=file, pass_fds=[theirs.fileno()], environment=environment)
        self._listener = threading.Thread(target=self._listen, name="heirloom-ray", daemon=True)
        self._listener.start()
        threading.Thread(target=self._write, name="heirloom-ray", daemon=True).start()

    def send(self, *messages: Any) -> None:
        """Sends messages, in order. Returns at once."""
        for message in messages:
            self._outbox.put(message)

    @property
    def pid(self) -> int | None:
        """The process id; None: it has ended."""
        answer = self._process.order("pid")
        return int(answer) if answer else None

    def last_line(self) -> str:
        """Returns the last line that the process has written."""
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it wrote nothing"

    def close(self, timeout_s: float) -> None:
        """Lets the process leave the cluster, then kills it with all that it started."""
        self.send(("close",))
        self._outbox.put(None)
        self._process.wait(timeout_s)
        self._process.kill()
        self._process.close()
        self._listener.join()  # at the end of the pipe
        self._connection.close()

    def _listen(self) -> None:
        try:
            while True:
                self._receive(self._connection.recv())
        except (EOFError, OSError):
            self._receive(None)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)
        except OSError:
            return  # the process has ended, as ``_listen`` notices


def _short_folder() -> str | None:
    """Returns where Ray's folder goes; None: the system's place for temporary files."""
    return None if len(tempfile.gettempdir()) <= MAX_FOLDER_CHARACTERS else "/tmp"


def _shortened(text: str) -> str:
    """Returns the telling lines of Ray's explanations as one."""
    return " ".join(text.split())[:MAX_REASON]
