"""Fixtures of the page's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chromium import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, which logs what it asks the network for."""
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened
