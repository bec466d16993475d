"""The limits on what a search may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nas.core.validation import check_choice, check_int, check_number

DEFAULT_TRIALS = 16
AtDeadline = Literal["finish", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on trials, jobs, hours and GPU-hours. Without any limit, 16 trials.

    The search stage ends early enough to leave hours and GPU-hours for later stages (``nas.search.budget.planner``).

    Attributes:
        trials: Trials of the search stage, failed ones included.
        hours: Wall-clock hours of all sessions, the wait for workers included.
        gpu_hours: GPU-hours in the results. Lost and interrupted attempts do not count.
        jobs: Jobs of the search stage, failed ones included. Running jobs may ask for trials after the last one starts.
        final_share: Share of the hours reserved for later stages while the duration of their trials is unknown.
        at_deadline: ``stop`` stops trials that run when the time of their stage is over; ``finish`` lets them finish.
    """

    trials: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    jobs: int | None = None
    final_share: float = 0.4
    at_deadline: AtDeadline = "stop"

    def __post_init__(self) -> None:
        for name in ("trials", "jobs"):
            if (count := getattr(self, name)) is not None:
                check_int(f"budget.{name}", count, 1)
        for name in ("hours", "gpu_hours"):
            if (hours := getattr(self, name)) is not None:
                check_number(f"budget.{name}", hours, 0, excluded=0)
        check_number("budget.final_share", self.final_share, 0, 1, excluded=1)
        check_choice("budget.at_deadline", self.at_deadline, get_args(AtDeadline))
        if self.trials is None and self.jobs is None and not self.is_timed:
            object.__setattr__(self, "trials", DEFAULT_TRIALS)

    @property
    def is_timed(self) -> bool:
        """Whether hours or GPU-hours are limited."""
        return self.hours is not None or self.gpu_hours is not None

    @property
    def stops_trials(self) -> bool:
        """Whether trials that run at the deadline are stopped."""
        return self.is_timed and self.at_deadline == "stop"

    def allows_trial(self, n_trials: int) -> bool:
        """Returns whether another trial may be proposed after ``n_trials``."""
        return self.trials is None or n_trials < self.trials

    def allows_job(self, n_jobs: int) -> bool:
        """Returns whether another job may start after ``n_jobs``."""
        return self.jobs is None or n_jobs < self.jobs
