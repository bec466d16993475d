"""The contract of worker pools, and the functions that run attempts on one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from nas.core.errors import ActionError, HeirloomError
from nas.core.trial import Trial
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    Finished,
    JobLeftWorker,
    ProxiesComputed,
    StopKind,
    TrialLost,
)
from nas.training.messages import Assignment, JobStart, ProxyRequest

MAX_CALLS = 3
"""Workers that a call may lose."""
OVERDUE = "the time budget was used up"


class WorkerLostError(HeirloomError):
    """The process that trained a trial ended.

    The controller runs the trial again or marks it as lost.

    Attributes:
        counts: Whether it counts against ``max_attempts``.
    """

    def __init__(self, why: str, *, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


class WorkerPool(ABC):
    """Runs attempts. One thread for each slot calls it."""

    @abstractmethod
    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs an attempt to its durable result; returns None if it was interrupted.

        With ``RuntimeSpec.jobs_request_trials``, the job stays on its worker afterwards and posts ``TrialRequested``
        or ``JobLeftWorker``.

        Raises:
            WorkerLostError: the worker ended.
            StorageError: the storage failed.
        """

    @abstractmethod
    def has_job(self, job: int) -> bool:
        """Returns whether the job is on a worker, so that ``run`` answers its request.

        Any thread may call it.
        """

    @abstractmethod
    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts a job without a trial. It posts ``TrialRequested`` or ``JobLeftWorker``.

        Raises:
            WorkerLostError: the worker ended.
            StorageError: the storage failed.
        """

    @abstractmethod
    def dismiss(self, job: int) -> None:
        """Tells a job that requested a trial that there are no more. Returns at once."""

    @abstractmethod
    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Stops what runs, from another thread; see ``Executor.stop``. Returns at once."""

    @abstractmethod
    def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
        """Tests or exports a finished trial, or computes the proxies of points.

        Raises:
            ActionError: the problem's code raised, or ended its process. The cause is a WorkerLostError in the latter
                case.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees resources. Attempts that still run are ended if possible."""

    @property
    def is_idle(self) -> bool:
        """Whether no trial and no call runs in this process, where it can't be ended."""
        return True


def run_attempt(pool: WorkerPool, assignment: Assignment, post: Callable[[Event], None]) -> Event:
    """Runs an attempt and returns the event that ends it."""
    job, number = assignment.trial.job, assignment.trial.number
    try:
        trial = pool.run(assignment, post)
    except WorkerLostError as error:
        return TrialLost(job, number, str(error), error.counts)
    except BaseException as error:
        return ExecutorFailed(error, job)
    return TrialLost(job, number, "interrupted", counts=False) if trial is None else Finished(trial)


def compute_proxies(pool: WorkerPool, request: ProxyRequest) -> Event:
    """Computes proxies and returns the event that tells of it."""
    try:
        answer = pool.call("proxies", request)
    except ActionError as error:
        return ProxiesComputed(request, error=str(error), is_lost=isinstance(error.__cause__, WorkerLostError))
    except BaseException as error:
        return ExecutorFailed(error)
    return ProxiesComputed(request, answer["values"], answer["error"])


def resume_job(pool: WorkerPool, job_start: JobStart, post: Callable[[Event], None]) -> None:
    """Starts a job without a trial, and posts an event if that fails."""
    try:
        pool.resume(job_start, post)
    except WorkerLostError as error:
        post(JobLeftWorker(job_start.job, lost=str(error), counts=error.counts))
    except BaseException as error:
        post(ExecutorFailed(error, job_start.job))
