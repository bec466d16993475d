"""``python -m flows.report format=html live=true``: the page follows the search, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nas.search.lease import SearchLease
from nas.storage.records import Records
from tests.support.chromium import chromium, column, panel_of
from tests.support.commands import ROOT, environment, until
from tests.support.sample_searches import evolved, trial, write_search

pytestmark = pytest.mark.slow


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window."""
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """The records of a search with twelve trials."""
    return write_search(tmp_path / "root", "s", evolved(12))


def test_page_follows_the_search(browser: Any, records: Records, tmp_path: Path) -> None:
    """While the search runs, a new trial comes into the open page; filter, order and the open trial stay."""
    lease = SearchLease(records)
    page = tmp_path / "s.html"
    words = (sys.executable, "-m", "flows.report", f"storage.root={tmp_path / 'root'}", "name=s", "format=html")
    with subprocess.Popen(
        [*words, "live=true", f"out={page}"], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as command:
        try:
            until(page.is_file, 60)
            browser.get(page.as_uri())
            browser.find_element("id", "hold").click()  # else the page may go while it is used
            assert "loads again every 5.0 s" in browser.find_element("css selector", ".live").text
            panel_of(browser, 9)  # it failed: the filter leaves it out
            browser.find_element("id", "filter").send_keys("state=complete")
            for _ in range(2):
                browser.find_element("css selector", "#table thead button").click()
            before = column(browser, "trial")
            browser.find_element("id", "hold").click()
            late = trial(12, score=0.99, index=10)  # two of the twelve are finals
            records.propose(late)
            records.commit(late)
            until(lambda: "12" in column(browser, "trial"), 60)
            assert column(browser, "trial") == ["12", *before]
            assert browser.find_element("id", "filter").get_attribute("value") == "state=complete"
            title = "return document.querySelector('#trial h2')?.textContent ?? ''"
            until(lambda: browser.execute_script(title).startswith("trial 9: FAILED"), 60)
            lease.close()
            said, _ = command.communicate(timeout=60)
        finally:
            command.kill()
            lease.close()
    assert (command.returncode, said) == (0, f"{page}\n")
    until(lambda: not browser.find_elements("css selector", ".live"), 60)
    assert '"live_s":null' in page.read_text()
    assert browser.get_log("browser") == []
    assert {path.name for path in tmp_path.iterdir()} == {"root", "s.html"}


def test_page_of_a_search_that_does_not_run(records: Records, tmp_path: Path) -> None:
    """The page is written once, and the command says why."""
    words = (sys.executable, "-m", "flows.report", f"storage.root={tmp_path / 'root'}", "name=s", "format=html")
    done = subprocess.run(
        [*words, "live=true", f"out={tmp_path}"], cwd=ROOT, env=environment(), capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 's.html'}\n")
    assert "s does not run now (not finished): its page was written once" in done.stderr
    assert 'class="live"' not in (tmp_path / "s.html").read_text()
