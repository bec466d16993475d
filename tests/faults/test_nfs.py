"""A full share, a read-only one, and a jumping clock, on a real NFS server with two clients."""

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
