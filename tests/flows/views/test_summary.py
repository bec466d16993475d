"""The summary of a search."""

from __future__ import annotations

import pytest

from flows.views.summary import failure_of
from nas.core.lineage import Lineage
from nas.core.trial import Reason, State
from nas.search.pipeline import Summary
from tests.support.sample_searches import trial


@pytest.mark.parametrize("end", ["", "."])
def test_failed_search_names_the_error_and_the_remedy(end: str) -> None:
    """The remedy follows the last trial's error after one period, also if the error ends with one."""
    failed = trial(
        0, state=State.FAILED, reason=Reason.EXCEPTION, error=f"Traceback\nproblem.text=a: must be a text{end}"
    )
    summary = Summary("name", "url", Lineage.of([failed]), None, {}, None)

    assert str(failure_of(summary)).startswith(
        "no trial of 1 has a score; the last, trial 0: problem.text=a: must be a text. Fix the problem, then add "
    )
