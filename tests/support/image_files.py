"""Random images, and files of them in the formats of Fashion-MNIST and CIFAR-10."""

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


def write_fashion_mnist(folder: Path) -> None:
    """Writes Fashion-MNIST's four files with random images: 1,200 for training, and 100."""
    for part, n in (("train", 1200), ("t10k", 100)):
        for kind, values in zip(("images-idx3", "labels-idx1"), random_images(n, 28, 28), strict=True):
            write_idx(folder / f"{part}-{kind}-ubyte.gz", values)


def write_cifar10(path: Path) -> Path:
    """Writes an npz with random images of CIFAR-10's size, 240 for training and 60, and returns its path."""
    (x_train, y_train), (x_test, y_test) = random_images(240, 32, 32, 3), random_images(60, 32, 32, 3)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path
