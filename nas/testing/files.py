"""What every storage must keep."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
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
    """Checks that a storage keeps its promises: what is published is whole, exclusive where asked, and verified.

    Works in a folder of its own below the root, which it removes again where it can.

    Args:
        url: The root.
        options: What fsspec needs to open it.

    Raises:
        AssertionError: a promise is broken.
        ConfigurationError: the storage can't be used at all.
        StorageError: the storage fails.
    """
    files = open_root(url, options, retry_s=0.2).subfolder(f"contract-{uuid4().hex[:12]}")
    try:
        files.check_writable()
        for check in (_check_whole, _check_exclusive, _check_verified, _check_records, _check_paths):
            check(files)
        if not files.in_process:
            _check_elsewhere(files)
    finally:
        if (folder := files.local_path("x")) is not None:
            shutil.rmtree(folder.removesuffix("/x"), ignore_errors=True)


def _check_whole(files: BlobStore) -> None:
    data = random.Random(3).randbytes(3_000_001)
    chunks: list[Buffer] = [data[:5], bytearray(data[5:9]), memoryview(data)[9:]]
    reference = files.publish("packs/whole", iter(chunks))
    expect(reference.bytes == len(data) and files.read(reference) == data, "what was published did not come back")
    buffer = bytearray(len(data))
    parts = [(2_000_000, 3_000_001), (0, 4), (4, 4), (10, 1_000_000)]
    spans = [ByteRange(begin, digest_of(data[begin:end]), memoryview(buffer)[begin:end]) for begin, end in parts]
    files.read_ranges(reference, spans)
    same = all(buffer[begin:end] == data[begin:end] for begin, end in parts)
    expect(same, "parts of what was published did not come back into memory of the caller's")
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
    files.replace(reference.path, b"short")
    for read in (files.read, files.check_size, files.check_contents, lambda r: files.read_ranges(r, [good])):
        expect_raises(CorruptError, partial(read, reference))
    files.delete(reference.path)
    files.delete_all([reference.path, reference.path])
    for read in (files.read, files.check_size, files.check_contents, lambda r: files.read_ranges(r, [good])):
        expect_raises(MissingError, partial(read, reference))


def _memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _check_records(files: BlobStore) -> None:
    expect(files.read_if_present("nowhere/at/all") is None, "a file that is not there was read")
    expect(not files.names("nowhere") and not files.read_folder("nowhere", ""), "a folder that is not there has files")
    for name in ("b.json", "a.json", "a.log"):
        files.publish(f"records/{name}", [name.encode()], exclusive=True)
    files.replace("records/a.log", b"a longer log", durable=False)
    files.replace("records/a.log", b"a log", durable=False)
    expect(files.names("records") == ["a.json", "a.log", "b.json"], f"names are {files.names('records')}")
    found = files.read_folder("records", ".json")
    expect(found == {"a.json": b"a.json", "b.json": b"b.json"}, f"read_all gave {found}")
    expect(files.read_if_present("records/a.log") == b"a log", "put left more than the last bytes")
    files.replace("records/folder/inner", b"deep", durable=False)
    found_sizes = {stored.path: stored.bytes for stored in files.walk() if stored.path.startswith("records/")}
    expected = {"records/a.json": 6, "records/a.log": 5, "records/b.json": 6, "records/folder/inner": 4}
    expect(found_sizes == expected, f"walk gave {found_sizes}")
    files.delete("records/folder/inner")
    expect(files.names("records") == ["a.json", "a.log", "b.json"], f"delete left {files.names('records')}")
    expect("records" in files.subfolder("x").sibling_names(), f"siblings are {files.subfolder('x').sibling_names()}")
    expect(files.subfolder("records").read_if_present("a.json") == b"a.json", "below() has other files")
    expect(files.subfolder("x").sibling("records").read_if_present("a.json") == b"a.json", "sibling() has other files")


def _check_paths(files: BlobStore) -> None:
    for path in ("../up", "/root", "a//b", "", "a/./b", ".tmp-x"):
        expect_raises(ConfigurationError, lambda path=path: files.publish(path, [b""]))  # type: ignore[misc]


def _check_elsewhere(files: BlobStore) -> None:
    reference = files.publish("packs/elsewhere", [b"for another process"])
    found = in_another_process(_read, files, reference)
    expect(found == b"for another process", f"another process read {found!r}")


def _read(files: BlobStore, reference: Reference) -> bytes:
    return files.read(reference)
