"""Large searches: which trials the page shows, and that it says what it leaves out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Stage
from nas.core.ranking import competitors
from nas.core.supernet import UNTRAINED
from nas.core.trial import State, Trial
from nas.views.page.document import lineage_page
from nas.views.page.selection import select
from nas.views.page.sheet import sheet_of
from nas.views.snapshot import Snapshot
from tests.support.chromium import column, shown, tip_of_dot
from tests.support.sample_searches import BEGAN, IDENTITY, evolved, trial


def snapshot_of(trials: list[Trial]) -> Snapshot:
    """The state of a search with these trials, without a storage."""
    metrics, stages = (Metric("accuracy"),), ("search", "final")
    winner = next(iter(competitors(trials, metrics, stages)), None)
    return Snapshot(
        name="large", url="/large", identity=IDENTITY, about={}, metrics=metrics, stages=stages,
        lineage=Lineage.of(trials), tests={}, best=None, winner=winner, session=None, taken=BEGAN,
        final=Stage(name="final"),
    )  # fmt: skip


def test_relevant_trials() -> None:
    """Of too many, the winner, later stages, running, best, newest and failed ones stay, all with their ancestors."""
    trials = evolved(400)
    running = replace(trials[5], state=State.RUNNING, metrics={}, finished=None)
    snapshot = snapshot_of([*trials[:5], running, *trials[6:]])
    drawn = select(snapshot, max_drawn=120).drawn
    kept = {trial.number for trial in drawn}

    assert snapshot.winner is not None
    assert len(drawn) == 120
    assert {snapshot.winner.number, 398, 399, 5, 397} <= kept
    assert {trial.number for trial in snapshot.lineage.best(snapshot.metric, 10)} <= kept
    assert any(trial.state == State.FAILED for trial in drawn)
    assert all(elder.number in kept for number in kept for elder in snapshot.lineage.ancestors(number))


def test_relevant_trials_of_a_long_line() -> None:
    """A line of thousands leaves room: the winner brings a third, and the newest and failed trials are there."""
    line = [trial(n, parents=(n - 1,) if n else (), score=0.5 + n / 1e5, generation=n) for n in range(3000)]
    failed = replace(trial(3000, parents=(1000,), generation=1001), state=State.FAILED)
    drawn = select(snapshot_of([*line, failed]), max_drawn=300).drawn
    kept = {t.number for t in drawn}

    assert len(kept) == 300
    assert {2999, 3000, 2900, 1000} <= kept


def test_listed_trials_are_judged_among_all() -> None:
    """Front, shared scores and changes in the table depend on trials without a row, too."""

    def sized(number: int, accuracy: float, flops: float, **more: Any) -> Trial:
        return trial(number, score=accuracy, metrics={"accuracy": accuracy, "flops": flops}, **more)

    trials = [
        sized(0, 0.6, 15.0),
        sized(1, 0.5, 20.0, point={"width": 8, "rate": 0.1}),
        sized(2, 0.4, 10.0, parents=(0, 1), point={"width": 32, "rate": 0.1}),
        sized(3, 0.3, 30.0, donor=0, policies=UNTRAINED),
        sized(4, 0.3, 30.0, donor=0, policies=UNTRAINED, point={"width": 64, "rate": 0.1}),
    ]
    snapshot = replace(snapshot_of(trials), metrics=(Metric("accuracy"), Metric("flops", "minimize")))
    sheet = sheet_of(snapshot, Lineage.of(trials[1:]))
    texts = {head.name: [row.cells[place][1] for row in sheet.rows] for place, head in enumerate(sheet.heads)}

    assert [row.trial for row in sheet.rows] == [1, 2, 3, 4]
    assert texts["front"] == ["", "front", "", ""]
    assert texts["shared_score"] == ["", "", "", "shared"]
    assert texts["changed"] == ["", "width 16 → 32", "", ""]


def test_drawn_trials_are_judged_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that scores a trained one again has no shared score, also if that one has no mark in the tree."""
    monkeypatch.setattr(select, "__kwdefaults__", {"max_listed": 3, "max_drawn": 3})
    better = [trial(n, score=0.9 - n / 10, point={"width": n, "rate": 0.1}) for n in range(1, 5)]
    again = trial(5, score=0.1, donor=0, policies=UNTRAINED)
    page = lineage_page(snapshot_of([trial(0, score=0.1), *better, again]))
    names = re.findall(r'aria-label="(trial \d+, [^"]*)"', page)

    assert len(names) == 3
    [name] = [name for name in names if name.startswith("trial 5, ")]
    assert "shared" not in name


def test_small_search_is_whole() -> None:
    """A search within the limits is shown as a whole, and the page leaves nothing out."""
    snapshot = snapshot_of(evolved(60))
    selection = select(snapshot)

    assert (selection.n_unlisted, selection.n_undrawn) == (0, 0)
    assert 'id="omitted"' not in lineage_page(snapshot)


def test_page_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page counts the trials without a mark and without a row, and names the commands that have them."""
    monkeypatch.setattr(select, "__kwdefaults__", {"max_listed": 200, "max_drawn": 50})
    page = lineage_page(snapshot_of(evolved(300)))
    said = " ".join(re.sub(r"<[^>]+>", "", page.split('id="omitted"')[1].split("</p>")[0]).split())

    assert "50 trials of 300 have a mark in the tree and details" in said
    assert "The table lists 200 trials and leaves out 100" in said
    assert "heirloom report name=large format=csv" in said


@pytest.mark.slow
def test_undrawn_trials_in_a_browser(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dot of a trial without a mark in the tree has its short tip."""
    monkeypatch.setattr(select, "__kwdefaults__", {"max_listed": 200, "max_drawn": 50})
    snapshot = snapshot_of(evolved(300))
    drawn = select(snapshot).drawn
    undrawn = next(t for t in snapshot.lineage if t.number not in drawn and t.state == State.COMPLETE)
    shown(browser, lineage_page(snapshot), tmp_path)

    assert tip_of_dot(browser, undrawn.number).startswith(f"trial {undrawn.number}: accuracy 0.")
    assert tip_of_dot(browser, 299).startswith("trial 299: COMPLETE\nstage final")


@pytest.mark.slow
def test_ten_thousand_trials_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The page of 10,000 trials has few elements; its table finds, sorts and pages all of them."""
    shown(browser, lineage_page(snapshot_of(evolved(10_000))), tmp_path)

    assert browser.execute_script("return document.querySelectorAll('*').length") < 30_000
    assert len(column(browser, "trial")) == 500
    assert browser.find_element("id", "paged").text == "rows 1 to 500 of 10,000"
    browser.find_element("css selector", '[data-page="1"]').click()
    assert column(browser, "trial")[0] == "500"
    browser.find_element("id", "filter").send_keys("trial=777,9999")
    assert column(browser, "trial") == ["777", "9999"]
    browser.execute_script("location.hash = '#trial-8000'")
    browser.execute_script("return new Promise((done) => setTimeout(done, 300))")
    assert browser.find_element("id", "trial").is_displayed()
    assert browser.get_log("browser") == []
