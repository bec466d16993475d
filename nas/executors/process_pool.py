"""A worker pool with one warm worker process for each slot."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nas.core.errors import ActionError, ConfigurationError
from nas.core.gpus import gpus_of_slot
from nas.core.trial import Trial
from nas.executors.driver_folder import DriverFolder
from nas.executors.events import Action, Event, StopKind
from nas.executors.pool import MAX_CALLS, WorkerLostError, WorkerPool
from nas.executors.worker_process import WorkerProcess
from nas.training.messages import Assignment, JobStart, ProxyRequest, RuntimeSpec

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 1.0
"""Seconds between two looks at the size of the slots' logs."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds that closing a pool waits for the disk of the logs."""
END_TIMEOUT_S = 10.0
"""Seconds that workers have to end, with their problems' ``close``."""


def visible_gpus(indices: Sequence[int], environment: Mapping[str, str]) -> str:
    """Returns the ``CUDA_VISIBLE_DEVICES`` by which a worker sees only these GPUs of this process.

    Slurm and containers set the variable. Torch then counts within its list, which may hold other numbers, or UUIDs.

    Raises:
        ConfigurationError: the variable lists fewer GPUs.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ",".join(map(str, indices))
    listed = [name.strip() for name in value.split(",") if name.strip()]
    if (n := max(indices) + 1) > len(listed):
        raise ConfigurationError(
            f"CUDA_VISIBLE_DEVICES={value}: must list at least {n} GPU{'s' * (n > 1)} here. "
            "Give the worker more GPUs, or lower gpus_per_trial."
        )
    return ",".join(listed[index] for index in indices)


class ProcessPool(WorkerPool):
    """One warm worker process for each slot.

    Trials can be killed; a crash ends a trial, not the search.

    It uses the standard library's ``multiprocessing`` (docs/decisions/002). Reports and stops need a two-way pipe to
    the worker of a given slot. The pipe ends with its process, so a message that a kill cut off is never read.

    Args:
        spec: The settings of each worker.
        slots: How many workers. Each is started when its first trial comes.
        gpus: The GPUs for the slots, ``spec.gpus_per_trial`` for each. Empty: each slot sees all that the driver sees.
        trial_timeout_s: A trial that runs longer is killed and FAILED.
    """

    def __init__(
        self, spec: RuntimeSpec, slots: int, *, gpus: tuple[int, ...] = (), trial_timeout_s: float | None = None
    ) -> None:
        self._timeout_s = trial_timeout_s
        self._logs = DriverFolder()
        self._workers: list[WorkerProcess] = []
        for slot in range(slots):
            threads = str(spec.n_threads)
            environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
            if gpus:
                own = gpus_of_slot(gpus, slot, spec.gpus_per_trial)
                environment["CUDA_VISIBLE_DEVICES"] = visible_gpus(own, os.environ)
            log = self._logs.path / f"slot-{slot}.log"
            self._workers.append(WorkerProcess(spec, environment, log))
        self._is_closed = threading.Event()
        self._shortener = threading.Thread(target=self._shorten_logs, name="heirloom-logs", daemon=True)
        self._shortener.start()

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt on the worker of its slot."""
        return self._worker_of(assignment.trial.slot).run(assignment, post, self._timeout_s)

    def has_job(self, job: int) -> bool:
        """Returns whether the job is on a worker."""
        return any(worker.job == job for worker in self._workers)

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts the job on the worker of its slot."""
        self._worker_of(job_start.slot).resume(job_start, post)

    def dismiss(self, job: int) -> None:
        """Tells the job's worker."""
        for worker in self._workers:
            worker.dismiss(job)

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Tells every worker: a restarted job may be on another slot than its last trial was."""
        for worker in self._workers:
            worker.stop(subject, kind)

    def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
        """Tests or exports on the first slot's worker. Computes proxies on the worker of their slot.

        A test or an export is repeated if its worker is lost.
        """
        if isinstance(subject, ProxyRequest):
            return self._worker_of(subject.slot).call(action, subject, self._timeout_s)
        for n_left in reversed(range(MAX_CALLS)):
            try:
                return self._workers[0].call(action, subject)
            except ActionError as error:
                lost = error.__cause__
                if not (isinstance(lost, WorkerLostError) and lost.counts):
                    raise
                if not n_left:
                    raise ActionError(f"{error}, in each of {MAX_CALLS} tries") from lost
                logger.warning("%s; it is tried again", error)
        raise AssertionError("the last call returns or raises")

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ends all workers at once. One that has not ended after ``timeout_s`` is killed."""
        self._is_closed.set()
        for worker in self._workers:
            worker.ask_to_end()
        until_s = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.close(max(0.0, until_s - time.monotonic()))
        self._shortener.join(CLOSE_TIMEOUT_S)
        if not self._shortener.is_alive():  # else the disk hangs; a later driver removes the folder
            self._logs.remove()

    def _shorten_logs(self) -> None:
        workers = self._workers.copy()
        while not self._is_closed.wait(LOG_INTERVAL_S):
            for worker in workers.copy():
                try:
                    worker.shorten_log()
                except OSError as error:
                    logger.warning("a slot's log stays long: %s", error)
                    workers.remove(worker)

    def _worker_of(self, slot: int | None) -> WorkerProcess:
        return self._workers[(slot or 0) % len(self._workers)]
