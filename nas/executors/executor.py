"""Executors that need no engine: attempts on a thread a slot, executed at a place."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from nas.core.errors import SearchInterruptedError
from nas.core.trial import Trial
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    Finished,
    JobLeftWorker,
    StopKind,
    StopRequested,
    TrialLost,
)
from nas.executors.pool import WorkerLostError, WorkerPool
from nas.training.messages import Assignment, JobStart

ASK_S = 0.1


class EventQueue:
    """The events of an executor, in the order posted; a signal handler may post too."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._now_s = now_s
        self._stop: StopRequested | None = None

    def post(self, event: Event) -> None:
        """Adds an event."""
        if isinstance(event, StopRequested):
            self._stop = event
        self._queue.put(event)

    def heed_stop(self) -> None:
        """For a wait in which nobody takes events.

        Raises:
            SearchInterruptedError: a stop was asked for.
        """
        if self._stop is not None:
            raise SearchInterruptedError(self._stop.why, self._stop.signal)

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s``."""
        try:
            return self._queue.get(timeout=None if until_s is None else max(0.0, until_s - self._now_s()))
        except queue.Empty:
            return None


def execute(place: WorkerPool, assignment: Assignment, post: Callable[[Event], None]) -> Event:
    """Runs an attempt at a place, and gives the event that ends it."""
    job, number = assignment.trial.job, assignment.trial.number
    try:
        trial = place.run(assignment, post)
    except WorkerLostError as error:
        return TrialLost(job, number, str(error), error.counts)
    except BaseException as error:
        return ExecutorFailed(error, job)
    return TrialLost(job, number, "interrupted", counts=False) if trial is None else Finished(trial)


def resume(place: WorkerPool, job_start: JobStart, post: Callable[[Event], None]) -> None:
    """Lets a job begin without a trial at a place, and posts what goes wrong."""
    try:
        place.resume(job_start, post)
    except WorkerLostError as error:
        post(JobLeftWorker(job_start.job, lost=str(error)))
    except BaseException as error:
        post(ExecutorFailed(error, job_start.job))


class LocalExecutor(EventQueue):
    """Runs each attempt on a thread of its own, at a place; the debug runner with one slot in this process."""

    def __init__(self, place: WorkerPool, slots: int = 1) -> None:
        super().__init__()
        self.slots = slots
        self._place = place
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="heirloom-slot")

    def now_s(self) -> float:
        """Seconds on the system's monotonic clock."""
        return time.monotonic()

    def submit(self, assignment: Assignment) -> None:
        """Runs the attempt on the next free thread."""
        self._pool.submit(lambda: self.post(execute(self._place, assignment, self.post)))

    def resume(self, job_start: JobStart) -> None:
        """Lets the job begin, on the next free thread."""
        self._pool.submit(resume, self._place, job_start, self.post)

    def dismiss(self, job: int) -> None:
        """Tells the place."""
        self._place.dismiss(job)

    def stop(self, trial: Trial, why: StopKind) -> None:
        """Tells the place."""
        self._place.stop(trial, why)

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports at the place."""
        answer = self._pool.submit(self._place.call, action, trial)
        while not wait([answer], ASK_S).done:
            self.heed_stop()
        return answer.result()

    def close(self) -> None:
        """Closes the place; a thread whose code can't be ended is left behind."""
        self._place.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
