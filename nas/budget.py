"""How much a search may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nas.errors import ConfigurationError

DEFAULT_TRIALS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Trials of the search stage (failed ones count), hours and GPU-hours (these count everything).

    Nothing set means 16 trials. When hours or GPU-hours are spent, no further trial is proposed; those that run may
    finish, and the finalists are trained.
    """

    trials: int | None = None
    hours: float | None = None
    gpu_hours: float | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and not isinstance(self.trials, int):
            raise ConfigurationError(f"budget.trials ({self.trials!r}) must be a whole number")
        for name in ("trials", "hours", "gpu_hours"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise ConfigurationError(f"budget.{name} ({value!r}) must be greater than 0")
        if self.trials is None and self.hours is None and self.gpu_hours is None:
            object.__setattr__(self, "trials", DEFAULT_TRIALS)

    def allows(self, *, n_trials: int, hours: float, gpu_hours: float) -> bool:
        """Whether another trial may be proposed after this much was spent."""
        return (
            (self.trials is None or n_trials < self.trials)
            and (self.hours is None or hours < self.hours)
            and (self.gpu_hours is None or gpu_hours < self.gpu_hours)
        )
