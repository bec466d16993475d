"""The check of a root: good roots keep every promise and stay as they were, bad ones are told what to change."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from nas.storage.maintenance.backend_check import check_root
from nas.storage.maintenance.guarantees import Promise, Verdict, context
from nas.storage.mounts import find_mount
from nas.storage.open import open_root


class WillingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Believes that no name is taken."""

    protocol = "willing"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("willing://").rstrip("/")

    def exists(self, path: str, **kwargs: Any) -> bool:
        return False


def promises(url: str, n: int = 3) -> dict[str, Promise]:
    root = open_root(url, retry_s=0.1)
    with context(root) as folder:
        return {promise.name: promise for promise in check_root(root.below(folder), n=n)}


def broken(found: dict[str, Promise]) -> list[str]:
    return [name for name, promise in found.items() if promise.verdict == Verdict.BROKEN]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*arguments: str) -> Path:
        done = subprocess.run(["mount", *arguments, folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"can't be mounted here: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", folder], capture_output=True)


def test_good_folder_keeps_every_promise(tmp_path: Path) -> None:
    """Each call and each step of the protocol was tried several times, and took some time."""
    found = promises(str(tmp_path / "root"), n=5)

    assert broken(found) == []
    calls = ("exclusive create", "write, fsync and close", "fsync of a folder", "rename", "hard link")
    for name in (*calls, "records are published", "what was published is read", "one of many writers wins"):
        times = found[name].times_ms
        assert len(times) >= 3, name
        assert all(took_ms > 0 for took_ms in times)
        assert min(times) <= found[name].quantile_ms(0.5) <= found[name].quantile_ms(0.99) <= max(times)
    assert found["names are kept as given"].verdict == Verdict.KEPT


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A root that was not there is not there after the check; one that was, is as it was."""
    promises(str(tmp_path / "new" / "root"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").write_text("kept")
    promises(str(tmp_path / "old"))

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["old", "old/mine"]


def test_memory_serves_one_process() -> None:
    """memory:// keeps its promises, but for one process only, which is told; nothing stays in it."""
    url = f"memory://{uuid4().hex}"
    found = promises(url)

    assert broken(found) == []
    assert found["others see it"].verdict == Verdict.RISK
    assert "this process only" in found["others see it"].seen
    assert open_root(url).names() == []


def test_quantiles() -> None:
    """p50 and p99 are times that were measured: half, and all but one of a hundred, took no longer."""
    promise = Promise(name="x", times_ms=tuple(float(n) for n in range(100, 0, -1)))

    assert promise.quantile_ms(0.5) == 50
    assert promise.quantile_ms(0.99) == 99
    assert Promise(name="x", times_ms=(3.0,)).quantile_ms(0.99) == 3
    assert Promise(name="x").quantile_ms(0.5) is None


def test_read_only_mount_is_told(disk: Callable[..., Path]) -> None:
    """On a read-only file system the first promise is broken, its remedy says so, and nothing else is tried."""
    [promise] = promises(str(disk("-t", "tmpfs", "-o", "ro", "tmpfs") / "root")).values()

    assert promise.verdict == Verdict.BROKEN
    assert promise.seen == "Read-only file system"
    assert "remount it with rw" in promise.remedy


def test_full_disk_is_told(disk: Callable[..., Path]) -> None:
    """A disk that has room for records but not for weights breaks that promise only, and says what to do."""
    found = promises(str(disk("-t", "tmpfs", "-o", "size=4m", "tmpfs")))

    assert broken(found) == ["large files are published", "what was published is read"]
    assert "No space left" in found["large files are published"].seen
    assert "free space" in found["large files are published"].remedy


def test_tmpfs_does_not_outlive_a_restart(disk: Callable[..., Path]) -> None:
    """What is kept in memory is at risk."""
    found = promises(str(disk("-t", "tmpfs", "tmpfs")))

    assert broken(found) == []
    assert found["what is kept outlives a restart"].verdict == Verdict.RISK
    assert "tmpfs" in found["what is kept outlives a restart"].seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_missing_permission_is_told(tmp_path: Path) -> None:
    """Where this user may not write, the remedy names the user and what to do."""
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        [promise] = promises(str(tmp_path / "root")).values()
    finally:
        os.seteuid(0)

    assert promise.verdict == Verdict.BROKEN
    assert promise.seen == "Permission denied"
    assert "uid 65534" in promise.remedy


def test_store_that_lets_all_win_is_told(tmp_path: Path) -> None:
    """Where a name can be taken twice, eight winners are found, and what that means."""
    fsspec.register_implementation("willing", WillingFileSystem, clobber=True)

    found = promises(f"willing://{tmp_path}/root")

    assert broken(found) == ["one of many writers wins"]
    assert "of 8 writers 8 won" in found["one of many writers wins"].seen
    assert "choose another storage.root" in found["one of many writers wins"].remedy


def test_mount_is_found(disk: Callable[..., Path], tmp_path: Path) -> None:
    """A path's mount is the deepest one above it, also for what does not exist yet, with its type and options."""
    mount = find_mount(str(disk("-t", "tmpfs", "-o", "ro,size=64k", "somewhere") / "not" / "yet"))
    outside = find_mount(str(tmp_path / "disk-2"))

    assert mount is not None
    assert (mount.source, mount.kind, mount.is_nfs) == ("somewhere", "tmpfs", False)
    assert mount.has("ro", "soft")
    assert not mount.has("rw", "soft")
    assert outside is not None
    assert outside != mount
