"""Checks by two hosts: their results, how the hosts find each other, and how failures are reported."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from nas.core.errors import StorageError
from nas.storage.maintenance.backend_checks.check import CheckResult, CheckStatus
from nas.storage.maintenance.backend_checks.peer import Peer, find_peer
from nas.storage.maintenance.backend_checks.two_hosts import check_two_mounts, check_with_peer
from nas.storage.open import open_root

NAMES = [
    "both hosts see one root",
    "files of the other host are read",
    "records of the other host are seen",
    "clocks agree",
    "one of two hosts wins",
    "heartbeats of the other host are whole",
]


def statuses(results: list[CheckResult]) -> dict[str, CheckStatus]:
    return {result.name: result.status for result in results}


def test_two_paths_of_one_folder(tmp_path: Path) -> None:
    """All checks pass, nothing is left, and a warning says that both paths share a cache."""
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    one, other = (open_root(f"{tmp_path}/{name}/check") for name in ("root", "link"))

    found = list(check_two_mounts(one, other, n_tries=5))

    assert statuses(found) == {
        **dict.fromkeys(NAMES, CheckStatus.PASSED),
        "the mounts have separate caches": CheckStatus.WARNING,
    }
    assert "nosharecache" in found[-1].hint
    assert list((tmp_path / "root").iterdir()) == []


def test_both_hosts_get_the_same(tmp_path: Path) -> None:
    """Both hosts get the same results, except for the name of the other host."""
    peers = [Peer(open_root(f"{tmp_path}/root"), name, n_tries=5) for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda peer: list(check_with_peer(peer)), peers)

    assert here[1:] == there[1:]
    assert [result.name for result in here] == NAMES
    assert all(len(result.times_ms) >= 5 for result in here if result.name not in (NAMES[0], NAMES[3]))


def test_memory_may_have_two_peers() -> None:
    """Roots without folders get the same checks."""
    url = f"memory://{uuid4().hex}"

    found = statuses(list(check_two_mounts(open_root(f"{url}/x"), open_root(f"{url}/x"), n_tries=5)))

    assert found == dict.fromkeys(NAMES, CheckStatus.PASSED)
    assert open_root(url).names("x") == []


def test_two_folders_are_no_root(tmp_path: Path) -> None:
    """Two different folders fail the first check, since no message arrives."""
    one, other = (open_root(f"{tmp_path}/{name}") for name in "ab")

    [result] = check_two_mounts(one, other, timeout_s=0.5)

    assert (result.name, result.status) == (NAMES[0], CheckStatus.FAILED)
    assert "mounts of one folder" in result.hint


def test_failure_of_one_host_ends_both(tmp_path: Path) -> None:
    """If one host fails, the other does not wait for it and reports the failure."""
    files = open_root(f"{tmp_path}/root")
    other = Peer(files, "b")
    other.send("hello", host="far", uid=0, root="/mnt", mount="nfs4")
    other.send_failure("the disk there is on fire")

    found = list(check_with_peer(Peer(files, "a", timeout_s=60.0)))

    assert statuses(found)[NAMES[1]] == CheckStatus.FAILED
    assert "on fire" in found[-1].observed


def test_two_processes_find_each_other(tmp_path: Path) -> None:
    """Of two processes on one root, one becomes a and the other b, in one folder."""
    with ThreadPoolExecutor(2) as pool:
        peers = list(pool.map(lambda root: find_peer(root, wait_s=30), [open_root(str(tmp_path)) for _ in range(2)]))

    assert sorted(peer.name for peer in peers) == ["a", "b"]
    assert peers[0].files.url == peers[1].files.url
    with ThreadPoolExecutor(2) as pool:
        received = list(pool.map(lambda peer: peer.exchange("hello", i_am=peer.name), peers))
    assert [message["i_am"] for message in received] == [peers[1].name, peers[0].name]


@pytest.mark.slow
def test_no_other_host_comes(tmp_path: Path) -> None:
    """Without another host it fails in time with a hint, and leaves nothing."""
    with pytest.raises(StorageError, match=r"no other machine came within 0\.6 s"):
        find_peer(open_root(f"{tmp_path}/root"), wait_s=0.6)

    assert list((tmp_path / "root/_check").iterdir()) == []


@pytest.mark.slow
def test_abandoned_meeting_is_not_joined(tmp_path: Path) -> None:
    """A meeting that a killed check has left is not joined."""
    root = open_root(f"{tmp_path}/root")
    root.replace("_check/meeting-0000000000000000/beat", b"7")

    with pytest.raises(StorageError, match="no other machine"):
        find_peer(root, wait_s=1.0)
    assert root.names("_check/meeting-0000000000000000") == ["beat"]


def test_late_message_is_received(tmp_path: Path) -> None:
    """A late message is received, and a missing one is an error after the timeout."""
    one, other = (Peer(open_root(f"{tmp_path}/root"), name, timeout_s=20) for name in "ab")
    timer = threading.Timer(0.3, lambda: other.send("late", n=1))

    assert one.poll("late") is None
    timer.start()
    assert one.receive("late") == {"n": 1}
    with pytest.raises(StorageError, match=r"no message from the other host within 0\.2 s"):
        one.receive("never", 0.2)
    timer.join()
