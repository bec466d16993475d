"""Blob stores: atomic and exclusive publication, immediate visibility, clear errors."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.record_values import checked_exactly
from nas.storage.verified import ByteRange, digest_of

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(params=["local", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    url = str(tmp_path / "root") if request.param == "local" else f"memory://{uuid4().hex}/search"
    return open_root(url, retry_s=0.05)


@pytest.fixture
def local(tmp_path: Path) -> BlobStore:
    return open_root(str(tmp_path / "root"), retry_s=0.05)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system can only be mounted by root: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def everything(folder: Path) -> list[str]:
    """Returns every file below a folder, unfinished ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Runs the script in its own process."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


class TestEveryRoot:
    def test_published_bytes_are_read(self, files: BlobStore) -> None:
        """The reference from publishing reads the same bytes, whatever their chunks."""
        chunks = [b"ab", bytearray(b"cd"), memoryview(b"ef"), b"", memoryview(b"")]

        reference = files.publish("packs/a.bin", iter(chunks))

        assert reference == Reference("packs/a.bin", 6, digest_of(b"abcdef"))
        assert files.read(reference) == b"abcdef"

    def test_large_chunks_arrive_whole(self, files: BlobStore) -> None:
        """A chunk of many blocks is written, hashed and read to the bit, also into the caller's memory."""
        data = random.Random(1).randbytes(5_000_001)
        reference = files.publish("packs/a.bin", [data[:7], data[7:]])
        first, rest = bytearray(3), bytearray(len(data) - 3)

        parts = [
            ByteRange(3, digest_of(data[3:]), memoryview(rest)),
            ByteRange(0, digest_of(data[:3]), memoryview(first)),
        ]
        files.read_ranges(reference, parts)

        assert files.read(reference) == data
        assert first + rest == data
        assert reference.digest == digest_of(data)

    def test_on_block_receives_all_contents(self, files: BlobStore) -> None:
        """on_block gets the whole contents in order, also if their digest is wrong."""
        data = random.Random(5).randbytes(3_000_001)
        reference = files.publish("packs/a.bin", [data])
        seen: list[bytearray] = []

        def on_block() -> Callable[[memoryview], object]:
            seen.append(bytearray())
            return seen[-1].extend

        files.check_contents(reference, on_block)

        assert seen == [data]
        files.replace("packs/a.bin", data[:-1] + b"!")
        with pytest.raises(CorruptError):
            files.check_contents(reference, on_block)
        assert seen[-1] == data[:-1] + b"!"

    def test_taken_name_is_refused(self, files: BlobStore) -> None:
        """The second writer of an exclusive name gets AlreadyPublishedError, and the first one's bytes stay."""
        files.publish("trials/000001.result.json", [b"first"], exclusive=True)

        with pytest.raises(AlreadyPublishedError, match=r"000001\.result\.json"):
            files.publish("trials/000001.result.json", [b"second"], exclusive=True)
        assert files.read_if_present("trials/000001.result.json") == b"first"
        assert files.names("trials") == ["000001.result.json"]

    def test_failing_source_publishes_nothing(self, files: BlobStore) -> None:
        """An exception from the chunks is raised unchanged, and publishes nothing."""

        def chunks() -> Iterator[bytes]:
            yield b"half"
            raise PermissionError("the source's own error")

        with pytest.raises(PermissionError, match="own error") as caught:
            files.publish("packs/a.bin", chunks())
        assert not isinstance(caught.value, StorageError)
        assert files.names("packs") == []

    def test_absent_record_is_none(self, files: BlobStore) -> None:
        """A missing record or folder reads as None, an existing record as its bytes."""
        files.publish("trials/a.json", [b"{}"], exclusive=True)

        assert files.read_if_present("trials/b.json") is None
        assert files.read_if_present("nowhere/at/all.json") is None
        assert files.read_if_present("trials/a.json/below-a-file") is None
        assert files.read_if_present("trials/a.json") == b"{}"

    def test_folder_is_read_by_suffix(self, files: BlobStore) -> None:
        """read_folder returns the files of one suffix by name, and nothing for a missing folder."""
        for name in ("2.json", "1.json", "1.log"):
            files.publish(f"trials/{name}", [name.encode()])

        assert files.read_folder("trials", ".json") == {"1.json": b"1.json", "2.json": b"2.json"}
        assert files.read_folder("nowhere", ".json") == {}

    def test_names_are_sorted_and_fresh(self, files: BlobStore) -> None:
        """names lists files and folders, right after each change."""
        files.publish("b/x", [b"1"])
        files.publish("a", [b"1"])

        assert files.names() == ["a", "b"]
        files.delete("a")
        assert files.names() == ["b"]
        assert files.names("nowhere") == []

    def test_replaced_name_has_the_last_bytes(self, files: BlobStore) -> None:
        """A replaced file has the last bytes, shorter or longer, durable or not."""
        for data in (b"1", b"1234567", b"12"):
            files.replace("sessions/0001.beat", data)
            files.replace("logs/000001.log", data, durable=False)

        assert files.read_if_present("sessions/0001.beat") == b"12"
        assert files.read_if_present("logs/000001.log") == b"12"

    def test_deleting_twice_is_fine(self, files: BlobStore) -> None:
        """Deleting a missing file is no error."""
        reference = files.publish("packs/a", [b"1"])

        files.delete("packs/a")
        files.delete("packs/a")
        files.delete("nowhere/a")
        with pytest.raises(MissingError):
            files.read(reference)

    def test_other_bytes_are_corrupt(self, files: BlobStore) -> None:
        """One flipped bit, a missing byte and a byte too many are CorruptError with both sizes and digests."""
        reference = files.publish("packs/a", [b"12345678"])

        for wrong in (b"12345679", b"1234567", b"123456789"):
            files.replace("packs/a", wrong)
            for read in (files.read, files.check_contents):
                with pytest.raises(CorruptError) as caught:
                    read(reference)
                message = str(caught.value)
                assert "packs/a" in message
                assert f"expected 8 bytes {reference.digest}" in message
                assert f"found {len(wrong)} bytes {digest_of(wrong)}" in message
                assert os.uname().nodename in message

    def test_missing_file_is_named(self, files: BlobStore) -> None:
        """A deleted file is a MissingError with path, expected size and digest, and host."""
        reference = files.publish("packs/a", [b"12345678"])
        files.delete("packs/a")

        with pytest.raises(MissingError, match=rf"packs/a.*{os.uname().nodename}.*8 bytes {reference.digest}"):
            files.read(reference)

    def test_reader_waits_for_a_late_name(self, files: BlobStore) -> None:
        """A read by reference finds a file that appears within retry_s."""
        files.retry_s = 60
        reference = files.publish("packs/a", [b"late"])
        files.delete("packs/a")
        timer = threading.Timer(0.1, files.publish, ("packs/a", [b"late"]))

        timer.start()
        assert files.read(reference) == b"late"
        timer.join()

    @pytest.mark.parametrize(
        "path", ["", "/etc/passwd", "a//b", "../a", "a/..", "./a", "a/", "a/.tmp-1", "a\0b", "a\udc80b"]
    )
    def test_path_can_not_leave_the_root(self, files: BlobStore, path: str) -> None:
        """Absolute paths, dots, empty parts, zero bytes, broken UTF-8 and names of unfinished files are refused."""
        calls: list[Callable[[], object]] = [
            lambda: files.publish(path, [b""]),
            lambda: files.read_if_present(path),
            lambda: files.replace(path, b""),
            lambda: files.replace(path, b"", durable=False),
            lambda: files.delete(path.replace("a/.tmp-1", "../.tmp-1")),  # the name itself may be deleted
            lambda: files.local_path(path),
            lambda: files.subfolder(path),
            lambda: files.sibling(path),
            lambda: Reference(path, 0, digest_of(b"")),
        ]

        for call in calls:
            with pytest.raises(ConfigurationError, match="path"):
                call()

    def test_other_searches_are_reached(self, files: BlobStore) -> None:
        """below opens a folder of the root as a root, sibling the folder beside it."""
        reference = files.subfolder("one").publish("packs/a", [b"1"])

        assert files.subfolder("two").sibling("one").read(reference) == b"1"
        assert files.subfolder("one").url.endswith("/one")
        assert files.subfolder("two").sibling("one").url == files.subfolder("one").url

    def test_sibling_names_are_listed(self, files: BlobStore) -> None:
        """sibling_names lists the searches beside this one, without it."""
        for name in ("b", "a"):
            files.sibling(name).publish("search.json", [b"{}"])
        files.publish("search.json", [b"{}"])

        assert files.sibling_names() == ["a", "b"]
        assert files.subfolder("nowhere").sibling_names() == ["search.json"]

    def test_of_many_threads_one_publishes(self, files: BlobStore) -> None:
        """If eight threads publish the same names at once, each name has one winner."""
        barrier = threading.Barrier(8)

        def publish(thread: int) -> list[int]:
            barrier.wait()
            return [name for name in range(20) if wins(files, f"trials/{name}", str(thread).encode())]

        with ThreadPoolExecutor(8) as pool:
            won = [name for names in pool.map(publish, range(8)) for name in names]

        assert sorted(won) == list(range(20))

    def test_root_that_works_is_writable(self, files: BlobStore) -> None:
        """check_writable passes if records can be published, and leaves nothing behind."""
        files.check_writable()

        assert files.names() == []

    def test_roots_can_be_pickled(self, files: BlobStore) -> None:
        """A pickled root is the same root."""
        reference = files.publish("a", [b"1"])

        assert pickle.loads(pickle.dumps(files)).read(reference) == b"1"


