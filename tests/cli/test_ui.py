"""``python -m flows.ui``: Prefect's UI beside a search on the same database, and its end."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import chromium
from tests.support.commands import TIMED, Command, run, until

SMALL = (*TIMED, "budget.trials=2", "finalists=1", "runner=threads", "slots=1", "name=shown")


def address(command: Command) -> tuple[str, str]:
    """Waits for the command's two lines. Returns the URL and the password."""
    until(lambda: command.out.count("\n") >= 2 or command.process.poll() is not None, what="the UI's address")
    found = re.fullmatch(r"Prefect's UI: (http://127\.0\.0\.1:\d+)\npassword: (heirloom:\S+)\n", command.out)
    assert found is not None, command.out + command.err
    return found[1], found[2]


def ask(url: str, password: str | None, body: Any) -> Any:
    """Returns what the API of the UI's server answers."""
    headers = {"Content-Type": "application/json"}
    if password is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window."""
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.slow
def test_a_search_appears_while_the_ui_runs(here: Path, tmp_path: Path, browser: Any) -> None:
    """A browser with the password sees a search that ran beside the UI; the database is whole, Ctrl-C ends all."""
    cache = str(tmp_path / "cache")
    with Command(here, "port=0", module="flows.ui", HEIRLOOM_CACHE=cache) as ui:
        url, password = address(ui)
        done = run(here, *SMALL, HEIRLOOM_CACHE=cache)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{url}/api/flow_runs/filter", None, {})
        runs = ask(f"{url}/api/flow_runs/filter", password, {})
        n_tasks = ask(f"{url}/api/task_runs/count", password, {"task_runs": {"name": {"like_": "trial-"}}})
        browser.get(url)
        until(lambda: browser.find_elements("css selector", "input[type=password]"), what="the login")
        browser.find_element("css selector", "input[type=password]").send_keys(f"{password}\n")
        until(lambda: "/login" not in browser.current_url, what="the dashboard")
        browser.get(f"{url}/runs")
        until(lambda: runs[0]["name"] in browser.page_source, what="the run on the page")
        ui.send(signal.SIGINT)
        ended = ui.wait(60)

        assert done.status == 0, done.err
        assert [run["state_type"] for run in runs] == ["COMPLETED"]
        assert n_tasks == 3
        assert ended.status == 0
        assert ended.err.endswith("ended; the database stays\n")
        assert "Traceback" not in ended.err
        assert ui.leftovers() == []
    with sqlite3.connect(tmp_path / "cache" / "prefect" / "prefect.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_sigterm_before_it_answers_ends_it(here: Path, tmp_path: Path) -> None:
    """SIGTERM while the server starts ends command and server; status 0."""
    with Command(here, "port=0", module="flows.ui", HEIRLOOM_CACHE=str(tmp_path / "cache")) as ui:
        until(lambda: "starting" in ui.err, what="the start")
        ui.send(signal.SIGTERM, to_group=False)
        ended = ui.wait(60)

        assert ended.status == 0
        assert "Traceback" not in ended.err
        assert ui.leftovers() == []


def test_a_taken_port_is_one_line(here: Path) -> None:
    """A port on which another process listens is refused with the remedy; status 2."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (here / "prefect").mkdir()
        (here / "prefect" / "prefect.db").touch()
        done = run(here, f"port={port}", module="flows.ui", HEIRLOOM_CACHE=str(here))

    assert done.status == 2
    assert done.complaint.startswith(f"port={port}: must be a port that this process may take")
    assert done.complaint.endswith("Name another, or port=0 for a free one.")


@pytest.mark.slow
@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_a_port_that_cannot_be_is_one_line(here: Path, port: str) -> None:
    """A port is a number up to 65535; status 2."""
    done = run(here, f"port={port}", module="flows.ui")

    assert done.status == 2
    assert done.complaint.startswith("port=")
    assert "must be a whole number" in done.complaint
