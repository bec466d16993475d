"""Random images, and files of images in MNIST's format."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np


def random_images(n: int, *shape: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns random pixels ``(n, *shape)`` and as many labels from 0 to 9."""
    rng = np.random.default_rng(n)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))
