"""The base class of tuners that keep state, in a process of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from nas.core.lineage import Lineage
from nas.core.trial import Trial
from nas.tuners.base import Tuner


class StatefulTuner(Tuner):
    """A tuner that keeps state and may answer later. It is asked between ``start`` and ``close``.

    WAIT and STOP count only for the job that it was asked for. It receives each result when it arrives, and calls
    ``on_ready`` when it may answer something other than WAIT.
    """

    may_be_inner: ClassVar[bool] = False

    @abstractmethod
    def start(self, lineage: Lineage, on_ready: Callable[[], None], on_error: Callable[[BaseException], None]) -> None:
        """Starts the tuner in the state that follows from the lineage.

        Args:
            lineage: The search stage's trials; each proposal records the results that were learned before it.
            on_ready: To be called, from any thread, when the tuner may answer something other than WAIT.
            on_error: To be called, from any thread, with the error that ends the search.

        Raises:
            SearchFailedError: the tuner can't be started.
        """

    @abstractmethod
    def add_result(self, trial: Trial) -> None:
        """Adds a result of the search stage; returns at once."""

    @abstractmethod
    def add_extra_result(self, trial: Trial, result: str) -> None:
        """Adds a further result of a finished trial, as text; may come before ``add_result``."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether an ask is unanswered, so that ``on_ready`` or ``on_error`` will be called."""

    @abstractmethod
    def drain(self) -> None:
        """Waits until all results are processed.

        Raises:
            SearchFailedError: the tuner failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the tuner, also during an ask."""
