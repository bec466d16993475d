"""Record format 2: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from nas.core.errors import CorruptError
from nas.core.reference import Reference
from nas.core.validation import MAX_DEPTH, MAX_RECORD_BYTES
from nas.storage.manifest import Manifest, TensorEntry
from nas.storage.record_format import (
    MAX_LARGE_VALUES,
    MAX_READ_VALUES,
    MAX_VALUES,
    decode_record,
    encode_record,
    is_format_1,
    seal,
)
from nas.storage.verified import digest_of

RECORDS: list[dict[str, Any]] = [
    {},
    {"trial": 0},
    {"a": [1, 2.5, None, True, "ä\ud800"], "b": {"digest": "inner"}},
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_the_same_after_writing_and_reading(record: dict[str, Any]) -> None:
    """A record is one JSON object, with the digest of its own text as the last field."""
    data = encode_record(record)

    assert decode_record(data) == record
    plain = json.loads(data)
    text = data[: data.rindex(b'"digest"')].removesuffix(b",") + b"}"
    assert plain.pop("digest") == digest_of(text)
    assert plain == record


@pytest.mark.parametrize("record", RECORDS)
def test_each_flipped_bit_is_found(record: dict[str, Any]) -> None:
    """A record with any one bit flipped is CorruptError, also if it is still a valid record."""
    data = encode_record(record)
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

            with pytest.raises(CorruptError, match="digest"):
                decode_record(flipped)


@pytest.mark.parametrize("record", RECORDS)
def test_a_torn_record_is_found(record: dict[str, Any]) -> None:
    """A record that lacks bytes at either end, or has more, is CorruptError."""
    data = encode_record(record)
    for torn in (*(data[:n] for n in range(len(data))), data[1:], data + b"\n", data + b"}", data * 2):
        with pytest.raises(CorruptError, match="digest"):
            decode_record(torn)


@pytest.mark.parametrize("record", [{"a": float("nan")}, {"a": {1, 2}}, {"a": b"x"}])
def test_what_is_not_json_is_refused(record: dict[str, Any]) -> None:
    """Only finite JSON values are written."""
    with pytest.raises((ValueError, TypeError)):
        encode_record(record)


def test_depth_is_bounded() -> None:
    """Lists nested deeper than the bound are neither written nor read."""
    nested: Any = []
    for _ in range(MAX_DEPTH + 10):
        nested = [nested]

    with pytest.raises(ValueError, match="nested deeper"):
        encode_record({"a": nested})
    with pytest.raises(CorruptError, match="nested deeper"):
        decode_record(seal(json.dumps({"a": nested}).encode()))


def test_the_number_of_values_is_bounded() -> None:
    """Millions of empty lists, each of which takes 20 times its bytes in memory, are refused before they are parsed."""
    data = seal(b'{"a":[' + b"[]," * MAX_READ_VALUES + b"[]]}")
    tracemalloc.start()
    with pytest.raises(CorruptError, match="at most"):
        decode_record(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * len(data)
    with pytest.raises(ValueError, match="at most"):
        encode_record({"a": [0] * (MAX_VALUES + 1)})


def test_long_curves_of_earlier_versions_are_read() -> None:
    """A result with 100,000 reports of two metrics, which earlier versions wrote, is read whole."""
    curve = [[step, {"accuracy": 0.5, "loss": 1.5}] for step in range(100_000)]

    assert decode_record(seal(json.dumps({"a": curve}, separators=(",", ":")).encode())) == {"a": curve}


def test_format_1_is_known_by_its_missing_digest() -> None:
    """A search.json of format 1 has no digest; one of format 2 that lost it is not of format 1."""
    assert is_format_1(b'{"format":1,"identity":{}}')
    for data in (b'{"format":2}', encode_record({"format": 1}), encode_record({"format": 2}), b"", b"[]", b"\xff"):
        assert not is_format_1(data)


@pytest.mark.slow
def test_manifest_of_a_hundred_thousand_tensors_is_read() -> None:
    """The largest manifests that a network needs are written and read; the worst of that size take 400 MB at most."""
    digest, pack = digest_of(b"x"), "packs/000001-abcdef01.safetensors"
    shape = {"pack": pack, "offset": 0, "bytes": 9_437_184, "dtype": "float32", "shape": (512, 512, 3, 3)}
    tensors = {f"blocks.{n}.attention.linear.weight": TensorEntry(**shape, digest=digest) for n in range(100_000)}
    manifest = Manifest(tensors=tensors, packs=(Reference(pack, 10**9, digest),), files=())
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest

    worst = seal(b'{"tensors":{' + b",".join(b'"%d":"%d"' % (n, n) for n in range(MAX_LARGE_VALUES - 10)) + b"}}")
    tracemalloc.start()
    decode_record(worst, is_large=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000_000


def test_values_of_a_manifest_are_counted_before_decoding() -> None:
    """A manifest with more values, or of more bytes, than the largest is refused in no memory."""
    for data, excess in (
        (b'{"tensors":[' + b"[]," * (MAX_LARGE_VALUES // 2) + b"[]]}", "values; a record has at most 1200000"),
        (b'{"tensors":"' + b"x" * MAX_RECORD_BYTES + b'"}', "bytes; a record has at most 33554432"),
    ):
        sealed = seal(data)
        tracemalloc.start()
        with pytest.raises(CorruptError, match=excess):
            Manifest.from_bytes(sealed)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000


@pytest.mark.slow
def test_threads_that_read_first_do_not_crash() -> None:
    """The first manifests of a process are read by several threads at once."""
    threads = """
import sys, threading
from nas.storage.manifest import Manifest
data = Manifest(tensors={}, packs=(), files=()).to_bytes()
begin = threading.Barrier(8)
def read():
    begin.wait()
    sys.stdout.write(f"{Manifest.from_bytes(data).tensors}\\n")  # print writes its newline on its own
sys.setswitchinterval(1e-6)
for thread in (threads := [threading.Thread(target=read) for _ in range(8)]):
    thread.start()
for thread in threads:
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", threads], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, 8 * "{}\n"), done.stderr
