"""The live handle of a job, which a problem's ``train_many`` receives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nas.core.errors import StorageError
from nas.core.tracebacks import raise_ctrl_c, traceback_of
from nas.core.trial import Trial
from nas.training.attempt import Attempt
from nas.training.messages import JobChannel
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    from nas.training.messages import Assignment, JobStart
    from nas.training.runtime_context import RuntimeContext

logger = logging.getLogger(__name__)


class Job:
    """A job's trials, one after another, for a problem's ``train_many``:

        for run in job.trials():
            ...  # train run.point
            run.finish(accuracy=...)

    Each trial has its own id, record and checkpoint. The tuner is told which job requests it. If its worker
    is lost or the search interrupted, the job starts again elsewhere. So its memory is only a cache.

    Attributes:
        number: The job's id: the number of its first trial.
        index: How many jobs of the search were started before it.
        slot: The slot that it runs on.
        n_finished: How many of its trials have their result, including those before a restart.
        device: ``cpu``, ``cuda`` or ``mps``.
    """

    def __init__(self, runtime: RuntimeContext, job_start: JobStart, channel: JobChannel) -> None:
        self.number = job_start.job
        self.index = job_start.job_index
        self.slot = job_start.slot
        self.n_finished = job_start.n_finished
        self.device = runtime.spec.device
        self._runtime = runtime
        self._channel = channel
        self._given = job_start.first
        self._is_last = False
        self._open: Attempt | None = None
        self._error: BaseException | None = None

    def trials(self, most: int | None = None) -> Iterator[TrialRun]:
        """Yields the job's trials, an interrupted one first.

        Waits for each, and ends when there are no more.

        Call ``run.finish`` before the next trial; a trial without it is FAILED (``abandoned``). An exception in the
        loop's body ends the trial and the job. A ``TrialStopped`` that the body catches ends the trial only.

        Args:
            most: Stop when the job has finished this many trials, including those before a restart. Code that counts
                by itself must read ``n_finished`` first, since a restarted job may have finished some.

        Raises:
            StorageError: the storage failed.
        """
        while (run := self._next(most)) is not None:
            yield run

    def train_each(self) -> None:
        """Trains each trial by the problem's ``train``."""
        for run in self.trials():
            try:
                scores = self._runtime.train(run)
            except BaseException as error:
                raise_ctrl_c(error)
                self._settle(error=error)
            else:
                self._settle(scores)

    def end(self, error: BaseException | None = None) -> str | None:
        """Ends the open trial, if any.

        Returns the traceback of an error that belongs to no trial.

        Raises:
            StorageError: the storage failed.
        """
        self._raise_again()
        if self._open is None and self._given is not None:  # train_many did not take it
            self._begin(self._given)
        if self._open is not None:
            self._settle(error=error) if error is not None else self._abandon()
        elif isinstance(error, StorageError):
            raise error
        elif error is not None:
            text = traceback_of(error)
            logger.error("job %d: code raised between two trials\n%s", self.number, text)
            return text
        return None

    def _raise_again(self) -> None:
        """Raises again what left a trial without a result, if the job caught it."""
        if self._error is not None:
            raise self._error

    def _next(self, most: int | None) -> TrialRun | None:
        self._raise_again()
        self._abandon()
        while not self._is_last and (most is None or self.n_finished < most):
            assignment = self._given or self._channel.next_trial()
            if assignment is None:
                self._is_last = True
            elif (run := self._begin(assignment)) is not None:
                return run
        return None

    def _begin(self, assignment: Assignment) -> TrialRun | None:
        """Returns the run of a trial to train now; None if it already has its result."""
        self._given, self._is_last = None, assignment.is_last
        attempt = Attempt(self._runtime, assignment, self._channel.trial_channel(assignment.trial))
        try:
            result = attempt.begin()
        except BaseException as error:
            self._error = error
            raise
        if result is not None:
            attempt.close()
            self._trial_ended(result)
            return None
        self._open = attempt
        attempt.run.on_finish(self._settle)
        return attempt.run

    def _settle(self, returned: object = None, *, error: BaseException | None = None) -> None:
        self._close(lambda attempt: attempt.settle(returned, error=error))

    def _abandon(self) -> None:
        self._close(Attempt.abandon)

    def _close(self, settle: Callable[[Attempt], Trial | None]) -> None:
        """Ends the open trial, if any."""
        if self._open is None:
            return
        attempt, self._open = self._open, None
        try:
            self._trial_ended(settle(attempt))
        except BaseException as error:
            self._error = error
            raise
        finally:
            attempt.close()

    def _trial_ended(self, trial: Trial | None) -> None:
        self.n_finished += trial is not None
        if trial is None:
            self._is_last = True
        self._channel.trial_ended(trial)
