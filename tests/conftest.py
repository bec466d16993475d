"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings

settings.register_profile("shared", deadline=None)  # other processes take their share of a small machine
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def nothing_stays_in_memory() -> Iterator[None]:
    """Forgets what a test has left under ``memory://``: each listing there walks all that the process ever put."""
    before = set(MemoryFileSystem.store)
    yield
    for path in MemoryFileSystem.store.keys() - before:
        del MemoryFileSystem.store[path]
