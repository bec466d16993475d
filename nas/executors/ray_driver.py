"""A process that talks to Ray for ``RayPool``: Ray's driver, in Ray's words.

Ray ends its driver's process if the head of the cluster is lost, writes to its standard output, and takes its signals.
So the search has a process of its own. This one ends with the pipe to it, with all of Ray that it started.

The pool sends tuples: ``("start", worker)``, ``("order", worker, bytes)``, ``("end", worker)`` and ``("close",)``. It
gets back ``("connected", resources)`` or ``("failed", kind, error)`` first, then ``("message", worker, bytes)`` and
``("lost", worker, why, counts)``. Workers are numbers; what the bytes hold is for the pool and ``RayWorker``. A worker
that can't import Heirloom sends its host, its process and the error instead of bytes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

PLANNED = "terminated expectedly"
"""In Ray's explanation of a node that got SIGTERM or was drained."""
_IDENTIFIERS = re.compile(r"\s*(?:class_name|actor_id|pid|namespace|ip): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayStart:
    """The cluster and the actors of a search.

    Attributes:
        init: Arguments of ``ray.init``.
        n_cpus: CPUs of each actor.
        n_gpus: GPUs of each actor; none if the cluster has none and ``needs_gpus`` is False.
        needs_gpus: Whether actors wait for a cluster that has no GPU yet.
        path: The driver's ``sys.path``.
        folder: The driver's working folder.
    """

    init: Mapping[str, Any]
    n_cpus: int
    n_gpus: float
    needs_gpus: bool
    path: tuple[str, ...]
    folder: str


class RayDriver:
    """Starts actors, and passes messages between them and the pool."""

    def __init__(self, connection: Connection, start: RayStart) -> None:
        self._connection = connection
        self._start = start
        self._lock = threading.Lock()
        self._actors: dict[int, Any] = {}
        self._new_actor: Any = None

    def run(self) -> None:
        """Serves the pool until its end of the pipe is closed."""
        import ray

        try:
            ray.init(**self._start.init)
            resources = ray.cluster_resources()
        except Exception as error:
            self._send("failed", type(error).__name__, str(error))
            return
        has_gpus = self._start.needs_gpus or bool(resources.get("GPU"))
        n_gpus = self._start.n_gpus if has_gpus else 0
        self._new_actor = _actor_class().options(num_cpus=self._start.n_cpus, num_gpus=n_gpus)
        self._send("connected", resources)
        try:
            while (message := self._connection.recv()) != ("close",):
                self._run_order(*message)
        except EOFError:  # the search's process has ended
            pass
        ray.shutdown()

    def _run_order(self, what: str, worker: int, content: bytes = b"") -> None:
        import ray

        if what == "start":
            self._actors[worker] = actor = self._new_actor.remote(self._start.path, self._start.folder)
            stream = actor.messages.options(num_returns="streaming").remote()
            threading.Thread(target=self._listen, args=(worker, stream), name="heirloom-ray", daemon=True).start()
        elif (known := self._actors.get(worker)) is not None:  # else it was lost meanwhile
            known.order.remote(content) if what == "order" else ray.kill(known)

    def _listen(self, worker: int, stream: Any) -> None:
        """Passes on what an actor says. The end of its stream is its loss."""
        import ray
        from ray.exceptions import RayActorError

        why, counts = "it ended", False
        try:
            for reference in stream:
                self._send("message", worker, ray.get(reference))
        except RayActorError as error:
            why, counts = _reason(str(error)), not (error.preempted or PLANNED in str(error))
        except Exception as error:  # of the actor's own code
            why, counts = f"{type(error).__name__}: {error}", True
        if (actor := self._actors.pop(worker, None)) is not None:
            ray.kill(actor)  # it may be alive, and out of reach for a moment only
        self._send("lost", worker, why, counts)

    def _send(self, *message: Any) -> None:
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                return  # the pool has closed its end, and ``run`` ends


def _reason(text: str) -> str:
    """Returns the telling lines of Ray's explanation of a loss."""
    lines = [line for line in text.partition("Some common causes")[0].splitlines() if not _IDENTIFIERS.match(line)]
    return " ".join(lines[1:] or lines)


def _actor_class() -> Any:
    """Returns the class of the actors.

    As a local class it travels by value: it must come before Heirloom is found on the worker.
    """
    import ray

    class HeirloomWorker:
        def __init__(self, path: tuple[str, ...], folder: str) -> None:
            import os
            import sys

            own = [entry for entry in sys.path if entry not in path]
            sys.path[:] = [entry for entry in path if os.path.exists(entry) or not os.path.isabs(entry)] + own
            if os.path.isdir(folder):
                os.chdir(folder)
            try:
                from nas.executors.ray_worker import RayWorker
            except Exception as error:
                self._why = f"{type(error).__name__}: {error} ({sys.executable})"
            else:
                self._worker = RayWorker()

        def messages(self) -> Iterator[bytes | tuple[str, int, str]]:
            import os

            if hasattr(self, "_worker"):
                yield from self._worker.messages()
            else:
                yield os.uname().nodename, os.getpid(), self._why

        def order(self, content: bytes) -> None:
            self._worker.order(content)

    return ray.remote(max_restarts=0, max_concurrency=2)(HeirloomWorker)


def main(connection: Connection) -> None:
    """Runs the driver on its end of the pipe."""
    RayDriver(connection, connection.recv()).run()
