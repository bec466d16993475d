"""Every text that names the best trial says if its scores are those of shared weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from flows.views.searches import search_columns, search_lines
from flows.views.summary import print_summary
from flows.views.terminal import open_console, print_search, summary_lines
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.executors.events import Finished, Proposed
from nas.search.pipeline import Summary
from nas.storage.open import open_root
from nas.views.comparison.searches import ComparedSearch
from nas.views.comparison.tables import Comparison, comparison_columns, search_texts
from nas.views.notebook import results_html
from nas.views.page.document import lineage_page
from nas.views.progress import Progress
from nas.views.snapshot import Snapshot, read_snapshot
from nas.views.table import lineage_table
from nas.views.trial_summary import trial_summary
from tests.support.sample_searches import BEGAN, one_shot, write_search

ACCURACY = Metric("accuracy")
MARK = " with shared weights"
TESTED = {"metrics": {"accuracy": 0.29}}
UNTRAINED = "not trained itself: its score ranks subnets, and is no accuracy of the architecture"


def snapshot_of(trials: list[Trial], folder: Path) -> Snapshot:
    write_search(folder, "search", trials, tests={trial.number: TESTED for trial in trials})
    return read_snapshot(open_root(f"{folder}/search"), BEGAN + 100)


def best_subnet(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda t: t.metrics["accuracy"])


@pytest.mark.parametrize("n_finals", [0, 2])
def test_summary(n_finals: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary marks a subnet's score, and not that of a final."""
    trials = one_shot(4, 4, n_finals=n_finals)
    best = best_subnet(trials)
    print_summary(Summary("s", "url", Lineage.of(trials), best, {best.number: TESTED}, None), [ACCURACY], "root")
    lines = capsys.readouterr().out.splitlines()

    [shown] = [line for line in lines if line.startswith("best: ")]
    assert shown.endswith(MARK) == (n_finals == 0)
    assert (UNTRAINED in lines) == (n_finals == 0)
    assert f"test: accuracy 0.2900{'' if n_finals else MARK}" in lines


def test_summary_of_epochs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A search whose subnets have no scores yet has no best trial, and the reason is given."""
    lineage = Lineage.of(one_shot(3, 0))
    print_summary(Summary("s", "url", lineage, None, {}, None), [ACCURACY], "root")

    assert "best: unknown, because only supernet epochs have a score" in capsys.readouterr().out


@pytest.mark.parametrize("n_finals", [0, 2])
def test_report(n_finals: int, tmp_path: Path) -> None:
    """So do the report's last lines and the list of searches."""
    snapshot = snapshot_of(one_shot(4, 4, n_finals=n_finals), tmp_path)
    [said] = [line for line in summary_lines(snapshot) if line.startswith("best so far: ")]

    assert said.count(MARK) == (0 if n_finals else 2)
    assert said.count(f"test accuracy 0.29{MARK}") == (0 if n_finals else 1)
    assert (MARK in search_lines([snapshot])["best"][0]) == (n_finals == 0)
    assert search_columns([snapshot])["best_is_shared"] == [n_finals == 0]


def test_printed_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The terminal's table has the mark and the donor, and no JSON of the points that epochs suggest."""
    print_search(open_console(), snapshot_of(one_shot(3, 2), tmp_path), all_columns=True)
    head, *rows = capsys.readouterr().out.splitlines()

    assert {"donor", "shared_score"} <= set(head.split())
    assert "suggested" not in head.split()
    assert sum(" shared " in row for row in rows) == 3 + 2 * 2


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So does the progress, for earlier trials and new ones."""
    monkeypatch.setattr("nas.views.progress.PLAIN_EVERY_S", 0.0)
    trials = one_shot(4, 4, n_finals=1)
    progress = Progress([ACCURACY], {"search": 20, "final": 1}, trials[:10])
    for done in trials[10:]:
        progress.observe(Proposed(replace(done).as_running()))
        progress.observe(Finished(done))
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == len(trials) - 10
    assert all("mean inherited 100%" in line for line in lines[:-1])
    assert "mean inherited" not in lines[-1]
    assert all(f"{MARK} (trial" in line for line in lines[:-1])
    assert f"best final accuracy {trials[-1].metrics['accuracy']:.4f} (trial {trials[-1].number})" in lines[-1]


def test_table() -> None:
    """The table has donors, and says of each score whether it is shared; other searches have no such column."""
    trials = one_shot(3, 3)
    table = lineage_table(Lineage.of(trials))

    assert table["shared_score"].dtype == "boolean"
    assert table["shared_score"].tolist() == [t.stage == "search" for t in trials]
    assert [None if pd.isna(donor) else donor for donor in table["donor"]] == [t.donor for t in trials]
    assert "shared_score" not in lineage_table(Lineage.of(trials[-2:]))


@pytest.mark.parametrize("n_finals", [0, 2])
def test_tests_of_the_best(n_finals: int, tmp_path: Path) -> None:
    """So do test scores in comparisons, notebooks, the page and summaries of trials."""
    snapshot = snapshot_of(one_shot(4, 4, n_finals=n_finals), tmp_path)
    best, n_marks = snapshot.winner, 0 if n_finals else 1
    assert best is not None
    compared = Comparison.of([ComparedSearch(snapshot=snapshot, budget={})])
    summary = trial_summary(best, snapshot.tests, is_shared=n_finals == 0)

    assert search_texts(compared)["test accuracy"] == [f"0.2900{MARK * n_marks}"]
    assert comparison_columns(compared)["test_is_shared"] == [n_finals == 0]
    assert results_html(snapshot).count(f"test accuracy 0.29{MARK}") == n_marks
    assert lineage_page(snapshot).count(f">test{MARK}<") == n_marks
    assert summary.count(f"test accuracy 0.29{MARK}") == n_marks
