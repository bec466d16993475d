"""Where commands are started, and a Prefect server that they may share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.engine.server import TemporaryServer


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """An empty folder to start commands in."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def api_url() -> Iterator[str]:
    """A server for PREFECT_API_URL, which spares a command the start of its own."""
    with TemporaryServer() as server:
        yield server.wait_until_healthy()
