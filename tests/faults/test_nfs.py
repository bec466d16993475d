"""A full share, a read-only one, and a clock that jumps: on a real NFS server, on two real clients, for real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FOUND = [
    *([0, "search", 3, "COMPLETE", 0.03], [1, "search", 1, "COMPLETE", 0.01], [2, "search", 4, "COMPLETE", 0.04]),
    *([3, "search", 1, "COMPLETE", 0.01], [4, "search", 5, "COMPLETE", 0.05]),
    *([5, "final", 5, "COMPLETE", 0.05], [6, "final", 4, "COMPLETE", 0.04]),
]
"""What the search finds on a disk that works."""


@pytest.fixture(scope="module", params=["3", "4.2"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    result: dict[str, Any] = run_in_guest("faults.py", request.param, version=request.param, timeout_s=300)
    return result


def test_full_share_loses_nothing(found: dict[str, Any]) -> None:
    """Who fills a share is told so; the other machine reads all that was published before; nothing is left over."""
    full = found["full"]

    assert full["said"].startswith("can't write /mnt/sa/root/packs/")
    assert full["said"].endswith("the disk is full (No space left on device)")
    assert full["beat"] == "StorageError: can't write /mnt/sa/root/beat: the disk is full (No space left on device)"
    assert full["n_whole"] > 5
    assert full["is_whole"]
    assert full["old_beat"]
    assert full["left"] == sorted(["beat", *map(str, range(full["n_whole"]))])
    assert full["again"]


def test_search_on_a_full_share_goes_on(found: dict[str, Any]) -> None:
    """A search in whose middle the share is full says so; with room again, the same call finds what it would have."""
    filled = found["filled"]

    assert "the disk is full (No space left on device)" in filled["said"]
    assert filled["committed"] == [0, 1]
    assert filled["damages"] == []
    assert filled["later"] == FOUND
    assert filled["checked"] == []


@pytest.mark.parametrize("who", ["remounted", "server"])
def test_read_only_share_is_told(found: dict[str, Any], who: str) -> None:
    """Where the client's mount or the server's disk becomes read-only, writers are told, and readers read on."""
    share = found[who]

    assert share["publish"] == "StorageError: can't write /mnt/sa/root/packs/during: Read-only file system"
    assert share["start"].startswith("ConfigurationError: storage root /mnt/sa/root can't be used")
    assert "Read-only file system" in share["start"]
    assert share["is_read"]
    assert share["after"]


def test_clock_that_jumps_changes_nothing(found: dict[str, Any]) -> None:
    """While the machine's clock jumps by years, a search finds the same, in the same order, and takes the same time."""
    jumping = found["jumping"]

    assert jumping["moved"]
    assert jumping["lineage"] == jumping["again"] == FOUND
    assert jumping["seen"] == list(range(7))
    assert jumping["learned"] == [[], [0], [1], [2], [3], [], []]
    assert jumping["longest_s"] < 60
    assert 0 <= jumping["hours"] < 0.1
    assert jumping["damages"] == []


def test_clock_that_jumps_ends_no_session(found: dict[str, Any]) -> None:
    """A live driver stays the driver when the clock jumps; a killed one is followed at once."""
    alive, free = found["jumping"]["alive"], found["jumping"]["free"]

    assert all(line.startswith("SearchBusyError: the search in /mnt/b/search is driven by pid") for line in alive)
    assert free == ["no error", True]
