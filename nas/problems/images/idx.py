"""The idx format of MNIST.

Two zeros, a type, the number of dimensions, the sizes, the values. Sizes are big-endian.
(LeCun, Cortes and Burges 1998, http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.core.errors import ConfigurationError
from nas.storage.remote_file import read_file, unzipped

_UNSIGNED_BYTE = 0x08


def read_idx(url: str, n_dimensions: int, options: Mapping[str, Any] | None = None) -> NDArray[np.uint8]:
    """Returns the array of an idx file of bytes, gzipped or not, at any fsspec URL.

    Raises:
        ConfigurationError: it can't be read, or is not a complete idx file of that many dimensions.
    """
    try:
        return parse_idx(unzipped(read_file(url, options or {})), n_dimensions)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # an incomplete gzip file raises any of the last three
        raise ConfigurationError(f"{url} can't be read: {error}") from error


def parse_idx(raw: bytes, n_dimensions: int) -> NDArray[np.uint8]:
    """Returns the content of an idx file as a writable array.

    Raises:
        ConfigurationError: it is not an idx file of bytes in that many dimensions, or has the wrong length.
    """
    magic = bytes([0, 0, _UNSIGNED_BYTE, n_dimensions])
    if raw[:4] != magic:
        found = raw[:4].hex(" ") or "nothing"
        raise ConfigurationError(f"it starts with {found}: an idx file must start with {magic.hex(' ')}")
    start = 4 + 4 * n_dimensions
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4))
    if len(raw) != start + math.prod(shape):
        raise ConfigurationError(
            f"it has {len(raw):,} bytes, but shape {shape} needs {start + math.prod(shape):,}; it may be incomplete"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()