def wins(files: BlobStore, path: str, data: bytes) -> bool:
    try:
        files.publish(path, [data], exclusive=True)
    except AlreadyPublishedError:
        return False
    return True


class TestReference:
    def test_json_round_trip(self) -> None:
        """A reference survives JSON."""
        reference = Reference("packs/ä b", 3, digest_of(b"abc"))

        assert checked_exactly(Reference, json.loads(json.dumps(reference.to_json()))) == reference

    @pytest.mark.parametrize(
        "change",
        [
            {"path": "../a"},
            {"path": 1},
            {"bytes": -1},
            {"bytes": True},
            {"bytes": 1.0},
            {"digest": "sha256:00"},
            {"digest": "blake3:" + "g" * 64},
            {"digest": None},
            {"extra": 1},
        ],
    )
    def test_anything_else_is_corrupt(self, change: dict[str, object]) -> None:
        """Wrong types, impossible values and unknown keys are CorruptError."""
        with pytest.raises(CorruptError):
            checked_exactly(Reference, {"path": "a", "bytes": 1, "digest": digest_of(b"a")} | change)

    @pytest.mark.parametrize("data", [None, [], "a", {}, {"path": "a"}])
    def test_no_object_is_corrupt(self, data: object) -> None:
        """Other JSON than an object, or one without a key, is CorruptError."""
        with pytest.raises(CorruptError):
            checked_exactly(Reference, data)


