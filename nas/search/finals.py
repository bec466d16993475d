"""The end of a search: the finalists are tested, and the winner is selected and exported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nas.core.errors import ActionError
from nas.core.lineage import Lineage
from nas.core.ranking import Ranking
from nas.core.tracebacks import error_line
from nas.core.trial import Trial
from nas.core.validation import path_in_errors
from nas.executors.executor import Executor
from nas.search.admission import check_recorded, check_unchanged
from nas.spaces.space import Space
from nas.storage.records import Records
from nas.storage.search_records import check_best
from nas.training.messages import NO_EXPORT, NO_WEIGHTS, PROGRAM

_MAX_REMARKS, _MAX_REMARK = 100, 1_000  # lines, characters of each
_BEST = re.compile(r"best-([0-9]{4,9})\.json")


class WinnerSelection:
    """Selects the winner by validation scores.

    Args:
        records: Stores the test results and ``best-NNNN.json``.
        ranking: Ranks the trials.
        space: The space of valid points.
        has_test: Whether the problem can test finalists.
        remarks: Returns lines on all trials and the winner, for reports.
    """

    def __init__(
        self,
        records: Records,
        ranking: Ranking,
        space: Space,
        *,
        has_test: bool,
        remarks: Callable[[Sequence[Trial], Trial], Sequence[str]] = lambda trials, winner: (),
    ) -> None:
        self._records = records
        self._ranking = ranking
        self._space = space
        self._has_test = has_test
        self._remarks = remarks

    def is_done(self, trials: Sequence[Trial]) -> bool:
        """Returns whether the finalists are tested and the winner is exported, or there is no winner."""
        return self._left(trials, retries=False) == ([], False)

    def can_retry(self, trials: Sequence[Trial]) -> bool:
        """Returns whether a finalist's test or the winner's export failed, or ``is_done`` is false."""
        return self._left(trials, retries=True) != ([], False)

    def _left(self, trials: Sequence[Trial], *, retries: bool) -> tuple[list[Trial], bool]:
        """Returns the finalists to test, and whether a winner is to be exported."""
        if (winner := self._ranking.winner(trials)) is None:
            return [], False
        tests = self._records.tests()
        tested = self._ranking.tested(trials) if self._has_test else []
        failed = {number for number, test in tests.items() if retries and "metrics" not in test}
        best = newest_best(self._records)
        is_exported = best is not None and best["trial"] == winner.number and not (retries and _has_failed(best))
        return [t for t in tested if t.number in failed or t.number not in tests], not is_exported

    def select_winner(self, executor: Executor, trials: Sequence[Trial], *, retries: bool = False) -> bool:
        """Tests each finalist once, and exports the winner.

        A winner whose test succeeds after its export is exported again. With ``retries``, failed tests and a
        failed export are repeated; one that has fewer files than before does not count.

        Returns False if there is no winner, or if it was exported before.
        """
        winner = self._ranking.winner(trials)
        if winner is None:
            return False
        to_test, is_left = self._left(trials, retries=retries)
        check_recorded((winner, *to_test), self._space, self._records)
        for trial in (winner, *to_test):
            check_unchanged(trial, self._records)
        for trial in to_test:
            is_fixed = "metrics" in self._test(executor, trial) and trial.number == winner.number
            is_left = is_left or is_fixed
        if not is_left:
            return False
        best = newest_best(self._records)
        number = 1 if best is None else int(best["number"]) + 1
        exported = self._export(executor, winner)
        if best is not None and best["trial"] == winner.number and len(exported["files"]) < len(best["files"]):
            exported = {name: best[name] for name in ("export", "files", "missing")}
        record = {
            "number": number,
            "trial": winner.number,
            "point": winner.point,
            "metrics": dict(winner.metrics),
            "test": self._records.tests().get(winner.number),
            "ancestors": [t.number for t in Lineage.of(trials).ancestors(winner.number)],
            "time": time.time(),
            "remarks": self._remarks_on(trials, winner),
            **exported,
        }
        self._records.publish(f"best-{number:04d}.json", record)
        return True

    def _remarks_on(self, trials: Sequence[Trial], winner: Trial) -> list[str]:
        try:
            remarks = self._remarks(trials, winner)
            if isinstance(remarks, str):
                raise TypeError(f"remarks returned {remarks[:60]!r}: must return a list of lines")
            return [str(line)[:_MAX_REMARK] for line in remarks[:_MAX_REMARKS]]
        except Exception as error:  # of the problem's code; the winner is known in any case
            return [f"remarks: failed: {self._records.error_text(error_line(error))}"]

    def _export(self, executor: Executor, winner: Trial) -> dict[str, Any]:
        try:
            return dict(executor.call("export", winner))
        except ActionError as error:  # the winner's checkpoint remains
            line = self._records.error_text(str(error).strip().splitlines()[0])
            return {"export": None, "files": [], "missing": {"export": line}}

    def _test(self, executor: Executor, trial: Trial) -> dict[str, Any]:
        try:
            outcome = executor.call("test", trial)
        except ActionError as error:  # an error in the problem's code does not end the search
            outcome = {"error": str(error).strip().splitlines()[0]}
        record = {"trial": trial.number, **outcome}
        self._records.publish_test(record)
        return record


def _has_failed(best: Mapping[str, Any]) -> bool:
    """Returns whether the export of a winner, or that of its program, failed."""
    return best["export"] is None or best["missing"].get(PROGRAM, NO_EXPORT) not in (NO_EXPORT, NO_WEIGHTS)


def newest_best(records: Records) -> dict[str, Any] | None:
    """Returns the newest ``best-NNNN.json``, or None."""
    numbers = [int(found[1]) for name in records.files.names("") if (found := _BEST.fullmatch(name))]
    if not numbers:
        return None
    path = f"best-{max(numbers):04d}.json"
    record = records.read(path)
    if record is not None:
        with path_in_errors(records.url_of(path)):
            check_best(record, max(numbers))
    return record
