"""Backend checks: a good root passes them all and stays as it was, and a bad one gets a hint."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from nas.storage.maintenance.backend_checks.check import CheckResult, CheckStatus
from nas.storage.maintenance.backend_checks.folder import check_folder, remove_files
from nas.storage.maintenance.backend_checks.one_host import check_root
from nas.storage.mounts import find_mount
from nas.storage.open import open_root


class OverwritingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A file system that overwrites existing files."""

    protocol = "overwriting"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("overwriting://").rstrip("/")

    def exists(self, path: str, **kwargs: Any) -> bool:
        return False


def check(url: str, n: int = 3) -> dict[str, CheckResult]:
    root = open_root(url, retry_s=0.1)
    with check_folder(root) as folder:
        return {result.name: result for result in check_root(root.subfolder(folder), n=n)}


def failed(found: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in found.items() if result.status == CheckStatus.FAILED]


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


def test_good_folder_passes_every_check(tmp_path: Path) -> None:
    """Each system call and storage operation is tried several times and timed."""
    found = check(str(tmp_path / "root"), n=5)

    assert failed(found) == []
    calls = ("exclusive create", "write, fsync and close", "fsync of a folder", "rename", "hard link")
    for name in (*calls, "records are published", "published files are read", "one of many writers wins"):
        times = found[name].times_ms
        assert len(times) >= 3, name
        assert all(took_ms > 0 for took_ms in times)
        assert min(times) <= found[name].quantile_ms(0.5) <= found[name].quantile_ms(0.99) <= max(times)
    assert found["file names are preserved"].status == CheckStatus.PASSED


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A root that did not exist does not exist after the check; an existing one is unchanged."""
    check(str(tmp_path / "new" / "root"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").write_text("kept")
    check(str(tmp_path / "old"))

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["old", "old/mine"]


@pytest.mark.slow
def test_another_check_ends_seconds_later(tmp_path: Path) -> None:
    """The check that created the root waits with its removal until another, slow one has removed its files."""
    root = open_root(str(tmp_path / "root"))
    with check_folder(root):
        other = "_check/other"
        root.publish(f"{other}/file", [b"x"])
        remover = threading.Timer(4, remove_files, [root.subfolder(other)])
        remover.start()
    remover.join()

    assert list(tmp_path.iterdir()) == []


def test_memory_serves_one_process() -> None:
    """memory:// passes, with a warning that only this process sees it; nothing is left in it."""
    url = f"memory://{uuid4().hex}"
    found = check(url)

    assert failed(found) == []
    assert found["other processes see the files"].status == CheckStatus.WARNING
    assert "this process only" in found["other processes see the files"].observed
    assert open_root(url).names() == []


def test_quantiles() -> None:
    """p50 and p99 are measured times that half, and 99 of 100 tries, did not exceed."""
    result = CheckResult(name="x", times_ms=tuple(float(n) for n in range(100, 0, -1)))

    assert result.quantile_ms(0.5) == 50
    assert result.quantile_ms(0.99) == 99
    assert CheckResult(name="x", times_ms=(3.0,)).quantile_ms(0.99) == 3
    assert CheckResult(name="x").quantile_ms(0.5) is None


def test_read_only_mount(disk: Callable[..., Path]) -> None:
    """On a read-only file system the first check fails with a hint, and no other check runs."""
    [result] = check(str(disk("-t", "tmpfs", "-o", "ro", "tmpfs") / "root")).values()

    assert result.status == CheckStatus.FAILED
    assert result.observed == "Read-only file system"
    assert "remount it with rw" in result.hint


def test_full_disk(disk: Callable[..., Path]) -> None:
    """A disk with space for records but not for weights fails only the checks of large files, with a hint."""
    found = check(str(disk("-t", "tmpfs", "-o", "size=4m", "tmpfs")))

    assert failed(found) == ["large files are published", "published files are read"]
    assert "No space left" in found["large files are published"].observed
    assert "free space" in found["large files are published"].hint


def test_tmpfs_does_not_survive_a_restart(disk: Callable[..., Path]) -> None:
    """A file system in memory gets a warning."""
    found = check(str(disk("-t", "tmpfs", "tmpfs")))

    assert failed(found) == []
    assert found["files survive a restart"].status == CheckStatus.WARNING
    assert "tmpfs" in found["files survive a restart"].observed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_missing_permission(tmp_path: Path) -> None:
    """If this user may not write, the hint names the user and what to do."""
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        [result] = check(str(tmp_path / "root")).values()
    finally:
        os.seteuid(0)

    assert result.status == CheckStatus.FAILED
    assert result.observed == "Permission denied"
    assert "uid 65534" in result.hint


def test_storage_that_overwrites_existing_names(tmp_path: Path) -> None:
    """If a name can be published twice, the check finds eight winners and gives a hint."""
    fsspec.register_implementation("overwriting", OverwritingFileSystem, clobber=True)

    found = check(f"overwriting://{tmp_path}/root")

    assert failed(found) == ["one of many writers wins"]
    assert "8 of 8 writers won" in found["one of many writers wins"].observed
    assert "choose another storage.root" in found["one of many writers wins"].hint


def test_mount_is_found(disk: Callable[..., Path], tmp_path: Path) -> None:
    """A path's mount is the deepest one above it, with type and options, even if the path does not exist yet."""
    mount = find_mount(str(disk("-t", "tmpfs", "-o", "ro,size=64k", "somewhere") / "not" / "yet"))
    outside = find_mount(str(tmp_path / "disk-2"))

    assert mount is not None
    assert (mount.source, mount.kind, mount.is_nfs) == ("somewhere", "tmpfs", False)
    assert mount.has("ro", "soft")
    assert not mount.has("rw", "soft")
    assert outside is not None
    assert outside != mount
