"""The limit on failed trials in a row, which ends a search whose trials can't work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from nas.core.trial import Reason, State, Trial

MAX_FAILURES = 8
"""The failures in a row that end a search, unless a number is given."""
MAX_EQUAL = 3
"""The first failures that suffice if all have the same error of the problem's code."""
_OF_CODE = frozenset({Reason.EXCEPTION, Reason.NO_METRIC})


class FailureStreak:
    """Counts failed trials in a row within one session.

    Trials that met the deadline do not count.

    Args:
        max_failures: The number of failures in a row that ends the search. None: 8, or 3 with the same error if no
            trial has worked and none before them still runs.
        has_worked: Whether a trial of an earlier session has a result.
        deterministic: Whether the search refuses ``retry=failed``.
    """

    def __init__(self, max_failures: int | None, *, has_worked: bool = False, deterministic: bool = False) -> None:
        self._remedy = failure_remedy(deterministic=deterministic)
        self._max_failures = MAX_FAILURES if max_failures is None else max_failures
        self._max_equal = None if has_worked or max_failures is not None else MAX_EQUAL
        self._failed: list[Trial] = []
        self._uncounted: list[Trial] = []

    def add(self, trial: Trial, *, before: int, unfinished: Iterable[int] = ()) -> str | None:
        """Adds a result, and returns a message if the limit is reached.

        Args:
            trial: The finished trial.
            before: Results are counted, in order, up to this trial number. Later ones wait for the next call.
            unfinished: Numbers of trials without a result. One below a failure may still work, so equal failures after
                it don't suffice.
        """
        first_unfinished = min(unfinished, default=math.inf)
        self._uncounted.append(trial)
        due = sorted((t for t in self._uncounted if t.number < before), key=lambda t: t.number)
        self._uncounted = [t for t in self._uncounted if t.number >= before]
        for finished in due:
            if finished.reached_deadline:
                continue
            if finished.state != State.FAILED:
                self._failed, self._max_equal = [], None
                continue
            self._failed.append(finished)
            if (message := self._message(first_unfinished)) is not None:
                return message
        return None

    def _message(self, first_unfinished: float) -> str | None:
        """Returns the message if there are too many failures."""
        last, n = self._failed[-1], len(self._failed)
        error = (
            f"trial {last.number}: {last.reason}: {_last_line(last).removesuffix('.')}. {self._remedy}. The command "
            f"`report` with trial={last.number} shows the traceback and the log"
        )
        are_first = all(trial.number < first_unfinished for trial in self._failed)
        are_equal = len(set(map(_kind, self._failed))) == 1 and last.reason in _OF_CODE
        if self._max_equal is not None and n >= self._max_equal and are_first and are_equal:
            return f"the first {n} trials failed with the same error. The last, {error}"
        if n >= self._max_failures:
            return f"{n} trials failed in a row (max_failures={self._max_failures}). The last, {error}"
        return None


def failure_remedy(*, deterministic: bool) -> str:
    """Returns what to do about failed trials."""
    retry = "run the search with retry=failed (and code=changed if its code changed), or "
    return f"Fix the problem, then {'' if deterministic else retry}choose another name"


def _kind(trial: Trial) -> tuple[Reason | None, str]:
    """Returns a trial's reason and error without numbers, which may differ with the point."""
    return trial.reason, re.sub(r"\d[\d.e+-]*", "0", _last_line(trial))


def _last_line(trial: Trial) -> str:
    lines = (trial.error or "").strip().splitlines()
    return lines[-1] if lines else "no message"
