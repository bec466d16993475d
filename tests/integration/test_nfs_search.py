"""Whole searches on one mount of a real NFS share: reported, read and continued through another mount."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    seen: dict[str, Any] = run_in_guest("whole_search.py", memory="3G", timeout_s=860)
    return seen


@pytest.fixture
def found(seen: dict[str, Any]) -> dict[str, Any]:
    return dict(seen["search"])


@pytest.fixture
def supernet(seen: dict[str, Any]) -> dict[str, Any]:
    return dict(seen["supernet"])


def test_the_search_completes(found: dict[str, Any]) -> None:
    """Worker processes, Prefect's temporary server and records on NFS: four trials, children inherit."""
    assert found["search"]["status"] == 0, found["search"]["error"]
    assert "4 trials (4 COMPLETE)" in found["search"]["output"]
    assert "inherited: 2 trials took 100%" in found["search"]["output"]


def test_the_other_machine_reports_it_at_once(found: dict[str, Any]) -> None:
    """The other mount's report has every trial, although it was asked for before the search existed."""
    rows = json.loads(found["table"]["output"])

    assert found["too early"]["status"] != 0
    assert [(row["trial"], row["state"], row["donor"]) for row in rows] == [
        (0, "COMPLETE", None),
        (1, "COMPLETE", 0),
        (2, "COMPLETE", 0),
        (3, "COMPLETE", None),
    ]
    assert found["page"]["status"] == 0, found["page"]["error"]


def test_the_other_machine_reads_whole_weights(found: dict[str, Any]) -> None:
    """Manifests, packs and the winner's export have the recorded sizes and digests."""
    assert found["weights"]["tensors"] == {str(number): ["bias", "weight"] for number in range(4)}
    assert found["weights"]["winner"] == 3
    assert min(found["weights"]["exported"]) > 0


def test_a_root_may_be_mounted_elsewhere(found: dict[str, Any]) -> None:
    """The same command with the other mount as root finds the search finished."""
    assert found["again"]["status"] == 0, found["again"]["error"]
    assert "search shared is finished" in found["again"]["output"]


def test_supernet_search_continues_on_the_other_machine(supernet: dict[str, Any]) -> None:
    """A search of epochs and subnets, killed -9 on both machines in turn, has the table of an undisturbed one."""
    here, there, calm = supernet["tables"]

    assert all(before < after < len(calm) for before, after in pairwise(supernet["n_results"]))
    assert here == there == calm
    assert sum("supernet_epoch" in row[3] for row in calm) == 3


def test_driver_of_a_vanished_machine_is_replaced_after_a_minute(supernet: dict[str, Any]) -> None:
    """Another host can't see that the driver's process has ended, so it watches the heartbeat for 60 s."""
    takeover = supernet["takeover"]

    assert takeover["status"] == 0
    assert takeover["host"] == "another"
    assert 60 <= takeover["seconds"] < 200  # a poll of 5 s or more on a busy machine does not count
