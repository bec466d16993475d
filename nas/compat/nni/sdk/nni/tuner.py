"""The base class of an experiment's own tuner."""

from __future__ import annotations

import logging
from typing import Any

from .recoverable import Recoverable
from .utils import NoMoreTrialError, extract_scalar_reward

_logger = logging.getLogger(__name__)


class Tuner(Recoverable):
    """Generates configurations and receives their results.

    Methods without ``**kwargs``, as in v0.5, are accepted too.
    """

    def generate_parameters(self, parameter_id: int, **kwargs: Any) -> Any:
        """Returns a configuration, any JSON; with multiThread it may wait for results.

        Raises:
            NoMoreTrialError: there is no configuration now.
        """
        raise NotImplementedError("a tuner must define generate_parameters")

    def generate_multiple_parameters(self, parameter_id_list: list[int], **kwargs: Any) -> list[Any]:
        """Returns a configuration for each id; fewer if there are no more."""
        found = []
        for parameter_id in parameter_id_list:
            try:
                found.append(self.generate_parameters(parameter_id, **kwargs))
            except NoMoreTrialError:
                break
        return found

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Receives a final result as it was reported; ``parameters`` is the generated object."""
        raise NotImplementedError("a tuner must define receive_trial_result")

    def receive_customized_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Is never called, because trials cannot be added by hand."""

    def _accept_customized_trials(self, accept: bool = True) -> None:
        """Does nothing, because trials cannot be added by hand."""

    def trial_end(self, parameter_id: int, success: bool, **kwargs: Any) -> None:
        """Receives the end of a trial; ``success`` is False if it failed or was stopped."""

    def update_search_space(self, search_space: Any) -> None:
        """Receives the search space before the first call; an empty string if the experiment has none."""
        raise NotImplementedError("a tuner must define update_search_space")

    def import_data(self, data: list[dict[str, Any]]) -> None:
        """Receives the results of earlier sessions, if the tuner answered differently when asked again."""

    def extract_scalar_reward(self, value: Any, scalar_key: str = "default") -> Any:
        """Calls ``nni.utils.extract_scalar_reward``."""
        return extract_scalar_reward(value, scalar_key)

    def _on_exit(self) -> None:
        """Is called when the experiment ends."""

    def _on_error(self) -> None:
        """Is called after the tuner has raised."""
