"""How much a search may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nas.errors import ConfigurationError

DEFAULT_TRIALS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Trials and jobs of the search stage (failed ones count), hours and GPU-hours (these count everything).

    Nothing set means 16 trials. When its jobs are spent, no further job is begun; those that live go on asking. When
    hours or GPU-hours are spent, no further trial is proposed; those that run may finish; finalists are trained.
    """

    trials: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "jobs"):
            if (count := getattr(self, name)) is not None and not isinstance(count, int):
                raise ConfigurationError(f"budget.{name} ({count!r}) must be a whole number")
        for name in ("trials", "jobs", "hours", "gpu_hours"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise ConfigurationError(f"budget.{name} ({value!r}) must be greater than 0")
        if self.trials is None and self.jobs is None and self.hours is None and self.gpu_hours is None:
            object.__setattr__(self, "trials", DEFAULT_TRIALS)

    def spent(self, *, n_trials: int, hours: float, gpu_hours: float) -> str | None:
        """Which part of it forbids another trial after this much: ``trials``, ``hours`` or ``gpu_hours``; or None."""
        used = {"trials": n_trials, "hours": hours, "gpu_hours": gpu_hours}
        return next((name for name, n in used.items() if (most := getattr(self, name)) is not None and n >= most), None)

    def allows_job(self, n_jobs: int) -> bool:
        """Whether a new job may begin after so many."""
        return self.jobs is None or n_jobs < self.jobs
