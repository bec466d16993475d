"""The reader of idx files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from nas.core.errors import ConfigurationError
from nas.problems.images.idx import parse_idx, read_idx


def idx(array: NDArray[np.uint8]) -> bytes:
    """Returns the array as an idx file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@given(arrays(np.uint8, array_shapes(max_dims=4, max_side=5)))
def test_array_comes_back(array: NDArray[np.uint8]) -> None:
    """An array is read in the same shape, and can be changed in place."""
    read = parse_idx(idx(array), array.ndim)

    assert np.array_equal(read, array)
    assert read.shape == array.shape
    assert read.flags.writeable


@given(array=arrays(np.uint8, array_shapes(max_dims=3, max_side=3)), cut=st.integers(1, 40))
def test_any_cut_is_noticed(array: NDArray[np.uint8], cut: int) -> None:
    """A file cut at any byte is refused in one line."""
    whole = idx(array)

    with pytest.raises(ConfigurationError) as caught:
        parse_idx(whole[: max(0, len(whole) - cut)], array.ndim)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compress", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_files_may_be_compressed_or_not(tmp_path: Path, compress: type[bytes]) -> None:
    """Gzipped and plain files give the same array."""
    (tmp_path / "file.gz").write_bytes(compress(idx(np.arange(6, dtype=np.uint8).reshape(2, 3))))

    assert read_idx(str(tmp_path / "file.gz"), 2).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "starts with nothing: an idx file must start with 00 00 08 02"),
        (b"<html>404</html>", "starts with 3c 68 74 6d: an idx file must start with 00 00 08 02"),
        (idx(np.zeros(3, np.uint8)), "starts with 00 00 08 01: an idx file must start with 00 00 08 02"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"has 17 bytes, but shape \(2, 3\) needs 18"),
        (idx(np.zeros((2, 3), np.uint8)) + b"\0", "has 19 bytes"),
        (gzip.compress(idx(np.zeros((2, 3), np.uint8)), mtime=0)[:-9], "Compressed file ended"),
        (gzip.compress(b"", mtime=0)[:10] + b"\xff" * 9, "invalid block type"),
        (b"\x1f\x8bnonsense", "method"),
    ],
    ids=["empty", "html", "other rank", "short", "long", "torn gzip", "bad gzip", "no gzip"],
)
def test_malformed_file_is_named(tmp_path: Path, contents: bytes, message: str) -> None:
    """A file that is no whole idx file is refused by name with the reason."""
    (tmp_path / "some.gz").write_bytes(contents)

    with pytest.raises(ConfigurationError, match=message) as caught:
        read_idx(str(tmp_path / "some.gz"), 2)
    assert "some.gz can't be read: " in str(caught.value)