class TestOpenRoot:
    def test_ways_to_name_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A plain path, a relative one, ~ and file:// all name folders."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))

        for url in (f"{tmp_path}/x", f"file://{tmp_path}/x", f"local://{tmp_path}/x", "x", "./x/", "~/x"):
            assert open_root(url).local_path("a") == f"{tmp_path}/x/a"
            assert not open_root(url).in_process

    def test_memory_is_in_process(self) -> None:
        """memory:// is marked as visible in one process only, and has no local path."""
        root = open_root("memory://x")

        assert root.in_process
        assert root.local_path("a") is None

    @pytest.mark.parametrize("url", ["", "file://", "file://host/x"])
    def test_no_folder_is_a_mistake(self, url: str) -> None:
        """A root without a folder name is refused."""
        with pytest.raises(ConfigurationError, match="must name a folder"):
            open_root(url)

    @pytest.mark.parametrize("url", ["s3:/bucket/x", "sftp:/me:s3cret@host/x", "C:/Users/me", r"C:\Users\me"])
    def test_url_with_one_slash_is_a_mistake(self, url: str) -> None:
        """It would be a folder named ``s3:`` in the working folder; its password is not shown."""
        with pytest.raises(ConfigurationError, match=r"^storage.root=\w+:.\.\.\.: must be a folder or a URL") as caught:
            open_root(url)
        assert "s3cret" not in str(caught.value)

    def test_folder_takes_no_options(self, tmp_path: Path) -> None:
        """Options for a folder are refused by their keys, without their values."""
        with pytest.raises(ConfigurationError, match=r"storage\.options=key: must be empty"):
            open_root(str(tmp_path), {"key": "hunter2"})

    def test_local_root_imports_little(self, tmp_path: Path) -> None:
        """Publishing and reading in a folder imports neither torch, pandas, numpy nor fsspec."""
        script = (
            "import sys; from nas.storage.open import open_root; f = open_root(sys.argv[1]); "
            "f.read(f.publish('a', [b'1'])); "
            "import nas.storage.checkpoints; "
            "print([m for m in ('torch', 'pandas', 'numpy', 'fsspec') if m in sys.modules])"
        )

        process = python(script, tmp_path)
        assert process.communicate()[0].strip() == "[]"


