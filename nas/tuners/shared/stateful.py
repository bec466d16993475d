"""The one exception to pure tuners: one that lives in a process of its own, remembers, and answers when it is ready."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from nas.core.lineage import Lineage
from nas.core.trial import Trial
from nas.tuners.base import Tuner


class StatefulTuner(Tuner):
    """Asked like any tuner, between ``begin`` and ``end``; WAIT and STOP are meant for the job that was asked for.

    It is told each result when it comes, and says itself when it has another answer than WAIT.
    """

    @abstractmethod
    def begin(self, lineage: Lineage, wake: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Starts it, as it was after all that the lineage tells.

        Args:
            lineage: The search stage's trials; what proposals had learned is in their records.
            wake: To be called, by any thread, when it may have another answer than WAIT.
            fail: To be called, by any thread, with the error that ends the search.

        Raises:
            SearchFailedError: it can't be started.
        """

    @abstractmethod
    def notice(self, trial: Trial) -> None:
        """Tells it a result of the search stage; returns at once."""

    @abstractmethod
    def notice_late(self, trial: Trial, result: str) -> None:
        """Tells it what a trial gave after its result, in its own words; that may come before ``notice``."""

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether it has been asked for what it has not answered: then it will call ``wake`` or ``fail``."""

    @abstractmethod
    def settle(self) -> None:
        """Waits until it has taken in all results.

        Raises:
            SearchFailedError: it has failed.
        """

    @abstractmethod
    def end(self) -> None:
        """Ends it, whatever it does."""
