"""CIFAR-10 (Krizhevsky 2009): color images of ten classes, 32x32."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.core.validation import check_int, check_seed
from nas.inheritance.rules import Rules
from nas.problems.images.augmentation import Augmentation
from nas.problems.images.graph_recipes import WIDTHS, graph_recipe
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import N_CLASSES, Images, split
from nas.storage.remote_file import check_file, checked_options, read_file

HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_REMEDY = f"Download {HOME} and set problem.data_file=FILE"
_SHAPE = (3, 32, 32)
AUGMENTATION = Augmentation(flip=True, shift=4, erase=8)
"""Shifts as in He et al. 2016 (arXiv:1512.03385); squares of half the published side."""
_PARTS = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}


@final
class Cifar10Problem(ImageProblem):
    """CIFAR-10, or a part of it, with network graphs (`nas.problems.images.graph_recipes`).

    Source: "Learning Multiple Layers of Features from Tiny Images". A sixth of the training images is for validation.
    The test images are for ``test`` alone.

    Args:
        data_file: The authors' binary archive or an ``npz``, as a path or fsspec URL. It is read when the first trial
            is trained. An npz has ``x_train``, ``y_train``, ``x_test``, ``y_test``; images are uint8
            ``(n, 32, 32, 3)``.
        data_options: Options for fsspec.
        split_seed: The seed that chooses the validation images.
        n_epochs: Epochs of a full training.
        max_flops: Most FLOPs of a network for one image; a multiplication and an addition are two. None: 400,000,000.
        max_activations: Most activations of all layers together for one image; None: any.
        precision: Precision of training: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`).
        objectives: ``accuracy`` and others of ``ImageProblem.OBJECTIVES``; None: accuracy alone.
        rules: Inheritance rules by name (`nas.inheritance.rules`); None: the defaults.

    Raises:
        ConfigurationError: the file does not exist, its host does not respond, or a number is out of range.
    """

    policies = ImageProblem.policies - {Policy.DOWNSCALE}
    shortens_finals = True
    pixel_mean = 120.71
    pixel_std = 64.15
    image_shape = _SHAPE
    initial_widths = (*WIDTHS, [48, 96, 192, 192, 192], [64, 128, 256, 256, 256], [96, 192, 384, 384, 384])
    default_max_flops = 400_000_000
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_file", "data_options"})
    data_files: ClassVar[frozenset[str]] = frozenset({"data_file"})

    def __init__(
        self,
        data_file: str = HOME,
        *,
        data_options: Mapping[str, Any] | None = None,
        split_seed: int = 0,
        n_epochs: int = 96,
        max_flops: int | None = None,
        max_activations: int | None = None,
        precision: str = "auto",
        objectives: Sequence[str] | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        check_seed("problem.split_seed", split_seed)
        check_int("problem.n_epochs", n_epochs, 1)
        self.data_file = data_file
        self.data_options = checked_options("problem.data_options", data_options)
        self.split_seed = split_seed
        self.choose_objectives(objectives)
        self.rules = Rules.of(rules)
        self.space = self.graph_space(max_flops, max_activations)
        self.recipe = graph_recipe(n_epochs, precision, AUGMENTATION)
        check_file("problem.data_file", data_file, self.data_options, _REMEDY)

    def load_train(self) -> tuple[Images, Images]:
        """Returns five sixths of the training images (41,667 of all) and, for validation, the rest."""
        train, self._test = self._load("train", "test")
        return split(train, self.split_seed)

    def load_test(self) -> Images:
        """Returns the test images: 10,000 in the whole set."""
        return self._test

    @cached_property
    def _test(self) -> Images:
        """The test images, kept for all finalists that this process scores; ``load_train`` reads them, too."""
        return self._load("test")[0]

    def _load(self, *parts: str) -> list[Images]:
        try:
            content = read_file(self.data_file, self.data_options)
            read = _from_npz if content.startswith(b"PK") else _from_archive
            found = [*read(content, parts)]
        except (OSError, EOFError, ValueError, KeyError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise ConfigurationError(
                f"problem.data_file={self.data_file}: must be the authors' archive or an npz ({error}). {_REMEDY}."
            ) from error
        for pixels, labels in found:
            if pixels.shape[1:] != _SHAPE or not 0 < len(pixels) == len(labels) or not _are_labels(labels):
                raise ConfigurationError(
                    f"problem.data_file={self.data_file}: must be images of shape {_SHAPE} and as many labels from 0 "
                    f"to {N_CLASSES - 1}, not images of shape {pixels.shape} with {len(labels)} labels. {_REMEDY}."
                )
        return [Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))) for pixels, labels in found]


def _are_labels(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "iu" and bool(((labels >= 0) & (labels < N_CLASSES)).all())


def _from_npz(content: bytes, parts: Sequence[str]) -> Iterator[tuple[NDArray[np.uint8], NDArray[Any]]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for part in parts:
            pixels = np.ascontiguousarray(arrays[f"x_{part}"].transpose(0, 3, 1, 2))
            if pixels.dtype != np.uint8:
                raise ValueError(f"x_{part} has dtype {pixels.dtype}: must be uint8")
            yield pixels, arrays[f"y_{part}"].reshape(-1)


def _from_archive(content: bytes, parts: Sequence[str]) -> Iterator[tuple[NDArray[np.uint8], NDArray[Any]]]:
    """Reads records of a label and then the pixels, channel by channel."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {member.name.rpartition("/")[2]: member for member in archive.getmembers() if member.isfile()}
        for part in parts:
            files = [archive.extractfile(members[name]) for name in _PARTS[part]]
            raw = b"".join(file.read() for file in files if file is not None)
            records = np.frombuffer(raw, np.uint8).reshape(-1, 1 + int(np.prod(_SHAPE)))
            yield records[:, 1:].reshape(-1, *_SHAPE).copy(), records[:, 0].copy()
