"""A chosen trial in a real browser, and the errors of a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.core.trial import Reason, State, Trial
from nas.storage.open import open_root
from nas.views.page.document import lineage_page
from nas.views.page.failures import failures
from nas.views.snapshot import Snapshot, read_snapshot
from tests.support.chromium import column, shown
from tests.support.sample_searches import BEGAN, evolved, trial, write_search

ERROR = "Traceback (most recent call last):\n  File train.py\nValueError: width {} at https://me:secret@host/"
NETWORK = {
    "network": {
        "input": [1, 8, 8],
        "nodes": [
            {"id": 1, "op": "conv", "inputs": [0], "channels": 8},
            {"id": 2, "op": "add", "inputs": [1, 0]},
            {"id": 3, "op": "dense", "inputs": [2]},
        ],
    }
}


def snapshot_of(trials: list[Trial], folder: Path, **more: Any) -> Snapshot:
    """What the records of a search with these trials say."""
    write_search(folder, "search", trials, **more)
    return read_snapshot(open_root(f"{folder}/search"), BEGAN + 100)


def family() -> list[Trial]:
    """A parent with three children that report curves; one child fails, and one has a network."""

    def reported(number: int, score: float, **more: Any) -> Trial:
        curve = tuple((step, {"accuracy": score * step / 4, "loss": 1 / step}) for step in range(1, 5))
        return replace(trial(number, score=score, **more), curve=curve)

    failed = replace(
        trial(3, parents=(0,), point={"width": 64, "rate": 0.1}), state=State.FAILED, reason=Reason.EXCEPTION,
        error=ERROR.format(64), finished=BEGAN + 4,
    )  # fmt: skip
    return [
        reported(0, 0.5, point={"width": 32, "rate": 0.1}),
        reported(1, 0.6, parents=(0,), point={"width": 24, "rate": 0.1}),
        reported(2, 0.7, parents=(0,), point={"width": 32, "rate": 0.2}),
        failed,
        replace(failed, number=4, index=4, job=4, error=ERROR.format(128)),
        trial(5, parents=(0,), score=0.4, point=NETWORK),
    ]


def test_failures(tmp_path: Path) -> None:
    """Errors that differ only in numbers are together, the newest is shown without passwords; tests count as well."""
    found = failures(snapshot_of(family(), tmp_path, tests={2: {"error": "OSError: no data"}}))

    assert [(failure.reason, failure.trials) for failure in found] == [("exception", (4, 3)), ("test", (2,))]
    assert found[0].message == "ValueError: width 128 at https://me:***@host/"
    assert found[0].text.startswith("Traceback")
    page = lineage_page(snapshot_of(family(), tmp_path / "other"))
    assert "secret" not in page
    assert "ValueError: width 128" in page


def test_changes_in_the_table(tmp_path: Path) -> None:
    """The table says what each child changed, without any script."""
    assert "<td>width 32 → 24</td>" in lineage_page(snapshot_of(family(), tmp_path))


@pytest.mark.slow
def test_panel_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """A click on a trial shows its changes and the curves of parent and siblings; keys go on and close."""
    shown(browser, lineage_page(snapshot_of(family(), tmp_path)), tmp_path)
    panel = browser.find_element("id", "trial")
    assert not panel.is_displayed()

    browser.find_element("css selector", '.tree [data-n="1"]').click()
    assert panel.find_element("css selector", "h2").text == "trial 1: COMPLETE"
    assert panel.find_element("css selector", ".changes").text.split() == ["width", "32", "→", "24"]
    kinds = [line.get_attribute("class") for line in panel.find_elements("css selector", "svg.curve .learning")]
    assert kinds == ["learning sibling", "learning parent", "learning own"]
    panel.find_element("css selector", "select").send_keys("loss")
    assert len(panel.find_elements("css selector", "svg.curve .learning")) == 3
    panel.send_keys("\ue014\ue014")  # two right arrows, one right after the other
    assert panel.find_element("css selector", "pre").text.endswith("ValueError: width 64 at https://me:***@host/")
    panel.send_keys("\ue00c")
    assert not panel.is_displayed()
    assert browser.switch_to.active_element.get_attribute("data-n") == "1"
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_close_scores_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The ticks of a learning curve with close scores have different texts."""
    curve = tuple(enumerate({"accuracy": value} for value in (0.91234, 0.912352)))
    shown(browser, lineage_page(snapshot_of([trial(0, score=0.912352, curve=curve)], tmp_path)), tmp_path)
    browser.execute_script("location.hash = '#trial-0'")
    browser.execute_script("return new Promise((done) => setTimeout(done, 100))")
    ticks = browser.find_elements("css selector", "#trial svg.curve text[text-anchor='end']")
    texts = [tick.get_attribute("textContent") for tick in ticks]

    assert len({*texts}) == len(texts) >= 3


@pytest.mark.slow
def test_architecture_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The network of a chosen trial is drawn: a box for the input and each layer, and a path for each connection."""
    page = lineage_page(snapshot_of(family(), tmp_path))
    shown(browser, page, tmp_path)
    browser.execute_script("location.hash = '#trial-5'")
    browser.execute_script("return new Promise((done) => setTimeout(done, 100))")
    drawn = browser.find_element("css selector", "#trial .architecture")

    assert [box.text.split()[0] for box in drawn.find_elements("css selector", ".number")] == [
        "input", "conv", "add", "dense",
    ]  # fmt: skip
    assert len(drawn.find_elements("css selector", ".flow")) == 4
    assert len(drawn.find_elements("css selector", ".box.new")) == 4


@pytest.mark.slow
def test_conditions_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Conditions of the filter compare numbers and texts of a column; charts dim the other trials."""
    shown(browser, lineage_page(snapshot_of(evolved(50), tmp_path)), tmp_path)
    box = browser.find_element("id", "filter")
    box.send_keys("accuracy>=0.8 width=16")

    assert column(browser, "trial") != []
    assert all(float(text) >= 0.8 for text in column(browser, "metric.accuracy"))
    assert set(column(browser, "point.width")) == {"16"}
    lit = browser.find_elements("css selector", "#curve .score[data-n]:not(.dim)")
    assert sorted(mark.get_attribute("data-n") for mark in lit) == sorted(column(browser, "trial"))
    box.clear()
    box.send_keys("state!=complete")
    assert set(column(browser, "state")) <= {"FAILED", "STOPPED"}


@pytest.mark.slow
def test_page_on_a_phone(browser: Any, tmp_path: Path) -> None:
    """On a phone's width nothing but tree, charts and table is wider than the screen, also with a chosen trial."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        shown(browser, lineage_page(snapshot_of(family(), tmp_path)), tmp_path)
        browser.execute_script("location.hash = '#trial-5'")
        width = "const b = document.documentElement; return [b.scrollWidth, b.clientWidth, innerWidth]"
        assert browser.execute_script(width) == [390, 390, 390]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
