"""Chromium without a window, and the pages in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium(profile: Path, phone: Mapping[str, float] | None = None) -> Iterator[Any]:
    """A driver of Chromium, which logs what it asks the network for; its window may be a phone's."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    flags = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={profile}",
    )
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    if phone is not None:
        options.page_load_strategy = "eager"
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": dict(phone)})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    if phone is None:
        opened.set_window_size(1400, 1000)
    try:
        yield opened
    finally:
        opened.quit()


def shown(browser: Any, text: str, folder: Path) -> str:
    """Opens a page from a file; gives its address."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(file.as_uri())
    return file.as_uri()


def column(browser: Any, name: str) -> list[str]:
    """A column of the table, as it stands."""
    script = """
        const at = [...document.querySelectorAll("#table thead th")].findIndex((th) => th.textContent === arguments[0]);
        return [...document.querySelectorAll("#table tbody tr:not([hidden])")].map((row) => row.cells[at].textContent);
    """
    found: list[str] = browser.execute_script(script, name)
    return found


def tip_of_dot(browser: Any, trial: int) -> str:
    """The tip of a trial's dot in the chart of scores."""
    script = """
        const dot = document.querySelector(`#curve .score[data-n="${arguments[0]}"]`);
        dot.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
        const tip = document.querySelector("#tip");
        return tip.hidden ? "" : tip.textContent;
    """
    found: str = browser.execute_script(script, trial)
    return found


def panel_of(browser: Any, trial: int) -> tuple[str, str]:
    """The title and the summary of the panel of a trial."""
    browser.execute_script(f"location.hash = '#trial-{trial}'")
    browser.execute_script("return new Promise((done) => setTimeout(done, 100))")
    script = "return ['h2', '.summary'].map((part) => document.querySelector(`#trial ${part}`).textContent)"
    title, summary = browser.execute_script(script)
    return title, summary
