"""The base class of assessors, for modules that import it.

An experiment's own assessor is not supported.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from .recoverable import Recoverable


class AssessResult(Enum):
    """Whether a trial continues."""

    Good = True
    Bad = False


class Assessor(Recoverable):
    """Decides from learning curves which trials continue."""

    def assess_trial(self, trial_job_id: str, trial_history: list[Any]) -> AssessResult:
        """Returns whether the trial continues."""
        raise NotImplementedError("an assessor must define assess_trial")

    def trial_end(self, trial_job_id: str, success: bool) -> None:
        """Receives the end of a trial."""
