"""Two sides of one root: what they see of each other, how two machines meet, and what they say where it fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from nas.core.errors import StorageError
from nas.storage.maintenance.guarantees import Promise, Verdict
from nas.storage.maintenance.mailbox import Side, meet
from nas.storage.maintenance.two_host_check import hand_over, hand_over_here
from nas.storage.open import open_root

NAMES = [
    "both see one root",
    "what the other side publishes is read",
    "records of the other side are seen",
    "clocks agree",
    "one of two sides wins",
    "the other side's heartbeat is whole",
]


def verdicts(promises: list[Promise]) -> dict[str, Verdict]:
    return {promise.name: promise.verdict for promise in promises}


def test_two_paths_of_one_folder(tmp_path: Path) -> None:
    """All promises are kept, nothing is left, and that one cache proves little is said."""
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to("root")
    one, other = (open_root(f"{tmp_path}/{name}/check") for name in ("root", "link"))

    found = list(hand_over_here(one, other, n_tries=5))

    assert verdicts(found) == {**dict.fromkeys(NAMES, Verdict.KEPT), "two mounts, two caches": Verdict.RISK}
    assert "nosharecache" in found[-1].remedy
    assert list((tmp_path / "root").iterdir()) == []


def test_each_side_gets_the_same(tmp_path: Path) -> None:
    """Both machines print one and the same table, but for whom the other side is."""
    sides = [Side(open_root(f"{tmp_path}/root"), name, n_tries=5) for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda side: list(hand_over(side)), sides)

    assert here[1:] == there[1:]
    assert [promise.name for promise in here] == NAMES
    assert all(len(promise.times_ms) >= 5 for promise in here if promise.name not in (NAMES[0], NAMES[3]))


def test_memory_may_have_two_sides() -> None:
    """Roots without folders are checked by the same steps."""
    url = f"memory://{uuid4().hex}"

    found = verdicts(list(hand_over_here(open_root(f"{url}/x"), open_root(f"{url}/x"), n_tries=5)))

    assert found == dict.fromkeys(NAMES, Verdict.KEPT)
    assert open_root(url).names("x") == []


def test_two_folders_are_no_root(tmp_path: Path) -> None:
    """Two different folders are told from two mounts of one, by the silence of the other side."""
    one, other = (open_root(f"{tmp_path}/{name}") for name in "ab")

    [promise] = hand_over_here(one, other, limit_s=0.5)

    assert (promise.name, promise.verdict) == (NAMES[0], Verdict.BROKEN)
    assert "mounts of one folder" in promise.remedy


def test_failure_of_one_side_ends_both(tmp_path: Path) -> None:
    """Where one side fails, the other does not wait for it, and says what the failure was."""
    files = open_root(f"{tmp_path}/root")
    other = Side(files, "b")
    other.say("hello", host="far", uid=0, root="/mnt", mount="nfs4")
    other.fail("the disk there is on fire")

    found = list(hand_over(Side(files, "a", limit_s=60.0)))

    assert verdicts(found)[NAMES[1]] == Verdict.BROKEN
    assert "on fire" in found[-1].seen


def test_two_processes_meet(tmp_path: Path) -> None:
    """Of two that look for each other on one root, one becomes a and the other b, in one folder."""
    with ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(lambda root: meet(root, wait_s=30), [open_root(str(tmp_path)) for _ in range(2)]))

    assert sorted(side.name for side in sides) == ["a", "b"]
    assert sides[0].files.url == sides[1].files.url
    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(lambda side: side.exchange("hello", i_am=side.name), sides))
    assert [message["i_am"] for message in heard] == [sides[1].name, sides[0].name]


@pytest.mark.slow
def test_nobody_comes(tmp_path: Path) -> None:
    """Alone, it gives up in time, says what may be wrong, and leaves nothing of its own."""
    with pytest.raises(StorageError, match=r"no other machine came within 0\.6 s"):
        meet(open_root(f"{tmp_path}/root"), wait_s=0.6)

    assert list((tmp_path / "root/_check").iterdir()) == []


@pytest.mark.slow
def test_dead_meeting_is_not_joined(tmp_path: Path) -> None:
    """What a killed check has left is not taken for a machine that waits."""
    root = open_root(f"{tmp_path}/root")
    root.replace("_check/meeting-0000000000000000/beat", b"7")

    with pytest.raises(StorageError, match="no other machine"):
        meet(root, wait_s=1.0)
    assert root.names("_check/meeting-0000000000000000") == ["beat"]


def test_message_is_heard_once_it_is_there(tmp_path: Path) -> None:
    """A message that comes late is heard, one that never comes is waited for no longer than the limit."""
    one, other = (Side(open_root(f"{tmp_path}/root"), name, limit_s=20) for name in "ab")
    timer = threading.Timer(0.3, lambda: other.say("late", n=1))
    timer.start()

    assert one.heard("late") is None
    assert one.hear("late") == {"n": 1}
    with pytest.raises(StorageError, match=r"nothing was heard of the other side for 0\.2 s"):
        one.hear("never", 0.2)
    timer.join()
