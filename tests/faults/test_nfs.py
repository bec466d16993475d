"""What two machines on a real NFS share see of each other, and faults of the share and of the clock."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOUND = [
    *([0, "search", 3, "COMPLETE", 0.03], [1, "search", 1, "COMPLETE", 0.01], [2, "search", 4, "COMPLETE", 0.04]),
    *([3, "search", 1, "COMPLETE", 0.01], [4, "search", 5, "COMPLETE", 0.05]),
    *([5, "final", 5, "COMPLETE", 0.05], [6, "final", 4, "COMPLETE", 0.04]),
]
"""What the search finds on a disk that works."""


@pytest.fixture(scope="module", params=["3", "4.2"])
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    result: dict[str, Any] = run_in_guest("two_machines.py", request.param, version=request.param, timeout_s=860)
    return result


@pytest.fixture
def counts(seen: dict[str, Any]) -> dict[str, Any]:
    return dict(seen["files"])


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


def test_both_machines_agree_after_a_collection(seen: dict[str, Any]) -> None:
    """Needed weights are readable during the collection; after it both mounts show the same weights."""
    found = seen["collection"]

    assert found["writer"] == found["collector"] == {"weights_deleted": list(range(3, 11)), "n_weights": 4 * 3}
    assert found["n_reads"] >= 9
    assert found["folders"] == [f"{number:06d}-aa" for number in (0, 1, 2, 11)]


def test_other_machines_commits_are_seen_at_once(seen: dict[str, Any]) -> None:
    """One machine's commits and deletions are in another's next answer about donors, 40 of 40 times."""
    assert seen["donors"] == {"commits_seen": 40, "deletions_seen": 40}


def test_another_machine_finds_the_newest_resume_point_at_once(seen: dict[str, Any]) -> None:
    """An attempt on another machine, which had looked before, finds what was published a moment ago."""
    found = seen["resume points"]

    assert found["early"] == [None] * 10
    assert found["late"] == list(range(10))
    assert found["newest"] == list(range(10, 40))
    assert found["left"] == []


@pytest.fixture
def found(seen: dict[str, Any]) -> dict[str, Any]:
    return dict(seen["faults"])


def test_full_share_loses_nothing(found: dict[str, Any]) -> None:
    """A writer on a full share gets an error, the other machine reads all earlier files, and nothing is left over."""
    full = found["full"]

    assert full["said"].startswith("can't write /mnt/sa/root/packs/")
    assert full["said"].endswith("the disk is full (No space left on device)")
    assert full["beat"] == "StorageError: can't write /mnt/sa/root/beat: the disk is full (No space left on device)"
    assert full["n_whole"] > 5
    assert full["is_whole"]
    assert full["old_beat"]
    assert full["left"] == sorted(["beat", *map(str, range(full["n_whole"]))])
    assert full["again"]


def test_search_on_a_full_share_can_continue(found: dict[str, Any]) -> None:
    """A search that fills the share fails with a message; with space, the same call completes it."""
    filled = found["filled"]

    assert "the disk is full (No space left on device)" in filled["said"]
    assert filled["committed"] == [0, 1]
    assert filled["damages"] == []
    assert filled["later"] == FOUND
    assert filled["checked"] == []


@pytest.mark.parametrize("who", ["remounted", "server"])
def test_read_only_share_is_an_error(found: dict[str, Any], who: str) -> None:
    """If the mount or the server's disk becomes read-only, writers get an error, and readers continue."""
    share = found[who]

    assert share["publish"] == "StorageError: can't write /mnt/sa/root/packs/during: Read-only file system"
    assert share["start"].startswith("ConfigurationError: storage root /mnt/sa/root can't be used")
    assert "Read-only file system" in share["start"]
    assert share["is_read"]
    assert share["after"]


def test_clock_that_jumps_changes_nothing(found: dict[str, Any]) -> None:
    """With clock jumps of years a search has the same results, order and durations."""
    jumping = found["jumping"]

    assert jumping["moved"]
    assert jumping["lineage"] == jumping["again"] == FOUND
    assert jumping["seen"] == list(range(7))
    assert jumping["learned"] == [[], [0], [1], [2], [3], [], []]
    assert jumping["longest_s"] < 60
    assert 0 <= jumping["hours"] < 0.1
    assert jumping["damages"] == []


def test_clock_that_jumps_ends_no_session(found: dict[str, Any]) -> None:
    """A running driver keeps its lease when the clock jumps; a killed one is replaced at once."""
    alive, free = found["jumping"]["alive"], found["jumping"]["free"]

    assert all(line.startswith("SearchBusyError: the search in /mnt/b/search is driven by pid") for line in alive)
    assert free == ["no error", True]
