"""Places: where attempts are executed: this very process, a warm process a slot, or workers that come over HTTP."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nas.core.errors import ActionError, HeirloomError, StorageError, TrialInterrupted, TrialOverdue, TrialStopped
from nas.core.tracebacks import traceback_of
from nas.core.trial import Trial
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    ExtraResult,
    JobLeftWorker,
    Reported,
    Started,
    StopKind,
    TrialRequested,
)
from nas.storage.blobs import BlobStore
from nas.storage.trial_log import TrialLog, log_path
from nas.training.messages import Assignment, JobStart, RuntimeSpec
from nas.training.problem import Problem
from nas.training.runtime import TrialRuntime

logger = logging.getLogger(__name__)


class WorkerLostError(HeirloomError):
    """The process that trained a trial is gone; the loop runs the trial again, or gives it up as lost.

    Attributes:
        counts: Whether it counts against ``max_attempts``.
    """

    def __init__(self, why: str, *, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


class WorkerPool(ABC):
    """Executes attempts; called by one thread a slot."""

    @abstractmethod
    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs an attempt to its durable result; None where it was interrupted.

        If ``RuntimeSpec.jobs_ask``, its job stays afterwards and posts ``TrialRequested`` or ``JobLeftWorker``.

        Raises:
            WorkerLostError: its process died.
            StorageError: the store failed.
        """

    @abstractmethod
    def hosts(self, job: int) -> bool:
        """Returns whether the job stays here, so that ``run`` answers it; any thread may ask."""

    @abstractmethod
    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Lets a job begin without a trial; posts ``TrialRequested`` or ``JobLeftWorker``.

        Raises:
            WorkerLostError: its process died.
            StorageError: the store failed.
        """

    @abstractmethod
    def dismiss(self, job: int) -> None:
        """Tells a job that has asked that there are no more trials; returns at once."""

    @abstractmethod
    def stop(self, trial: Trial, kind: StopKind) -> None:
        """Asks a running attempt to end, from another thread; returns at once."""

    @abstractmethod
    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports a finished trial.

        Raises:
            ActionError: the problem's code raised, or ended its process.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees what is held; attempts that still run are ended where they can be."""


class ControllerChannel:
    """A running attempt's line to the loop, within one process."""

    def __init__(self, trial: Trial, post: Callable[[Event], None], asks_stopper: bool) -> None:
        self._trial = trial
        self._post = post
        self._asks_stopper = asks_stopper
        self.asked_to: StopKind | None = None

    def started(self) -> None:
        """Posts ``Started``."""
        self._post(Started(self._trial.number, self._trial.attempt, self._trial.slot or 0))

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        """Nothing: an attempt in this process can't be killed."""

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Posts ``Reported``, waits for the verdict where there is a stopper, and raises what was asked."""
        if self.asked_to is None:
            if self._asks_stopper:
                answered = threading.Event()
                verdict: list[bool] = []

                def answer(stop: bool) -> None:
                    verdict.append(stop)
                    answered.set()

                self._post(Reported(self._trial.number, step, metrics, answer))
                while not answered.wait(0.5) and self.asked_to is None:
                    continue
                if any(verdict):
                    self.asked_to = self.asked_to or "stop"
            else:
                self._post(Reported(self._trial.number, step, metrics))
        raise_stop(self.asked_to)

    def heed(self) -> None:
        """Raises what was asked."""
        raise_stop(self.asked_to)

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Posts each ``Reported`` without a question."""
        for step, metrics in curve:
            self._post(Reported(self._trial.number, step, metrics))

    def late(self, result: str) -> None:
        """Posts ``ExtraResult``."""
        self._post(ExtraResult(self._trial.number, result))


def raise_stop(kind: StopKind | None) -> None:
    """Raises what a stop of this kind looks like to the problem's code."""
    if kind == "stop":
        raise TrialStopped("the stopper says so")
    if kind in ("deadline", "kill"):
        raise TrialOverdue("the hours are spent")
    if kind == "interrupt":
        raise TrialInterrupted("the session ends")


