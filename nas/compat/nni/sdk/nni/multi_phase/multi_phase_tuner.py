"""The base class of multi-phase tuners in NNI v0.5 to v0.8."""

from __future__ import annotations

from typing import Any

from ..tuner import Tuner


class MultiPhaseTuner(Tuner):
    """A tuner that receives the job id with each call and each result."""

    def generate_parameters(self, parameter_id: int, trial_job_id: str | None = None, **kwargs: Any) -> Any:
        """Returns a configuration for this job."""
        raise NotImplementedError("a tuner must define generate_parameters")

    def receive_trial_result(
        self, parameter_id: int, parameters: Any, value: Any, trial_job_id: str | None = None, **kwargs: Any
    ) -> None:
        """Receives a final result of this job."""
        raise NotImplementedError("a tuner must define receive_trial_result")
