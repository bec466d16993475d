"""The base class that v0.5 to v0.8 had for tuners of multi-phase experiments."""

from __future__ import annotations

from typing import Any

from ..tuner import Tuner


class MultiPhaseTuner(Tuner):
    """A tuner that is told which job asks, and whose result it is."""

    def generate_parameters(self, parameter_id: int, trial_job_id: str | None = None, **kwargs: Any) -> Any:
        """Returns a configuration for this job."""
        raise NotImplementedError("a tuner must define generate_parameters")

    def receive_trial_result(
        self, parameter_id: int, parameters: Any, value: Any, trial_job_id: str | None = None, **kwargs: Any
    ) -> None:
        """A final result of this job's."""
        raise NotImplementedError("a tuner must define receive_trial_result")
