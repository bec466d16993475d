"""The timeline of slots, the policy plan and the budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.views.page.document import lineage_page
from nas.views.page.dots import MAX_MARKS
from nas.views.page.plan import policy_plan
from nas.views.page.timeline import slot_timeline
from nas.views.snapshot import read_snapshot
from tests.support.chromium import shown
from tests.support.sample_searches import BEGAN, evolved, trial, write_search

ACCURACY = Metric("accuracy")


def timed(number: int, slot: int | None, start: float, end: float | None, **changes: Any) -> Trial:
    """A trial that trained in a slot for some time."""
    return replace(trial(number, score=0.5), slot=slot, started=BEGAN + start, finished=end and BEGAN + end, **changes)


def test_idle_time() -> None:
    """Each slot has a row with a bar for each trial, in proportion to time, and its idle share."""
    trials = [timed(0, 0, 0, 100), timed(1, 1, 0, 25), timed(2, 1, 75, 100)]
    found = slot_timeline(Lineage.of(trials), ACCURACY, now=BEGAN + 200)
    assert found is not None

    assert found.summary.startswith("2 slots trained 75% of 1 min 40 s, and were idle 25%.")
    assert [text.text for text in found.chart.ticks if text.text.endswith("%")] == ["0%", "50%"]
    places = [tuple(float(value) for value in mark.place.split()) for mark in found.chart.marks]
    assert places[0][1] != places[1][1] == places[2][1]
    left, right = found.chart.frame.left, found.chart.frame.right
    assert [(x - left) / (right - left) for x, _ in places] == pytest.approx([0, 0, 0.75], abs=0.01)


def test_pauses_between_sessions() -> None:
    """A night between two sessions is no idle time: it is cut out and marked."""
    trials = [timed(0, 0, 0, 100), timed(1, 0, 50_000, 50_100)]
    found = slot_timeline(Lineage.of(trials), ACCURACY, now=BEGAN + 60_000)
    assert found is not None

    assert "1 slot trained 100% of 3 min 20 s, and was idle 0%" in found.summary
    assert [path.kind for path in found.chart.lines] == ["pause"]
    assert "pause: no trial ran" in [item.text for item in found.chart.legend]


def test_running_trials_last_until_now() -> None:
    """A running trial's bar ends at the time of the snapshot; without a started trial there is no timeline."""
    running = timed(0, 3, 0, None, state=State.RUNNING, metrics={})
    found = slot_timeline(Lineage.of([running, timed(1, None, 0, 50)]), ACCURACY, now=BEGAN + 100)
    assert found is not None

    texts = [text.text for text in found.chart.ticks]
    assert texts[:5] == ["idle", "no slot", "50%", "slot 3", "0%"]
    assert sorted(mark.kind for mark in found.chart.marks) == ["bar complete", "bar running"]
    assert slot_timeline(Lineage.of([trial(0)]), ACCURACY, now=BEGAN) is None


def test_timeline_of_very_many_trials() -> None:
    """Bars of very many trials are one path for each state, and every trial is within it."""
    trials = [timed(n, n % 4, n // 4, n // 4 + 1) for n in range(MAX_MARKS + 400)]
    found = slot_timeline(Lineage.of(trials), ACCURACY, now=BEGAN + 1e6)
    assert found is not None

    assert found.chart.marks == ()
    assert [path.kind for path in found.chart.lines] == ["bars complete"]
    assert "4 slots trained 100%" in found.summary


def test_plan_and_budget(tmp_path: Path) -> None:
    """Stages show policies, states, shares of a full training and the best; the budget what is used of each limit."""
    cost = {"epochs_share": 0.25, "scale_share": 0.5, "gpu_seconds": 36.0}  # half of the width or of the images
    trials = [replace(t, cost={**t.cost, **cost}) for t in evolved(50)]
    records = write_search(tmp_path, "search", trials)
    budget = {"trials": 64, "hours": 2.0, "gpu_hours": None, "jobs": None, "final_share": 0.4, "at_deadline": "stop"}
    _begin_session(records, budget)
    plan = policy_plan(read_snapshot(open_root(f"{tmp_path}/search"), BEGAN + 100))

    search, final = plan.stages
    assert (search.name, search.policies) == ("search", "EARLY_STOP + SHARE_PARAMS")
    assert search.share == "25% of epochs, 50% of size"
    assert (final.policies, final.states) == ("none: trained in full", "2 complete")
    assert "(trial " in search.best
    used = {row.name: (row.used, row.limit) for row in plan.budget}
    assert used == {"trials": (48, 64), "hours": (0.6, 2.0), "GPU-hours": (pytest.approx(0.5), None)}


def test_amounts_of_the_budget(tmp_path: Path) -> None:
    """Limits are shown as they were given, and great amounts in full."""
    records = write_search(tmp_path, "search", [trial(0, score=0.5, cost={"seconds": 1.5, "gpu_seconds": 444_960.0})])
    _begin_session(records, {"hours": 1.25, "gpu_hours": 1200.5})
    page = lineage_page(read_snapshot(open_root(f"{tmp_path}/search"), BEGAN + 100))

    assert "0.6 of 1.25<" in page
    assert "124 of 1200.5<" in page


@pytest.mark.slow
def test_heads_of_the_plan_stand_above_its_cells(browser: Any, tmp_path: Path) -> None:
    """Each head of the plan's table begins, or ends if it holds numbers, where its cells do."""
    write_search(tmp_path, "search", evolved(12))
    shown(browser, lineage_page(read_snapshot(open_root(f"{tmp_path}/search"), BEGAN + 100)), tmp_path)
    script = """
        const edge = (cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            const box = text.getBoundingClientRect();
            return Math.round(cell.matches(".n") ? box.right : box.left);
        };
        const edges = (row) => [...row.cells].map((cell) => cell.textContent ? edge(cell) : null);
        return ["thead tr", "tbody tr"].map((rows) => edges(document.querySelector(`#plan ${rows}`)));
    """
    heads, cells = browser.execute_script(script)

    assert len(heads) == len(cells) == 6
    assert [head for head, cell in zip(heads, cells, strict=True) if cell is not None] == [
        cell for cell in cells if cell is not None
    ]


@pytest.mark.parametrize("budget", [None, [], {"trials": "many", "hours": True}, {"trials": -1, "jobs": 10**400}])
def test_budget_of_a_foreign_session(tmp_path: Path, budget: Any) -> None:
    """A session record with another budget, or none, leaves the page without limits."""
    records = write_search(tmp_path, "search", evolved(12))
    _begin_session(records, budget)
    snapshot = read_snapshot(open_root(f"{tmp_path}/search"), BEGAN + 100)

    assert {row.limit for row in policy_plan(snapshot).budget} == {None}
    assert "no limit" in lineage_page(snapshot)


def _begin_session(records: Records, budget: Any) -> None:
    session = records.read("sessions/0000.json") or {}
    session = {name: value for name, value in session.items() if name != "digest"}
    records.publish("sessions/0001.json", {**session, "session": 1, "settings": {"budget": budget}})
    records.publish("sessions/0001.beat", {"count": 1, "time": BEGAN, "hours": 0.5, "ended": True})
