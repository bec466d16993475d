"""The rule by which trials share jobs, set by the user or the problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nas.core.errors import ConfigurationError
from nas.core.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The rule by which trials of the search stage share jobs.

    In other stages each trial is a job of its own.

    Attributes:
        trials_per_job: The most trials of one job; None: as many as it requests.
        loops: Whether the problem loops itself (``train_many``), and may leave earlier.
    """

    trials_per_job: int | None = 1
    loops: bool = False

    @classmethod
    def of(cls, trials_per_job: int | str | None, *, loops: bool) -> JobPlan:
        """Returns the plan for a user's setting: a number, ``unlimited``, or None for the problem's default.

        Raises:
            ConfigurationError: the setting is none of these.
        """
        if trials_per_job is None:
            return cls(trials_per_job=None if loops else 1, loops=loops)
        if trials_per_job == "unlimited":
            return cls(trials_per_job=None, loops=loops)
        if isinstance(trials_per_job, bool) or not isinstance(trials_per_job, int) or trials_per_job < 1:
            raise ConfigurationError(
                f"job.trials_per_job={trials_per_job!r}: must be a whole number of at least 1, or unlimited"
            )
        return cls(trials_per_job=trials_per_job, loops=loops)

    @property
    def requests_trials(self) -> bool:
        """Whether a job may request another trial after one has ended."""
        return self.loops or self.trials_per_job != 1

    def is_full(self, n_finished: int) -> bool:
        """Returns whether a job with this many finished trials gets no more."""
        return self.trials_per_job is not None and n_finished >= self.trials_per_job

    def active_jobs(self, in_stage: Sequence[Trial], left: Collection[int]) -> set[int]:
        """Returns the jobs of the search stage that have not ended.

        Args:
            in_stage: All trials of the stage.
            left: The jobs whose code has left by itself, according to the records.
        """
        in_stage = [t for t in in_stage if t.is_counted]
        if not self.requests_trials:
            return {t.job for t in in_stage if not t.is_finished}
        n_finished = Counter(t.job for t in in_stage if t.is_finished)
        return {t.job for t in in_stage if t.job not in left and not self.is_full(n_finished[t.job])}
