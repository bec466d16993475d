"""The summary of a search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.views.summary import end_by_tuner, failure_of, print_summary
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Stage
from nas.core.supernet import EPOCH
from nas.core.trial import Proposal, Reason, State
from nas.search.pipeline import Summary
from tests.support.sample_searches import trial


@pytest.mark.parametrize(("end", "deterministic"), [("", False), (".", False), ("", True)])
def test_failed_search_names_the_error_and_the_remedy(end: str, deterministic: bool) -> None:
    """The remedy follows the last trial's error after one period; only with deterministic=true it has no retry."""
    failed = trial(
        0, state=State.FAILED, reason=Reason.EXCEPTION, error=f"Traceback\nproblem.text=a: must be a text{end}"
    )
    summary = Summary("name", "url", Lineage.of([failed]), None, {}, None)

    retry = "" if deterministic else "run the search with retry=failed (and code=changed if its code changed), or "
    assert failure_of(summary, deterministic=deterministic) == (
        "no trial of 1 has a score; the last, trial 0: problem.text=a: must be a text. Fix the problem, then "
        f"{retry}choose another name"
    )


def test_the_error_of_a_search_without_time_names_both_limits() -> None:
    """With GPU-hours alone, more hours would not help."""
    late = trial(0, state=State.FAILED, reason=Reason.DEADLINE, error="stopped before its first report")
    summary = Summary("name", "url", Lineage.of([late]), None, {}, None)

    expected = "no trial of 1 has a score: none ended in time. Raise budget.hours (or gpu_hours)"
    assert failure_of(summary) == expected


def test_a_shortened_winner_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary names the share of its epochs, and the remedies."""
    searched = trial(0, score=0.5)
    proposal = Proposal(point={"width": 8}, parents=(0,), fidelity=0.1)
    final = replace(trial(1, score=0.6, stage="final"), proposal=proposal)
    summary = Summary("name", "url", Lineage.of([searched, final]), final, {}, None)
    print_summary(summary, [Metric("accuracy")], "heirloom", final=Stage(name="final", policies=frozenset()))

    line = "trained for 10% of its epochs: raise budget.hours (or gpu_hours), or go on with more_epochs=N"
    assert line in capsys.readouterr().out


def test_many_hours_are_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """More than a thousand hours have no exponent."""
    summary = Summary("name", "url", Lineage.of([trial(0, score=0.5)]), None, {}, None)
    print_summary(summary, [Metric("accuracy")], "heirloom", hours=(1234.5, 2000))

    assert "hours: 1,234 of 2,000\n" in capsys.readouterr().out


def test_a_supernet_epoch_proposed_again_has_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary leaves out a failed epoch that its tuner proposed again, as ``retry=failed`` does."""
    failed = trial(0, point={EPOCH: 0}, state=State.FAILED, reason=Reason.EXCEPTION, error="ValueError: no")
    lineage = Lineage.of([failed, trial(1, point={EPOCH: 0}, score=0.5)])
    print_summary(Summary("name", "url", lineage, None, {}, None), [Metric("accuracy")], "heirloom")
    shown = capsys.readouterr().out

    assert "1 FAILED" in shown
    assert "failed:" not in shown
    assert "trial=0" not in shown


@pytest.mark.parametrize(("n_rechecked", "best", "n_finalists"), [(3, None, [2]), (1, None, []), (3, 2, [])])
def test_more_finalists_are_of_the_stage_before(
    n_rechecked: int, best: int | None, n_finalists: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """More finals are suggested only if the stage before them has more points, and the plan does not set the number."""
    points = [{"width": width} for width in range(5)]
    trials = [trial(n, score=0.5, point=point) for n, point in enumerate(points)]
    trials += [trial(5 + n, score=0.5, point=points[n], parents=(n,), stage="recheck") for n in range(n_rechecked)]
    final = trial(len(trials), score=0.6, point=points[0], parents=(5,), stage="final")
    summary = Summary("name", "url", Lineage.of([*trials, final]), final, {}, None)
    print_summary(summary, [Metric("accuracy")], "root", final=Stage(name="final", best=best))
    lines = capsys.readouterr().out.splitlines()

    assert [int(line.partition("finalists=")[2]) for line in lines if "finalists=" in line] == n_finalists


def test_end_by_the_tuner_counts_its_proposals() -> None:
    """A retry, and a trial that goes on training another, are no proposals."""
    trials = [trial(0, score=0.5), trial(1, state=State.FAILED), trial(2, score=0.5, index=1, retry_of=1)]
    trials.append(trial(3, parents=(0,), score=0.6, more_epochs=5))

    assert end_by_tuner(Lineage.of(trials), "search", 16) == "the tuner has no more proposals: 2 of 16 trials"
