"""Disks that fail at any call: committed files stay, and no partial file is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, MissingError, StorageError
from nas.core.spec import Spec
from nas.search.definition import Search
from nas.storage.blobs import BlobStore
from nas.storage.lazy_weights import StoredWeights
from nas.storage.maintenance.verification import verify_search
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.faulty_disk import FaultyDisk
from tests.support.problems import InOrderTuner, ScoreProblem

FULL = (errno.ENOSPC, errno.EDQUOT)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyDisk]:
    try:
        disk = FaultyDisk(tmp_path_factory.mktemp("faulty"))
    except OSError as error:
        pytest.skip(str(error))
    yield disk
    disk.close()


@pytest.fixture
def files(disk: FaultyDisk, request: pytest.FixtureRequest) -> BlobStore:
    """Returns a root on disk with a file in ``packs`` and one in ``trials``."""
    files = open_root(str(disk.place / f"root-{os.urandom(4).hex()}"), retry_s=0.2)
    files.publish("packs/whole", [b"whole"])
    files.publish("trials/whole", [b"whole"], exclusive=True)
    return files


def left(files: BlobStore) -> list[str]:
    """Returns every file of the root, unfinished ones too."""
    root = Path(files.url)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


WHOLE = ["packs/whole", "trials/whole"]


class TestPublishing:
    @pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ESTALE])
    @pytest.mark.parametrize("call", ["create", "write", "fsync", "close", "rename", "link"])
    def test_failed_call_publishes_nothing(self, disk: FaultyDisk, files: BlobStore, call: str, error: int) -> None:
        """Any failing call is a StorageError in one line with path and reason, and leaves no file."""
        path = "trials/new" if call == "link" else "packs/new"
        with disk.failing(call, error), pytest.raises(StorageError) as caught:
            files.publish(path, [b"x" * 300_000], exclusive=call == "link")

        assert f"{path}: " in str(caught.value)
        assert os.strerror(error) in str(caught.value)
        assert ("the disk is full" in str(caught.value)) == (error in FULL)
        assert "\n" not in str(caught.value)
        assert left(files) == WHOLE
        assert files.read(files.publish(path, [b"again"], exclusive=call == "link")) == b"again"

    def test_failed_fsync_is_final(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A failed fsync is not repeated on the same file, since the system may have dropped the data."""
        with disk.failing("fsync", errno.EIO, times=1), pytest.raises(StorageError, match="Input/output error"):
            files.publish("packs/new", [b"1"])

        assert disk.n_calls("fsync") == 1
        assert left(files) == WHOLE

    @pytest.mark.parametrize("exclusive", [False, True])
    def test_name_that_may_not_last_is_an_error(self, disk: FaultyDisk, files: BlobStore, exclusive: bool) -> None:
        """If the folder's fsync fails, the writer gets an error, and the file is whole."""
        with disk.failing("fsyncdir", errno.EIO), pytest.raises(StorageError, match="packs/new: Input/output error"):
            files.publish("packs/new", [b"1"], exclusive=exclusive)

        assert files.read_if_present("packs/new") == b"1"

    def test_full_disk_in_the_middle_leaves_nothing(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A disk that fills during a large file keeps no part of it."""
        with disk.failing("write", errno.ENOSPC, skip=2), pytest.raises(StorageError, match="the disk is full"):
            files.publish("packs/new", [bytes(8_000_000)])

        assert left(files) == WHOLE

    def test_folder_that_can_not_be_made_is_an_error(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A new folder that the disk refuses is a StorageError, and can be created later."""
        with disk.failing("mkdir", errno.ENOSPC), pytest.raises(StorageError, match="the disk is full"):
            files.publish("manifests/new", [b"1"])

        assert files.read(files.publish("manifests/new", [b"1"])) == b"1"

    @pytest.mark.parametrize("call", ["write", "fsync", "close", "rename"])
    def test_failed_heartbeat_keeps_the_previous_one(self, disk: FaultyDisk, files: BlobStore, call: str) -> None:
        """A heartbeat that can't be replaced stays whole."""
        files.replace("beat", b"1")
        with disk.failing(call, errno.EIO), pytest.raises(StorageError):
            files.replace("beat", b"22")

        assert files.read_if_present("beat") == b"1"

    def test_failing_cleanup_hides_no_error(self, disk: FaultyDisk, files: BlobStore) -> None:
        """If the unfinished file can't be removed either, the first error is raised, and the file is never listed."""
        files.publish("packs/first", [b"1"])
        with disk.failing("unlink", errno.EIO), pytest.raises(AlreadyPublishedError):
            files.publish("trials/whole", [b"2"], exclusive=True)

        assert len(left(files)) == 4
        assert files.names("trials") == ["whole"]


class TestLostReplies:
    def test_rename_that_happened_is_success(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A rename that reports "no such file" but succeeded, as NFSv3 does after a lost reply, is a success."""
        with disk.failing("rename", errno.ENOENT, after=True):
            reference = files.publish("packs/new", [b"1" * 5000])
            files.replace("beat", b"2")

        assert files.read(reference) == b"1" * 5000
        assert files.read_if_present("beat") == b"2"
        assert left(files) == ["beat", "packs/new", *WHOLE]

    def test_rename_that_did_not_happen_is_an_error(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A rename that reports "no such file" and did nothing is a StorageError."""
        with disk.failing("rename", errno.ENOENT), pytest.raises(StorageError, match="packs/new: No such file"):
            files.publish("packs/new", [b"1"])
        assert left(files) == WHOLE

    def test_rename_over_other_contents_is_an_error(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A name with other contents does not count as the writer's own file."""
        with disk.failing("rename", errno.ENOENT), pytest.raises(StorageError, match="packs/whole: No such file"):
            files.publish("packs/whole", [b"other"])
        assert files.read_if_present("packs/whole") == b"whole"

    def test_link_that_happened_is_success(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A link that reports "exists" because of its own first request is a success."""
        with disk.failing("link", errno.EEXIST, after=True):
            reference = files.publish("trials/new", [b"1"], exclusive=True)

        assert files.read(reference) == b"1"
        assert left(files) == ["packs/whole", "trials/new", "trials/whole"]

    @pytest.mark.parametrize("call", ["rename", "link"])
    def test_error_after_the_work_leaves_it_whole(self, disk: FaultyDisk, files: BlobStore, call: str) -> None:
        """If a server fails after its work, the writer gets an error, and readers find the whole file."""
        with disk.failing(call, errno.EIO, after=True), pytest.raises(StorageError, match="Input/output error"):
            files.publish("trials/new", [b"1" * 5000], exclusive=call == "link")

        assert files.read_if_present("trials/new") == b"1" * 5000

    def test_file_system_without_links_is_named(self, disk: FaultyDisk, files: BlobStore) -> None:
        """Without hard links, the check of the root fails in one line, and nothing is left."""
        with (
            disk.failing("link", errno.EPERM),
            pytest.raises(ConfigurationError, match=r"root.*hard links.*Choose another storage\.root"),
        ):
            files.check_writable()
        assert left(files) == WHOLE


class TestReading:
    @pytest.mark.parametrize(
        ("call", "error"), [("open", errno.ESTALE), ("read", errno.ESTALE), ("open", errno.ENOENT)]
    )
    def test_temporary_errors_are_retried(self, disk: FaultyDisk, files: BlobStore, call: str, error: int) -> None:
        """A stale handle, and a name that a cache denies for a while, are retried."""
        reference = files.publish("packs/new", [b"1"])
        patient = open_root(files.url, retry_s=5)

        with disk.failing(call, error, times=3):
            assert patient.read(reference) == b"1"

    def test_records_are_read_despite_stale_handles(self, disk: FaultyDisk, files: BlobStore) -> None:
        """Records, whole folders and listings are read again after a stale handle."""
        patient = open_root(files.url, retry_s=5)
        for read in (
            lambda: patient.read_if_present("trials/whole"),
            lambda: patient.read_folder("trials", "whole")["whole"],
        ):
            with disk.failing("open", errno.ESTALE, times=3):
                assert read() == b"whole"
        with disk.failing("list", errno.ESTALE, times=2):
            assert patient.names("trials") == ["whole"]

    def test_lasting_stale_handle_is_missing(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A handle that is stale for longer than retry_s is a MissingError with the reason."""
        reference = files.publish("packs/new", [b"1"])

        with disk.failing("open", errno.ESTALE), pytest.raises(MissingError, match=r"packs/new.*Stale file handle"):
            files.read(reference)

    @pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
    def test_broken_disk_is_neither_missing_nor_corrupt(self, disk: FaultyDisk, files: BlobStore, error: int) -> None:
        """A disk that can't be read is a StorageError at once, not a missing or corrupt file."""
        reference = files.publish("packs/new", [b"1"])
        patient = open_root(files.url, retry_s=60)

        for call in ("open", "read"):
            with disk.failing(call, error), pytest.raises(StorageError, match=os.strerror(error)) as caught:
                patient.read(reference)
            assert not isinstance(caught.value, MissingError | CorruptError)

    def test_broken_listing_is_an_error(self, disk: FaultyDisk, files: BlobStore) -> None:
        """A folder that can't be listed is a StorageError, not an empty folder."""
        for read in (lambda: files.names("trials"), lambda: files.read_folder("trials", "")):
            with disk.failing("list", errno.EIO), pytest.raises(StorageError, match="trials: Input/output error"):
                read()


SEARCH = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(InOrderTuner, xs=[3, 1, 4]), seed=1)


def run(root: Path, n_trials: int) -> Results:
    return run_search(SEARCH, root=str(root), name="search", budget=Budget(trials=n_trials), finalists=1)


def table(summary: Results) -> list[tuple[Any, ...]]:
    return [(t.number, t.stage, t.point, t.parents, t.state, dict(t.metrics), t.donor) for t in summary.lineage]


def assert_whole(root: Path) -> None:
    """Checks that every recorded checkpoint can be read and verified."""
    files = open_root(str(root / "search"), retry_s=0)
    for trial in Records(files).load()[0]:
        if trial.checkpoint is not None:
            StoredWeights(files, trial.checkpoint).read_all()
    assert verify_search(files, pause_s=0).affected == ()


def results(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "search" / "trials").glob("*.result.json")}


def check_search(disk: FaultyDisk, call: str, error: int, skip: int, *, n_trials: int = 3, after: bool = False) -> bool:
    """Checks that a search with one failing call reports it, and that the same search then completes.

    False where the search was over before the call.
    """
    name = os.urandom(4).hex()
    root, behind = disk.place / name, disk.behind / name
    failed = True
    with disk.failing(call, error, skip=skip, times=1, after=after):
        try:
            run(root, n_trials)
            failed = disk.n_calls(call) > skip
        except StorageError as raised:
            assert os.strerror(error) in str(raised)
    if not failed:
        return False
    if (behind / "search" / "search.json").exists():
        assert_whole(behind)
    committed = results(behind)
    summary = run(root, n_trials)

    assert results(behind).items() >= committed.items()
    assert [row[0] for row in table(summary)] == [*range(n_trials + 1)]
    assert all(row[4] == "COMPLETE" for row in table(summary))
    assert_whole(behind)
    return True


class TestSearches:
    @pytest.mark.parametrize(("call", "skip"), [("fsync", 9), ("write", 14), ("link", 5), ("rename", 4)])
    def test_failed_search_continues(self, disk: FaultyDisk, call: str, skip: int) -> None:
        """After a disk error the same call continues the search: no committed trial is lost or run again."""
        assert check_search(disk, call, errno.EIO, skip)

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("call", ["create", "write", "fsync", "close", "rename", "link", "fsyncdir", "mkdir"])
    def test_any_call_of_a_search_may_fail(self, disk: FaultyDisk, call: str) -> None:
        """After a failure of any call of a search, before or after its work, the same search completes.

        Two trials and a final make every kind of file. Calls without work of their own fail in one way only.
        """
        error = errno.ENOSPC if call == "write" else errno.EIO
        for after in (False,) if call in ("close", "fsyncdir") else (False, True):
            skip = 0
            while check_search(disk, call, error, skip, n_trials=2, after=after):
                skip += 1
            assert skip > 3
