"""An executor without an engine: one thread for each slot."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from nas.core.trial import Trial
from nas.executors.event_queue import POLL_S, EventQueue
from nas.executors.events import Action, StopKind
from nas.executors.pool import WorkerPool, compute_proxies, resume_job, run_attempt
from nas.training.messages import Assignment, JobStart, ProxyRequest


class LocalExecutor(EventQueue):
    """Runs attempts on a worker pool, each from a thread of its own."""

    def __init__(self, pool: WorkerPool, slots: int = 1) -> None:
        super().__init__()
        self.slots = slots
        self._pool = pool
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="heirloom-slot")

    def submit(self, assignment: Assignment) -> None:
        """Runs the attempt on the next free thread."""
        self._threads.submit(lambda: self.post(run_attempt(self._pool, assignment, self.post)))

    def resume(self, job_start: JobStart) -> None:
        """Starts the job on the next free thread."""
        self._threads.submit(resume_job, self._pool, job_start, self.post)

    def dismiss(self, job: int) -> None:
        """Forwards to the pool."""
        self._pool.dismiss(job)

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Forwards to the pool."""
        self._pool.stop(subject, kind)

    def compute_proxies(self, request: ProxyRequest) -> None:
        """Computes on the next free thread."""
        self._threads.submit(lambda: self.post(compute_proxies(self._pool, request)))

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports on the pool."""
        answer = self._threads.submit(self._pool.call, action, trial)
        while not wait([answer], POLL_S).done:
            self.raise_if_stop_requested()
        return answer.result()

    def close(self) -> None:
        """Closes the pool. A thread whose code can't be ended keeps running."""
        self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Waits until no thread runs code, after ``close``."""
        self._threads.shutdown()
