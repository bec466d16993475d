"""The end of a search: the finalists are tested, and the winner is selected and exported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from nas.core.errors import ActionError
from nas.core.lineage import Lineage
from nas.core.ranking import Ranking
from nas.core.tracebacks import error_line
from nas.core.trial import Trial
from nas.core.validation import path_in_errors
from nas.executors.executor import Executor
from nas.search.admission import check_recorded
from nas.spaces.space import Space
from nas.storage.records import Records
from nas.storage.search_records import check_best

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
        winner = self._ranking.winner(trials)
        if winner is None:
            return True
        finalists = {t.number for t in self._ranking.tested(trials)}
        is_tested = not self._has_test or self._records.tests().keys() >= finalists
        best = newest_best(self._records)
        return best is not None and best["trial"] == winner.number and is_tested

    def has_failed(self, trials: Sequence[Trial]) -> bool:
        """Returns whether a finalist's test failed, or the winner's export."""
        winner, best = self._ranking.winner(trials), newest_best(self._records)
        is_exported = winner is None or best is None or best["trial"] != winner.number or best["export"] is not None
        return not is_exported or bool(self._failed_tests(trials))

    def _failed_tests(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Returns the finalists whose newest test failed."""
        if not self._has_test:
            return frozenset()
        failed = {number for number, test in self._records.tests().items() if "metrics" not in test}
        return frozenset(trial.number for trial in self._ranking.tested(trials) if trial.number in failed)

    def select_winner(self, executor: Executor, trials: Sequence[Trial], *, retries: bool = False) -> bool:
        """Tests each finalist once, and exports the winner.

        With ``retries``, failed tests and a failed export are repeated. A winner whose test then succeeds is exported
        again.

        Returns False if there is no winner, or if it was exported before.
        """
        winner = self._ranking.winner(trials)
        if winner is None:
            return False
        tests, tested = self._records.tests(), self._ranking.tested(trials) if self._has_test else []
        failed = self._failed_tests(trials) if retries else frozenset()
        check_recorded((winner, *tested), self._space, self._records)
        for trial in tested:
            if trial.number not in tests or trial.number in failed:
                tests[trial.number] = self._test(executor, trial)
        best = newest_best(self._records)
        if best is not None and best["trial"] == winner.number:
            is_mended = winner.number in failed and "metrics" in tests[winner.number]
            if not (is_mended or (retries and best["export"] is None)):
                return False
        number = 1 if best is None else int(best["number"]) + 1
        exported = self._export(executor, winner)
        record = {
            "number": number,
            "trial": winner.number,
            "point": winner.point,
            "metrics": dict(winner.metrics),
            "test": tests.get(winner.number),
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
            return [f"remarks: failed: {error_line(error)}"]

    def _export(self, executor: Executor, winner: Trial) -> dict[str, Any]:
        try:
            return dict(executor.call("export", winner))
        except ActionError as error:  # the winner's checkpoint remains
            return {"export": None, "files": [], "missing": {"export": str(error).strip().splitlines()[0]}}

    def _test(self, executor: Executor, trial: Trial) -> dict[str, Any]:
        try:
            outcome = executor.call("test", trial)
        except ActionError as error:  # an error in the problem's code does not end the search
            outcome = {"error": str(error).strip().splitlines()[0]}
        record = {"trial": trial.number, **outcome}
        self._records.publish_test(record)
        return record


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
