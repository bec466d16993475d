"""The order in which the tuner of a deterministic search learns results, whatever finishes first."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from nas.core.trial import Trial


class LearningOrder:
    """The trials without a learned result, in the order in which the tuner learns them.

    Ask ``index + 1 + relative_duration * (n_slots - 1)`` and later ones see the result of a trial. So each other slot
    runs ``relative_duration`` trials beside it. If all durations are 1, ask n sees trials 0 to n - slots.

    Args:
        n_slots: The number of trials that run at once.
        trials: The trials without a learned result.
    """

    def __init__(self, n_slots: int, trials: Iterable[Trial] = ()) -> None:
        self._n_slots = n_slots
        self._entries: list[tuple[int, int]] = []  # the first ask that sees the result, and the trial's number
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Adds a proposed trial."""
        n_beside = trial.proposal.relative_duration * (self._n_slots - 1)
        insort(self._entries, (trial.index + 1 + n_beside, trial.number))

    def remove_first(self, n: int) -> None:
        """Removes the first ``n`` trials, which the tuner has learned."""
        del self._entries[:n]

    def numbers(self) -> list[int]:
        """Returns the numbers of the trials."""
        return [number for _, number in self._entries]

    def n_due(self, ask: int) -> int:
        """Returns how many of the results the ask sees."""
        return bisect_right(self._entries, ask, key=lambda entry: entry[0])

    def n_settled(self, n_proposed: int) -> int:
        """Returns how many of the first trials no later proposal comes before."""
        return self.n_due(n_proposed + self._n_slots)