class _JobThread:
    """A job that stays in this process: its code runs on a thread of its own, and its line ends here.

    What it prints between two trials goes to the next one's log, after the last to the job's own.
    """

    def __init__(
        self,
        runtime: TrialRuntime,
        job_start: JobStart,
        post: Callable[[Event], None],
        channels: dict[int, ControllerChannel],
    ) -> None:
        self._runtime = runtime
        self._job_start = job_start
        self._post = post
        self._channels = channels
        self._assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Trial | BaseException | None] = queue.SimpleQueue()
        self._number: int | None = None
        self._log = TrialLog()
        self.has_ended = False

    def begin(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._main, name=f"heirloom-job-{self._job_start.job}", daemon=True).start()

    def give(self, assignment: Assignment | None) -> None:
        """Answers what the job has asked: its next trial, or None."""
        self._assignments.put(assignment)

    def wait(self) -> Trial | None:
        """Returns the result of the trial that it runs, or None where that was interrupted."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def channel(self, trial: Trial) -> ControllerChannel:
        self._number = trial.number
        self._channels[trial.number] = channel = ControllerChannel(trial, self._post, self._runtime.spec.asks_stopper)
        return channel

    def finished(self, trial: Trial | None) -> None:
        self._put_log()
        self._results.put(trial)

    def ask(self) -> Assignment | None:
        self._post(TrialRequested(self._job_start.job))
        return self._assignments.get()

    def _main(self) -> None:
        left: Event
        try:
            with self._log.capture():
                left = JobLeftWorker(self._job_start.job, self._runtime.job_start(self._job_start, self))
        except BaseException as error:
            left = ExecutorFailed(error, self._job_start.job)
            if self._number is not None:
                self._results.put(error)
        self._put_log()
        self.has_ended = True
        self._post(left)

    def _put_log(self) -> None:
        path = log_path(self._job_start.job, "job") if self._number is None else log_path(self._number)
        if self._number is not None:
            del self._channels[self._number]
        self._number = None
        self._log.put(self._runtime.files, path)
        self._log.clear()


class InProcessPool(WorkerPool):
    """Runs attempts in this process: code that hangs can't be killed, and all share torch's random state."""

    def __init__(self, spec: RuntimeSpec, files: BlobStore | None = None, problem: Problem | None = None) -> None:
        self._spec = spec
        self._files = files
        self._problem = problem
        self._runtime: TrialRuntime | None = None
        self._lock = threading.Lock()
        self._channels: dict[int, ControllerChannel] = {}
        self._jobs: dict[int, _JobThread] = {}

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt in the calling thread, or, where jobs ask, in that of its job."""
        trial = assignment.trial
        if self._spec.jobs_ask:
            return self._run_by_job(assignment, post)
        channel = ControllerChannel(trial, post, self._spec.asks_stopper)
        self._channels[trial.number] = channel
        runtime = self._get_runtime()
        log = TrialLog()
        try:
            with log.capture():
                return runtime.run(assignment, channel)
        finally:
            del self._channels[trial.number]
            log.put(runtime.files, log_path(trial.number))

    def hosts(self, job: int) -> bool:
        """Returns whether its thread is there."""
        found = self._jobs.get(job)
        return found is not None and not found.has_ended

    def _run_by_job(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        if not self.hosts(assignment.trial.job):
            return self._begin(JobStart.of(assignment), post).wait()
        job = self._jobs[assignment.trial.job]
        job.give(assignment)
        return job.wait()

    def _begin(self, job_start: JobStart, post: Callable[[Event], None]) -> _JobThread:
        self._jobs[job_start.job] = job = _JobThread(self._get_runtime(), job_start, post, self._channels)
        job.begin()
        return job

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts the job's thread."""
        self._begin(job_start, post)

    def dismiss(self, job: int) -> None:
        """Ends the job's wait."""
        self._jobs[job].give(None)

    def stop(self, trial: Trial, kind: StopKind) -> None:
        """The attempt ends at its next report."""
        if (channel := self._channels.get(trial.number)) is not None:
            channel.asked_to = kind

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports in the calling thread."""
        runtime = self._get_runtime()
        log = TrialLog()
        try:
            with log.capture():
                return runtime.test(trial) if action == "test" else runtime.export(trial)
        except StorageError:
            raise
        except (Exception, SystemExit) as error:
            text = traceback_of(error)
            log.write(text)
            raise ActionError(f"{type(error).__name__}: {error}\n{text}") from error
        finally:
            log.put(runtime.files, log_path(trial.number, action))

    def close(self) -> None:
        """Asks what still runs to end at its next report; the problem is closed where nothing runs."""
        for channel in list(self._channels.values()):
            channel.asked_to = "interrupt"
        for job in list(self._jobs.values()):
            job.give(None)
        is_idle = not self._channels and all(job.has_ended for job in self._jobs.values())
        if self._runtime is not None and is_idle and (raised := self._runtime.close()) is not None:
            logger.warning("%s", raised)

    def _get_runtime(self) -> TrialRuntime:
        with self._lock:
            if self._runtime is None:
                self._runtime = TrialRuntime(self._spec, files=self._files, problem=self._problem)
            return self._runtime
