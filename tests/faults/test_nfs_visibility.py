"""Two machines on one NFS share: one reads at once what the other publishes, with a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest


@pytest.fixture(scope="module", params=["3", "4.2"])
def counts(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = run_in_guest("two_hosts.py", version=request.param, timeout_s=500)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_published_file_is_read_at_once(counts: dict[str, Any]) -> None:
    """A thousand files that the reader looked up too early are all read at once by reference."""
    assert counts["failures"] == []
    assert counts["handovers"] == 1000
    assert counts["slowest_ms"] < 5000


@pytest.mark.slow
def test_readers_cache_was_stale(counts: dict[str, Any]) -> None:
    """Plain look-ups missed the published names, so the test proves something."""
    assert counts["denied"] >= 800


@pytest.mark.slow
def test_records_are_seen_at_once(counts: dict[str, Any]) -> None:
    """read_if_present and names show a record right after the other machine has published it."""
    assert counts["late_records"] == 0


@pytest.mark.slow
def test_one_of_two_machines_wins(counts: dict[str, Any]) -> None:
    """Each name that both machines publish at the same time has exactly one winner."""
    assert counts["wins"] == [1]


@pytest.mark.slow
def test_heartbeat_is_never_torn(counts: dict[str, Any]) -> None:
    """A name under constant replacement is always read whole, despite stale handles."""
    assert counts["beat_reads"] > 10
    assert counts["torn_beats"] == 0


@pytest.mark.slow
def test_missing_file_names_the_mount(counts: dict[str, Any]) -> None:
    """The error for a lost file names the mount's type and options."""
    assert " nfs" in counts["missing"]
    assert "vers=" in counts["missing"]
