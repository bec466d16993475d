"""The limit on failed trials in a row, which ends a search whose trials can't work."""

from __future__ import annotations

from nas.core.trial import State, Trial


class FailureStreak:
    """Counts failed trials in a row within one session.

    Trials that met the deadline do not count.

    Args:
        max_failures: The number of failures in a row that ends the search.
    """

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._n_failures = 0
        self._uncounted: list[Trial] = []

    def add(self, trial: Trial, *, before: int) -> str | None:
        """Adds a result, and returns a message if the limit is reached.

        Args:
            trial: The finished trial.
            before: Results are counted, in order, up to this trial number. Later ones wait for the next call.
        """
        self._uncounted.append(trial)
        due = sorted((t for t in self._uncounted if t.number < before), key=lambda t: t.number)
        self._uncounted = [t for t in self._uncounted if t.number >= before]
        for finished in due:
            if finished.reached_deadline:
                continue
            self._n_failures = self._n_failures + 1 if finished.state == State.FAILED else 0
            if self._n_failures >= self._max_failures:
                lines = (finished.error or "").strip().splitlines()
                return (
                    f"{self._n_failures} trials failed in a row (max_failures={self._max_failures}). "
                    f"The last, trial {finished.number}: {finished.reason}: {lines[-1] if lines else 'no message'}"
                )
        return None
