"""Contract suite for blob stores.

A storage of your own needs no class of Heirloom's. Two ways lead to one:

* A file system of fsspec, installed under a protocol of its own (fsspec's entry point ``fsspec.specs``). It implements
  ``pipe_file``, ``cat_file``, ``cat_ranges``, ``info``, ``exists``, ``ls``, ``find``, ``rm_file`` and ``makedirs``. An
  asynchronous one refuses a taken name if ``pipe_file`` gets ``mode="create"``. An object must appear whole. No answer
  may come from a cache of listings.
* Within Heirloom, an ``ObjectBackend`` (``nas/storage/backends/object_backend.py``) for a store of whole objects, or a
  ``BlobStore`` (``nas/storage/blobs.py``) for anything else.

``conf/storage/NAME.yaml`` holds the root URL and the options. The tests of Heirloom check every file of that folder.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, MissingError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.verified import Buffer, ByteRange, digest_of
from nas.testing.expectations import expect, expect_raises, in_another_process


def check_blob_store(url: str, options: Mapping[str, object] | None = None) -> None:
    """Checks that a storage publishes whole files, keeps names exclusive and verifies contents.

    It works in a new folder below the root and deletes it afterwards if the root is a folder of this machine.

    Args:
        url: The root.
        options: The storage's options, as ``storage.options`` of a search.

    Raises:
        AssertionError: the contract is broken.
        ConfigurationError: the storage can't be used at all.
        StorageError: the storage fails.
    """
    files = open_root(url, options, retry_s=0.2).subfolder(f"contract-{uuid4().hex[:12]}")
    try:
        files.check_reachable()
        files.check_writable()
        for check in (_check_whole, _check_exclusive, _check_verified, _check_records, _check_folders, _check_paths):
            check(files)
        if not files.in_process:
            _check_elsewhere(files)
    finally:
        if files.folder is not None:
            shutil.rmtree(files.folder, ignore_errors=True)


def _check_whole(files: BlobStore) -> None:
    data = random.Random(3).randbytes(3_000_001)
    chunks: list[Buffer] = [data[:5], bytearray(data[5:9]), memoryview(data)[9:]]
    reference = files.publish("packs/whole", iter(chunks))
    expect(reference.bytes == len(data) and files.read(reference) == data, "a published file did not come back")
    buffer = bytearray(len(data))
    parts = [(2_000_000, 3_000_001), (0, 4), (4, 4), (10, 1_000_000)]
    ranges = [ByteRange(begin, digest_of(data[begin:end]), memoryview(buffer)[begin:end]) for begin, end in parts]
    files.read_ranges(reference, ranges)
    same = all(buffer[begin:end] == data[begin:end] for begin, end in parts)
    expect(same, "ranges of a published file did not come back into the caller's memory")
    with files.open(reference) as blocks:
        expect(b"".join(bytes(block) for block in blocks) == data, "open() streamed other contents")
    files.check_size(reference)
    files.check_contents(reference)

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    expect_raises(ZeroDivisionError, lambda: files.publish("packs/half", failing()))
    expect(files.names("packs") == ["whole"], f"a failed write left {files.names('packs')}")


def _check_exclusive(files: BlobStore) -> None:
    files.publish("trials/one", [b"first"], exclusive=True)
    expect_raises(AlreadyPublishedError, lambda: files.publish("trials/one", [b"second"], exclusive=True))
    expect(files.read_if_present("trials/one") == b"first", "a second writer replaced an exclusive file")

    def write(number: int) -> bool:
        try:
            files.publish("trials/many", [b"%d" % number], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, has_won in enumerate(pool.map(write, range(8))) if has_won]
    found = files.read_if_present("trials/many")
    expect(len(won) == 1 and found == b"%d" % won[0], f"of eight writers at once {won} won, and {found!r} is there")


def _check_verified(files: BlobStore) -> None:
    reference = files.publish("packs/verified", [b"as it was"])
    files.replace(reference.path, b"as it is!")
    expect_raises(CorruptError, lambda: files.read(reference))
    expect_raises(CorruptError, lambda: files.check_contents(reference))
    good, bad = ByteRange(0, digest_of(b"as it "), _memory(6)), ByteRange(6, digest_of(b"was"), _memory(3))
    files.read_ranges(reference, [good])
    expect_raises(CorruptError, lambda: files.read_ranges(reference, [good, bad]))
    reads: tuple[Callable[[Reference], object], ...] = (
        files.read,
        files.check_size,
        files.check_contents,
        lambda reference: files.read_ranges(reference, [good]),
    )
    files.replace(reference.path, b"short")
    for read in reads:
        expect_raises(CorruptError, partial(read, reference))
    files.delete(reference.path)
    files.delete_all([reference.path, reference.path])
    for read in reads:
        expect_raises(MissingError, partial(read, reference))


def _memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _check_records(files: BlobStore) -> None:
    expect(files.read_if_present("nowhere/at/all") is None, "a missing file was read")
    expect(not files.names("nowhere") and not files.read_folder("nowhere", ""), "a missing folder has files")
    for name in ("b.json", "a.json", "a.log"):
        files.publish(f"records/{name}", [name.encode()], exclusive=True)
    files.replace("records/a.log", b"a longer log", durable=False)
    files.replace("records/a.log", b"a log", durable=False)
    expect(files.names("records") == ["a.json", "a.log", "b.json"], f"names are {files.names('records')}")
    found = files.read_folder("records", ".json")
    expect(found == {"a.json": b"a.json", "b.json": b"b.json"}, f"read_folder returned {found}")
    expect(files.read_if_present("records/a.log") == b"a log", "replace left more than the last bytes")
    files.replace("records/folder/inner", b"deep", durable=False)
    found_sizes = {info.path: info.bytes for info in files.walk() if info.path.startswith("records/")}
    expected = {"records/a.json": 6, "records/a.log": 5, "records/b.json": 6, "records/folder/inner": 4}
    expect(found_sizes == expected, f"walk returned {found_sizes}")
    files.delete("records/folder/inner")
    expect(files.names("records") == ["a.json", "a.log", "b.json"], f"delete left {files.names('records')}")


def _check_folders(files: BlobStore) -> None:
    files.publish("one/a", [b"a"])
    two = files.subfolder("two")
    expect(files.subfolder("one").read_if_present("a") == b"a", "subfolder() has other files")
    expect(two.parent().read_if_present("one/a") == b"a", "parent() has other files")
    expect(two.sibling("one").read_if_present("a") == b"a", "sibling() has other files")
    expect("one" in two.sibling_names(), f"sibling names are {two.sibling_names()}")


def _check_paths(files: BlobStore) -> None:
    for path in ("../up", "/root", "a//b", "", "a/./b", ".tmp-x"):
        expect_raises(ConfigurationError, lambda path=path: files.publish(path, [b""]))  # type: ignore[misc]


def _check_elsewhere(files: BlobStore) -> None:
    reference = files.publish("packs/elsewhere", [b"for another process"])
    found = in_another_process(_read, files, reference)
    expect(found == b"for another process", f"another process read {found!r}")


def _read(files: BlobStore, reference: Reference) -> bytearray:
    return files.read(reference)
