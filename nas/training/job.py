"""What a problem's ``train_many`` is given: a job, and with it one trial after another."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nas.core.errors import StorageError
from nas.core.tracebacks import traceback_of
from nas.core.trial import Trial
from nas.training.attempt import Attempt
from nas.training.messages import JobChannel
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    from nas.training.messages import Assignment, JobStart
    from nas.training.runtime_context import RuntimeContext

logger = logging.getLogger(__name__)


class Job:
    """What a problem's ``train_many`` is given: its trials, one after another::

        for run in job.trials():
            ...  # train run.point
            run.finish(accuracy=...)

    Each is a trial of its own, with its own id, record and checkpoint; the tuner is told which job asks. A job whose
    worker was lost, or whose search was interrupted, begins anew elsewhere: what it keeps in memory is a cache.

    Attributes:
        number: The job's id: the number of its first trial.
        index: How many jobs of the search were begun before it.
        slot: Where it stays.
        n_finished: How many of its trials have their result, those of its earlier stays included.
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

    def trials(self, most: int | None = None) -> Iterator[TrialRun]:
        """Yields the job's trials, the interrupted one first; waits for each, and ends when there are no more.

        Args:
            most: Ends when the job has finished so many, in all of its stays. Code that counts for itself must look at
                ``n_finished`` before it asks: a job that begins anew may have done its share.

        Call ``run.finish`` before the next one: a trial that is left without is FAILED (``abandoned``). What raises in
        the loop's body ends the job, and its trial; a ``TrialStopped`` that the body catches ends the trial only.

        Raises:
            StorageError: the store failed.
        """
        while (run := self._next(most)) is not None:
            yield run

    def train_each(self) -> None:
        """Trains each trial by the problem's ``train``."""
        for run in self.trials():
            try:
                scores = self._runtime.problem.train(run)
            except (Exception, SystemExit) as error:
                self._settle(error=error)
            else:
                self._settle(scores)

    def end(self, error: BaseException | None = None) -> str | None:
        """Settles the trial that is left open; gives the traceback of an error that belongs to no trial.

        Raises:
            StorageError: the store failed.
        """
        if self._open is None and self._given is not None:  # train_many has not looked at it
            self._begin(self._given)
        if self._open is not None:
            self._settle(error=error) if error is not None else self._abandon()
        elif isinstance(error, StorageError):
            raise error
        elif error is not None:
            text = traceback_of(error)
            logger.error("job %d ended between two trials\n%s", self.number, text)
            return text
        return None

    def _next(self, most: int | None) -> TrialRun | None:
        if self._open is not None:
            self._abandon()
        while not self._is_last and (most is None or self.n_finished < most):
            assignment = self._given or self._channel.next_trial()
            if assignment is None:
                self._is_last = True
            elif (run := self._begin(assignment)) is not None:
                return run
        return None

    def _begin(self, assignment: Assignment) -> TrialRun | None:
        """Returns the run of a trial that is to be trained now; None where it has its result without."""
        self._given, self._is_last = None, assignment.is_last
        attempt = Attempt(self._runtime, assignment, self._channel.trial_channel(assignment.trial))
        if (found := attempt.begin()) is not None:
            attempt.close()
            self._tell(found)
            return None
        self._open = attempt
        attempt.run.on_finish(self._finish)
        return attempt.run

    def _finish(self, scores: Mapping[str, float]) -> None:
        self._settle(scores)

    def _settle(self, returned: object = None, *, error: BaseException | None = None) -> None:
        if self._open is None:
            return
        attempt, self._open = self._open, None
        try:
            self._tell(attempt.settle(returned, error=error))
        finally:
            attempt.close()

    def _abandon(self) -> None:
        if self._open is None:
            return
        attempt, self._open = self._open, None
        try:
            self._tell(attempt.abandon())
        finally:
            attempt.close()

    def _tell(self, trial: Trial | None) -> None:
        self.n_finished += trial is not None
        if trial is None:
            self._is_last = True
        self._channel.trial_ended(trial)
