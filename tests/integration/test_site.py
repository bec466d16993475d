"""The documentation site: built strictly, every link followed, searched and measured in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import EnumType
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import nas
from tests.support.api_pages import public_names
from tests.support.chromium import chromium

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PHONE = {"width": 390, "height": 844, "pixelRatio": 2.0}
OVERFLOWING = """
    const width = document.documentElement.clientWidth;
    const clipped = node => node && (getComputedStyle(node).overflowX !== 'visible' || clipped(node.parentElement));
    return [...document.querySelectorAll('article *')]
        .filter(node => node.getBoundingClientRect().right > width + 1 && !clipped(node.parentElement))
        .map(node => `${node.tagName}: ${node.textContent.slice(0, 60)}`);
"""
"""Elements of the text that are wider than the window and in no box that scrolls."""


@dataclass
class Page(HTMLParser):
    """A page of the site: its anchors, its links, and its text outside code."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._in_code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        self._in_code += tag in ("code", "pre", "script", "style")
        if tag == "a" and "href" in found:
            self.links.append(found["href"])

    def handle_endtag(self, tag: str) -> None:
        self._in_code -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._in_code:
            self.texts.append(data)


def read(path: Path) -> Page:
    """Returns a parsed page."""
    page = Page()
    page.feed(path.read_text())
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy by ``zensical build -s``, which fails on a warning."""
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("zensical.toml", "ARCHITECTURE.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "nas").symlink_to(ROOT / "nas")
    command = [str(Path(sys.executable).parent / "zensical"), "build", "-s"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Each page by its address below the site."""
    return {path.relative_to(site).as_posix().removesuffix("index.html"): read(path) for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, as wide as a phone."""
    with chromium(tmp_path_factory.mktemp("chromium"), PHONE) as opened:
        yield opened


def test_links_lead_to_pages_and_headings(site: Path, pages: dict[str, Page]) -> None:
    """Each link of a page to the site leads to a file, and its fragment to an anchor there."""
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"https?:|/", link) or name == "404.html":
                continue
            target, _, fragment = link.partition("#")
            path = (site / name / target).resolve() if target else site / name
            key = path.relative_to(site).as_posix()
            found = pages.get("" if key == "." else f"{key.rstrip('/')}/", None if path.is_dir() else Page())
            if found is None or not path.exists() or (fragment and fragment not in found.anchors):
                broken.append(f"{name}: {link}")

    assert broken == []


def test_no_markup_is_left(pages: dict[str, Page]) -> None:
    """All lists, links, tables, code and snippets are rendered: Python-Markdown and GitHub differ in some."""
    left = re.compile(r"^\s*[*-] |\]\(|``|^\s*\|.*\|$|\*\*|:: *$|--8<--", re.MULTILINE)

    assert [(name, text) for name, page in pages.items() for text in page.texts if left.search(text)] == []


def test_every_page_is_one_click_away(site: Path, pages: dict[str, Page]) -> None:
    """The navigation, which every page has, links to each page."""
    linked = {(site / link.partition("#")[0]).resolve() for link in pages[""].links if not link.startswith("http")}

    assert [name for name in pages if name != "404.html" and site / name not in linked] == []


def test_public_names_are_in_the_reference(pages: dict[str, Page]) -> None:
    """Each public name has an entry under the name that a user imports, and each value of an enum has one."""
    anchors = {anchor for name, page in pages.items() if name.startswith("api/") for anchor in page.anchors}
    names = [name for names in public_names().values() for name in names]
    values = [
        f"nas.{name}.{value}"
        for name in nas.__all__
        if isinstance(kind := getattr(nas, name), EnumType)
        for value in kind.__members__
    ]

    assert [name for name in [*names, *values] if name not in anchors] == []


def test_search_finds_a_public_name(address: str, phone: Any) -> None:
    """A word typed into the search box gives a link to its page, in a browser."""
    from selenium.common.exceptions import NoSuchShadowRootException, StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    phone.get(f"{address}/")
    phone.find_element(By.CSS_SELECTOR, "label[for=__search]").click()
    wait = WebDriverWait(phone, 60, ignored_exceptions=[NoSuchShadowRootException, StaleElementReferenceException])
    box = wait.until(lambda _: phone.switch_to.active_element.shadow_root)
    wait.until(lambda _: box.find_elements(By.CSS_SELECTOR, "input"))[0].send_keys("ElasticConv2d")

    def leads_there(_: object) -> bool:
        """Returns whether the first link does. There may be links for a part of the word before."""
        links = box.find_elements(By.CSS_SELECTOR, "a")
        return bool(links) and links[0].get_attribute("href").endswith("#nas.ElasticConv2d")

    assert wait.until(leads_there)


def test_pages_fit_a_phone(address: str, phone: Any, pages: dict[str, Page]) -> None:
    """No text, table or picture of a page is cut off at a phone's width; wide tables and code scroll in their box."""
    wide = {}
    for name in (name for name in pages if not name.startswith("decisions/")):
        phone.get(f"{address}/{name}")
        if found := phone.execute_script(OVERFLOWING):
            wide[name] = found[:3]

    assert wide == {}


def test_a_page_loads_nothing_from_other_hosts(address: str, phone: Any) -> None:
    """Scripts, styles, fonts and pictures come from the site."""
    phone.get(f"{address}/tutorial/first_search/")
    loaded = phone.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")

    assert loaded
    assert [url for url in loaded if not url.startswith(address)] == []
