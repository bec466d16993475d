"""The base class of assessors, which modules of tuners may import; an experiment's own assessor is not called."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .recoverable import Recoverable


class AssessResult(Enum):
    """Whether a trial goes on."""

    Good = True
    Bad = False


class Assessor(Recoverable):
    """Judges learning curves."""

    def assess_trial(self, trial_job_id: str, trial_history: list[Any]) -> AssessResult:
        """Returns whether the trial goes on."""
        raise NotImplementedError("an assessor must define assess_trial")

    def trial_end(self, trial_job_id: str, success: bool) -> None:
        """A trial has ended."""
