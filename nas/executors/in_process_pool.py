"""A worker pool that trains in the driver's own process."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nas.core.errors import ActionError, StorageError
from nas.core.tracebacks import error_line, raise_ctrl_c, traceback_of
from nas.core.trial import Trial
from nas.executors.controller_channel import ControllerChannel
from nas.executors.events import Action, Event, ExecutorFailed, JobLeftWorker, Notice, StopKind, TrialRequested
from nas.executors.pool import WorkerPool
from nas.storage.blobs import BlobStore
from nas.storage.trial_log import TrialLog, log_path
from nas.training.job import Job
from nas.training.messages import Assignment, JobStart, ProxyRequest, RuntimeSpec
from nas.training.problem import Problem
from nas.training.runtime import TrialRuntime

logger = logging.getLogger(__name__)


class InProcessPool(WorkerPool):
    """Runs attempts in this process.

    Code that hangs can't be killed, and all share torch's random state.

    Args:
        spec: The settings of the attempts.
        files: The search's storage; None: it is opened.
        problem: The problem; None: it is built.
        train_many: Trains the trials of a job in place of the problem.
    """

    def __init__(
        self,
        spec: RuntimeSpec,
        files: BlobStore | None = None,
        problem: Problem | None = None,
        *,
        train_many: Callable[[Job], None] | None = None,
    ) -> None:
        self._spec = spec
        self._files = files
        self._problem = problem
        self._train_many = train_many
        self._runtime: TrialRuntime | None = None
        self._lock = threading.Lock()
        self._checks_early = spec.checks_export
        self._channels: dict[int, ControllerChannel] = {}
        self._n_calls = 0
        self._jobs: dict[int, _JobThread] = {}
        self._is_closed = False

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt in the calling thread, or in its job's thread if jobs request trials."""
        trial = assignment.trial
        self._check_export(trial, post)
        runtime = self._get_runtime()
        if self._is_closed:
            return None
        if self._spec.jobs_request_trials:
            return self._run_in_job(assignment, post)
        channel = self._open_channel(trial, post)
        log = TrialLog()
        try:
            with log.capture():
                return runtime.run(assignment, channel)
        finally:
            del self._channels[trial.number]
            log.put(runtime.files, log_path(trial.number))

    def has_job(self, job: int) -> bool:
        """Returns whether the job's thread runs."""
        return job in self._jobs

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts the job's thread."""
        self._start_job(job_start, post)

    def dismiss(self, job: int) -> None:
        """Answers the job's request with None."""
        if (thread := self._jobs.get(job)) is not None:
            thread.answer(None)

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Ends the attempt at its next report; other code can't be ended."""
        if isinstance(subject, Trial) and (channel := self._channels.get(subject.number)) is not None:
            channel.stop_kind = kind

    def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
        """Tests, exports or computes proxies in the calling thread."""
        runtime = self._get_runtime()
        log = TrialLog()
        with self._lock:
            self._n_calls += 1
        try:
            with log.capture():
                return runtime.call(action, subject)
        except StorageError:
            raise
        except BaseException as error:
            raise_ctrl_c(error)
            text = traceback_of(error)
            log.write(text)
            raise ActionError(f"{error_line(error)}\n{text}") from error
        finally:
            with self._lock:
                self._n_calls -= 1
            log.put(runtime.files, log_path(subject.number, action))

    def close(self) -> None:
        """Asks attempts to end at their next report; closes the problem if nothing runs."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.stop_kind = "interrupt"
        for job in list(self._jobs.values()):
            job.answer(None)
        is_idle = self.is_idle and not self._jobs
        if self._runtime is not None:
            self._runtime.leaves = True
        if self._runtime is not None and is_idle and (raised := self._runtime.close()) is not None:
            logger.warning("%s", raised)

    @property
    def is_idle(self) -> bool:
        """Whether no trial and no call runs; a job that waits for its next trial may."""
        return not self._channels and not self._n_calls

    def _open_channel(self, trial: Trial, post: Callable[[Event], None]) -> ControllerChannel:
        """Returns the channel of an attempt, interrupted if the pool is closed."""
        self._channels[trial.number] = channel = ControllerChannel(trial, post, self._spec.has_stopper)
        if self._is_closed:
            channel.stop_kind = "interrupt"
        return channel

    def _check_export(self, trial: Trial, post: Callable[[Event], None]) -> None:
        """Checks the problem's ``export`` before the first trial."""
        with self._lock:
            checks, self._checks_early = self._checks_early, False
        if checks:
            runtime = self._get_runtime()
            with TrialLog().capture():  # the check of the trained network logs, if this one fails
                warning = runtime.check_untrained_export(trial)
            if warning is not None:
                post(Notice(warning))

    def _run_in_job(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        if (job := self._jobs.get(assignment.trial.job)) is None:
            return self._start_job(JobStart.of(assignment), post).result()
        job.answer(assignment)
        return job.result()

    def _start_job(self, job_start: JobStart, post: Callable[[Event], None]) -> _JobThread:
        open_channel = partial(self._open_channel, post=post)
        job = _JobThread(self._get_runtime(), job_start, post, open_channel, self._channels.pop, self._jobs.pop)
        self._jobs[job_start.job] = job
        if self._is_closed:
            job.answer(None)
        job.start()
        return job

    def _get_runtime(self) -> TrialRuntime:
        with self._lock:
            if self._runtime is None:
                self._runtime = TrialRuntime(
                    self._spec, files=self._files, problem=self._problem, train_many=self._train_many
                )
            return self._runtime


class _JobThread:
    """A job on a thread of its own, and its channel to the controller.

    Output between two trials goes to the log of the next one; output after the last trial, to the job's own log.
    """

    def __init__(
        self,
        runtime: TrialRuntime,
        job_start: JobStart,
        post: Callable[[Event], None],
        open_channel: Callable[[Trial], ControllerChannel],
        close_channel: Callable[[int], object],
        leave: Callable[[int], object],
    ) -> None:
        self._runtime = runtime
        self._job_start = job_start
        self._post = post
        self._open_channel = open_channel
        self._close_channel = close_channel
        self._leave = leave
        self._answers: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Trial | BaseException | None] = queue.SimpleQueue()
        self._number: int | None = None
        self._log = TrialLog()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._main, name=f"heirloom-job-{self._job_start.job}", daemon=True).start()

    def answer(self, assignment: Assignment | None) -> None:
        """Answers the job's request with its next trial, or None."""
        self._answers.put(assignment)

    def result(self) -> Trial | None:
        """Waits for the result of the running trial; None if it was interrupted."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def trial_channel(self, trial: Trial) -> ControllerChannel:
        self._number = trial.number
        return self._open_channel(trial)

    def trial_ended(self, trial: Trial | None) -> None:
        self._put_log()
        self._results.put(trial)

    def next_trial(self) -> Assignment | None:
        self._post(TrialRequested(self._job_start.job))
        return self._answers.get()

    def _main(self) -> None:
        left: Event
        try:
            try:
                with self._log.capture():
                    left = JobLeftWorker(self._job_start.job, self._runtime.run_job(self._job_start, self))
            finally:
                self._put_log()
        except BaseException as error:
            left = ExecutorFailed(error, self._job_start.job)
            self._results.put(error)
        self._leave(self._job_start.job)
        self._results.put(None)  # for a trial that came while the job left, as the session ended
        self._post(left)

    def _put_log(self) -> None:
        path = log_path(self._job_start.job, "job") if self._number is None else log_path(self._number)
        if self._number is not None:
            self._close_channel(self._number)
        self._number = None
        self._log.put(self._runtime.files, path)
        self._log.clear()
