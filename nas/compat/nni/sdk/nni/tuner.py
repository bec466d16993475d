"""The base class of an experiment's own tuner."""

from __future__ import annotations

import logging
from typing import Any

from .recoverable import Recoverable
from .utils import NoMoreTrialError, extract_scalar_reward

_logger = logging.getLogger(__name__)


class Tuner(Recoverable):
    """Makes configurations, and learns of their results. Signatures of v0.5, without ``**kwargs``, are as good."""

    def generate_parameters(self, parameter_id: int, **kwargs: Any) -> Any:
        """Returns a configuration, any JSON; may wait for results where multiThread is true.

        Raises:
            NoMoreTrialError: there is none now.
        """
        raise NotImplementedError("a tuner must define generate_parameters")

    def generate_multiple_parameters(self, parameter_id_list: list[int], **kwargs: Any) -> list[Any]:
        """As many configurations; fewer where there are no more."""
        found = []
        for parameter_id in parameter_id_list:
            try:
                found.append(self.generate_parameters(parameter_id, **kwargs))
            except NoMoreTrialError:
                break
        return found

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """A final result, as it was reported; ``parameters`` is the object that was generated."""
        raise NotImplementedError("a tuner must define receive_trial_result")

    def receive_customized_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Never called: no trials are added by hand."""

    def _accept_customized_trials(self, accept: bool = True) -> None:
        """Of no effect: no trials are added by hand."""

    def trial_end(self, parameter_id: int, success: bool, **kwargs: Any) -> None:
        """A configuration has its result (True), or failed or was stopped (False)."""

    def update_search_space(self, search_space: Any) -> None:
        """The search space, before anything is generated; an empty text where the experiment has none."""
        raise NotImplementedError("a tuner must define update_search_space")

    def import_data(self, data: list[dict[str, Any]]) -> None:
        """Results of a session before, for a tuner that answered otherwise when it was asked again."""

    def extract_scalar_reward(self, value: Any, scalar_key: str = "default") -> Any:
        """As ``nni.utils.extract_scalar_reward``."""
        return extract_scalar_reward(value, scalar_key)

    def _on_exit(self) -> None:
        """Called when the experiment ends."""

    def _on_error(self) -> None:
        """Called when the tuner has raised."""
