"""The page of a running search, written again until the search ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from nas.core.errors import ConfigurationError
from nas.views.page.document import lineage_page
from nas.views.snapshot import Snapshot

PERIOD_S = 5.0
_MAX_LOAD = 0.25
"""The largest share of the time in which the page of a large search is made."""


def keep_fresh(path: Path, read: Callable[[], Snapshot]) -> None:
    """Writes the page every ``PERIOD_S`` seconds while the search runs, and once after its end.

    The last page does not load again, also if Ctrl-C ends this function.

    Args:
        path: The page, which exists.
        read: Reads the search.

    Raises:
        ConfigurationError: the page can't be replaced.
    """
    period_s, snapshot = PERIOD_S, None
    try:
        while True:
            time.sleep(period_s)
            began = time.monotonic()
            snapshot = read()
            if snapshot.standing != "running":
                return
            _replace(path, lineage_page(snapshot, live_s=period_s))
            period_s = max(PERIOD_S, (time.monotonic() - began) / _MAX_LOAD)
    finally:
        if snapshot is None:
            snapshot = read()
        _replace(path, lineage_page(snapshot))


def _replace(path: Path, page: str) -> None:
    """Replaces the page at once, so that no browser sees a part of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigurationError(f"can't replace {path} ({error.strerror}): set out=PATH to a file") from error
