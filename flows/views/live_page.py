"""The page of a running search, written again until the search ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flows.cli.output import print_message
from flows.views.delivery import write_file
from nas.core.errors import StorageError
from nas.views.page.document import lineage_page
from nas.views.snapshot import Snapshot

PERIOD_S = 5.0
_MAX_LOAD = 0.25
"""The largest share of the time in which the page of a large search is made."""
_MAX_FAILURES = 12
"""Reads in a row that may fail: one minute."""


def keep_fresh(path: Path, read: Callable[[], Snapshot], snapshot: Snapshot) -> None:
    """Writes the page every ``PERIOD_S`` seconds while the search runs, and once after its end.

    The last page does not load again, also if an error or Ctrl-C ends this function. If the storage fails, the next
    round reads again.

    Args:
        path: The page, which exists.
        read: Reads the search.
        snapshot: What the page shows.

    Raises:
        ConfigurationError: the page can't be written.
        StorageError: the storage failed ``_MAX_FAILURES`` times in a row.
    """
    period_s, n_failures = PERIOD_S, 0
    try:
        while snapshot.standing == "running":
            time.sleep(period_s)
            began = time.monotonic()
            try:
                snapshot, n_failures = read(), 0
            except StorageError as error:
                n_failures += 1
                _allow(n_failures, error)
                continue
            if snapshot.standing == "running":
                write_file(path, lineage_page(snapshot, live_s=period_s))
            period_s = max(PERIOD_S, (time.monotonic() - began) / _MAX_LOAD)
    finally:
        write_file(path, lineage_page(snapshot))


def _allow(n_failures: int, error: StorageError) -> None:
    """Warns at the first failure in a row, and raises the error at the last."""
    if n_failures == _MAX_FAILURES:
        raise error
    if n_failures == 1:
        print_message(f"the page was not written: {error}. It is tried again every {PERIOD_S:g} s")