class TestLocal:
    def test_unfinished_files_are_not_listed(self, local: BlobStore, tmp_path: Path) -> None:
        """Leftovers of a killed writer or an NFS client are neither listed nor read."""
        local.publish("trials/a.json", [b"1"])
        for name in (".tmp-0123.json", ".nfs0001.json"):
            (tmp_path / "root" / "trials" / name).write_bytes(b"torn")

        assert local.names("trials") == ["a.json"]
        assert local.read_folder("trials", ".json") == {"a.json": b"1"}

    def test_unfinished_files_are_walked_and_deleted(self, local: BlobStore, tmp_path: Path) -> None:
        """walk lists unfinished files too, with sizes and times, and they can be deleted; links are left out."""
        local.publish("packs/a", [b"whole"])
        (tmp_path / "root/packs/.tmp-0123").write_bytes(b"ha")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/mine").write_bytes(b"mine")
        (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
        found = {stored.path: stored for stored in local.walk()}
        local.delete("packs/.tmp-0123")

        assert found.keys() == {"link", "packs/a", "packs/.tmp-0123"}
        assert (found["packs/a"].bytes, found["packs/.tmp-0123"].bytes) == (5, 2)
        assert found["packs/a"].modified == (tmp_path / "root/packs/a").stat().st_mtime
        assert everything(tmp_path / "root/packs") == ["a"]

    def test_deleting_removes_a_checkpoints_empty_folder(self, local: BlobStore, tmp_path: Path) -> None:
        """The last file of `files/<stem>/` takes its folders along, but not `files/`."""
        for name in ("a", "deep/b", "deep/c"):
            local.publish(f"files/000001-aa/{name}", [b"x"])
        for name in ("deep/b", "a"):
            local.delete(f"files/000001-aa/{name}")
        assert everything(tmp_path / "root") == ["files/000001-aa/deep/c"]
        local.delete("files/000001-aa/deep/c")

        assert [path.name for path in (tmp_path / "root").rglob("*")] == ["files"]
        assert local.read(local.publish("files/000001-aa/deep/c", [b"again"])) == b"again"

    def test_deleted_folder_is_made_again(self, local: BlobStore, tmp_path: Path) -> None:
        """A folder deleted between two publications is created again."""
        local.publish("packs/a", [b"1"])
        (tmp_path / "root" / "packs" / "a").unlink()
        (tmp_path / "root" / "packs").rmdir()

        assert local.read(local.publish("packs/b", [b"2"])) == b"2"

    def test_failed_fsync_is_final(self, local: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failed fsync is not repeated: StorageError with the reason, and nothing is left."""
        local.publish("packs/a", [b"1"])
        calls = []

        def fsync(fd: int) -> None:
            calls.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StorageError, match=r"packs/b: Input/output error"):
            local.publish("packs/b", [b"2"])
        assert len(calls) == 1
        assert everything(tmp_path / "root") == ["packs/a"]

    def test_failed_close_is_noticed(self, local: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk that NFS reports only at close is a StorageError, and nothing is left."""
        local.publish("packs/a", [b"1"])
        close = os.close

        def full(fd: int) -> None:
            close(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"packs/b: the disk is full"):
            patch.setattr(os, "close", full)
            local.publish("packs/b", [b"2"])
        assert everything(tmp_path / "root") == ["packs/a"]

    def test_lost_reply_to_rename_is_success(
        self, local: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rename that NFS reports as "no such file" but did is a success."""
        rename = os.rename

        def lost(source: str, target: str) -> None:
            rename(source, target)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        monkeypatch.setattr(os, "rename", lost)
        assert local.read(local.publish("packs/a", [b"1"])) == b"1"
        local.replace("beat", b"2")
        assert everything(tmp_path / "root") == ["beat", "packs/a"]

    def test_rename_that_did_not_happen_is_an_error(self, local: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rename that reports "no such file" and did nothing is a StorageError."""

        def gone(source: str, target: str) -> None:
            os.unlink(source)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        monkeypatch.setattr(os, "rename", gone)
        with pytest.raises(StorageError, match="packs/a: No such file"):
            local.publish("packs/a", [b"1"])

    def test_lost_reply_to_link_is_success(
        self, local: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A link that NFS reports as "exists" but made itself is a success."""
        link = os.link

        def lost(source: str, target: str) -> None:
            link(source, target)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

        monkeypatch.setattr(os, "link", lost)
        assert local.read(local.publish("trials/a", [b"1"], exclusive=True)) == b"1"
        assert everything(tmp_path / "root") == ["trials/a"]

    def test_file_system_without_links_is_named(
        self, local: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without hard links, the check of the root fails in one line, and nothing is left."""

        def link(source: str, target: str) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)
        with pytest.raises(ConfigurationError, match=r"root.*hard links.*Choose another storage\.root"):
            local.check_writable()
        assert everything(tmp_path / "root") == []

    def test_stale_handles_are_opened_again(self, local: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """After ESTALE, NFS's answer for a replaced file, the file is opened again."""
        local.retry_s = 5
        reference = local.publish("trials/a.json", [b"1"])
        left = [0]

        def stale(path: str, mode: str, **kwargs: int) -> object:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return open(path, mode, **kwargs)

        monkeypatch.setattr("nas.storage.regular_files.open", stale, raising=False)
        for read in (
            lambda: local.read(reference),
            lambda: local.read_if_present("trials/a.json"),
            lambda: local.read_folder("trials", ".json")["a.json"],
        ):
            left[0] = 2
            assert read() == b"1"

    def test_other_errors_are_raised_at_once(self, local: BlobStore) -> None:
        """An error that no cache explains (here: the name is a folder) is raised without waiting."""
        local.retry_s = 60
        local.publish("packs/a/b", [b"1"])
        began_s = time.monotonic()

        with pytest.raises(StorageError, match="packs/a: Is a directory"):
            local.read(Reference("packs/a", 1, digest_of(b"1")))
        assert time.monotonic() - began_s < 30

    def test_full_disk_is_named(self, small_disk: Path) -> None:
        """A full disk is a StorageError with the path, leaves nothing behind, and small files still fit."""
        files = open_root(str(small_disk))

        for exclusive in (False, True):
            with pytest.raises(
                StorageError, match=rf"{small_disk}/packs/a: the disk is full \(No space left on device\)"
            ):
                files.publish("packs/a", [bytes(700_000)] * 2, exclusive=exclusive)
        assert everything(small_disk) == []
        assert files.read(files.publish("packs/b", [bytes(500_000)])) == bytes(500_000)

    def test_read_only_disk_is_a_mistake(self, small_disk: Path) -> None:
        """A root on a read-only disk is refused in one line with URL and reason."""
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        files = open_root(f"{small_disk}/root")

        with pytest.raises(ConfigurationError, match=rf"{small_disk}/root.*Read-only file system") as caught:
            files.check_writable()
        assert "\n" not in str(caught.value)
        with pytest.raises(StorageError, match="Read-only file system"):
            files.publish("a", [b"1"])

    def test_forbidden_folder_is_a_mistake(self, tmp_path: Path) -> None:
        """A root that this user may not write is refused in one line with URL and reason."""
        tmp_path.chmod(0o555)
        script = (
            "import os, sys, nas.storage.backends.local\n"
            "from nas.storage.open import open_root\n"
            "if os.getuid() == 0: os.setuid(65534)  # root may write anywhere\n"
            "try: open_root(sys.argv[1]).check_writable()\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        place = tmp_path / "root"
        for parent in tmp_path.parents[:-2]:
            parent.chmod(parent.stat().st_mode | 0o055)

        answer = python(script, place).communicate()[0]
        assert answer.startswith(f"ConfigurationError storage root {place} can't be used")
        assert "Permission denied" in answer

    def test_root_that_is_a_file_is_a_mistake(self, tmp_path: Path) -> None:
        """A root below a file is refused."""
        (tmp_path / "file").write_text("")

        with pytest.raises(ConfigurationError, match="not a folder"):
            open_root(f"{tmp_path}/file").check_writable()

    @pytest.mark.slow
    def test_ten_thousand_records_load_quickly(self, local: BlobStore, tmp_path: Path) -> None:
        """Ten thousand records take less than two seconds of computing, also on a busy machine."""
        folder = tmp_path / "root" / "trials"
        folder.mkdir(parents=True)
        for number in range(10_000):
            (folder / f"{number:06d}.json").write_bytes(b"{}")
        began_s, computed_s = time.monotonic(), time.process_time()

        assert len(local.read_folder("trials", ".json")) == 10_000
        assert time.process_time() - computed_s < 2
        assert time.monotonic() - began_s < 60  # it never sleeps


PUBLISH_FOUR = """
import sys, time
from nas.storage.open import open_root
files = open_root(sys.argv[1])
print("ready", flush=True)
for number in range(4):  # the root takes 300 MB at most
    data = [bytes([number % 251]) * 500_000] * 4
    files.publish(f"packs/{sys.argv[2]}-{number}", data, exclusive=number % 2 == 1)
    if number == 0: print("published", flush=True)
time.sleep(600)
"""

PUBLISH_ALL = """
import sys, time
from nas.core.errors import AlreadyPublishedError
from nas.storage.open import open_root
files, won = open_root(sys.argv[1]), 0
print("ready", flush=True)
while time.time() < float(sys.argv[3]): pass
for number in range(200):
    try: files.publish(f"trials/{number}", [sys.argv[2].encode() * 100], exclusive=True)
    except AlreadyPublishedError: continue
    won += 1
print(won)
"""


class TestOtherProcesses:
    @pytest.mark.slow
    def test_kill_never_tears(self, local: BlobStore, tmp_path: Path) -> None:
        """kill -9 at 36 moments of a process's first publications leaves whole files or none."""
        moments, one_s = random.Random(0), 2.0
        for attempt in range(36):
            process = python(PUBLISH_FOUR, tmp_path / "root", attempt)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if attempt < 3:  # one may be slow by chance
                began_s = time.monotonic()
                assert process.stdout.readline() == "published\n"
                one_s = min(one_s, time.monotonic() - began_s)
            time.sleep(moments.uniform(0, 1.5 * one_s))
            process.kill()
            process.wait()
            process.stdout.close()

        names = local.names("packs")
        assert any("/.tmp-" in name for name in everything(tmp_path / "root")), "no kill fell into a publication"
        for name in names:
            number = int(name.partition("-")[2])
            assert local.read_if_present(f"packs/{name}") == bytes([number % 251]) * 2_000_000

    def test_one_of_two_processes_wins(self, local: BlobStore, tmp_path: Path) -> None:
        """If two processes publish the same names at once, each name has one winner, whole."""
        start_s = time.time() + 1
        processes = [python(PUBLISH_ALL, tmp_path / "root", who, start_s) for who in "ab"]

        won = [int(process.communicate()[0].split()[-1]) for process in processes]
        records = local.read_folder("trials", "")
        assert sum(won) == len(records) == 200
        assert sorted(records.values()) == [b"a" * 100] * won[0] + [b"b" * 100] * won[1]


@pytest.mark.slow
def test_missing_local_file_is_reported_in_seconds(tmp_path: Path) -> None:
    """On a local disk no time is spent waiting for caches."""
    files = open_root(str(tmp_path))
    reference = files.publish("packs/a", [b"contents"])
    (tmp_path / "packs/a").unlink()
    began = time.monotonic()

    with pytest.raises(MissingError):
        files.read(reference)
    assert time.monotonic() - began < 20
