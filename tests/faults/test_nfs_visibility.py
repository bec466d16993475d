"""Two machines on one NFS share: one reads at once what the other publishes, with a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["3", "4.2"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = run_in_guest("two_machines.py", version=request.param, timeout_s=560)
    return found


@pytest.fixture
def counts(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["files"])


def test_every_published_file_is_read_at_once(counts: dict[str, Any]) -> None:
    """A thousand files that the reader looked up too early are all read at once by reference."""
    assert counts["failures"] == []
    assert counts["handovers"] == 1000
    assert counts["slowest_ms"] < 5000


def test_readers_cache_was_stale(counts: dict[str, Any]) -> None:
    """Plain look-ups missed the published names, so the test proves something."""
    assert counts["denied"] >= 800


def test_records_are_seen_at_once(counts: dict[str, Any]) -> None:
    """read_if_present and names show a record right after the other machine has published it."""
    assert counts["late_records"] == 0


def test_one_of_two_machines_wins(counts: dict[str, Any]) -> None:
    """Each name that both machines publish at the same time has exactly one winner."""
    assert counts["wins"] == [1]


def test_heartbeat_is_never_torn(counts: dict[str, Any]) -> None:
    """A name under constant replacement is always read whole, despite stale handles."""
    assert counts["beat_reads"] > 10
    assert counts["torn_beats"] == 0


def test_missing_file_names_the_mount(counts: dict[str, Any]) -> None:
    """The error for a lost file names the mount's type and options."""
    assert " nfs" in counts["missing"]
    assert "vers=" in counts["missing"]


def test_both_machines_agree_after_a_collection(found: dict[str, Any]) -> None:
    """Needed weights are readable during the collection; after it both mounts show the same weights."""
    seen = found["collection"]

    assert seen["writer"] == seen["collector"] == {"weights_deleted": list(range(3, 11)), "n_weights": 4 * 3}
    assert seen["n_reads"] >= 9
    assert seen["folders"] == [f"{number:06d}-aa" for number in (0, 1, 2, 11)]


def test_other_machines_commits_are_seen_at_once(found: dict[str, Any]) -> None:
    """One machine's commits and deletions are in another's next answer about donors, 40 of 40 times."""
    assert found["donors"] == {"commits_seen": 40, "deletions_seen": 40}


def test_another_machine_finds_the_newest_resume_point_at_once(found: dict[str, Any]) -> None:
    """An attempt on another machine, which had looked before, finds what was published a moment ago."""
    seen = found["resume points"]

    assert seen["early"] == [None] * 10
    assert seen["late"] == list(range(10))
    assert seen["newest"] == list(range(10, 40))
    assert seen["left"] == []
