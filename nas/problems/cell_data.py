"""The images of `nas.problems.cells`: data sets of other problems, averaged to a smaller side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.validation import check_choice, check_int
from nas.problems.cifar10 import Cifar10Problem
from nas.problems.digits import DigitsProblem
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.augmentation import Augmentation
from nas.problems.images.fit import Recipe
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set and the defaults for it.

    Attributes:
        problem: The problem that reads it.
        options: Those of ``data_root``, ``data_file`` and ``data_options`` that the problem has.
        side: The side to which images are averaged.
        epoch_steps: The steps of a supernet epoch.
        recipe: The training of a network alone.
    """

    problem: type[ImageProblem]
    options: frozenset[str] = frozenset()
    side: int
    epoch_steps: int
    recipe: Recipe


def _recipe(n_epochs: int, n_epochs_early: int, augmentation: Augmentation | None) -> Recipe:
    return Recipe(
        n_epochs=n_epochs,
        n_epochs_early=n_epochs_early,
        n_train_downscaled=None,
        n_validation_quick=500,
        batch_size=64,
        augmentation=augmentation,
    )


DATA_SETS: Mapping[str, DataSet] = MappingProxyType(
    {
        "digits": DataSet(problem=DigitsProblem, side=8, epoch_steps=250, recipe=_recipe(30, 3, None)),
        "fashion_mnist": DataSet(
            problem=FashionMnistProblem,
            options=frozenset({"data_root", "data_options"}),
            side=16,
            epoch_steps=2_000,
            recipe=_recipe(12, 1, Augmentation(flip=True, shift=1, erase=0)),
        ),
        "cifar10": DataSet(
            problem=Cifar10Problem,
            options=frozenset({"data_file", "data_options"}),
            side=16,
            epoch_steps=2_000,
            recipe=_recipe(24, 1, Augmentation(flip=True, shift=2, erase=0)),
        ),
    }
)


def data_set(name: str) -> DataSet:
    """Returns the data set of this name.

    Raises:
        ConfigurationError: the name is unknown.
    """
    return DATA_SETS[check_choice("problem.data", name, tuple(DATA_SETS))]


def source_of(name: str, *, split_seed: int, options: Mapping[str, Any]) -> ImageProblem:
    """Returns the problem that reads a data set.

    Args:
        name: The name of the data set.
        split_seed: The seed that selects the validation images.
        options: ``data_root``, ``data_file`` and ``data_options``; those that are None are not given.

    Raises:
        ConfigurationError: an option belongs to other data, or the data are not there.
    """
    given = {option: value for option, value in options.items() if value is not None}
    found = data_set(name)
    for option in given:
        if option not in found.options:
            having = ", ".join(other for other, kind in DATA_SETS.items() if option in kind.options)
            raise ConfigurationError(
                f"problem.{option}: must be left out with problem.data={name}. It belongs to data={having}"
            )
    build: Any = found.problem
    source: ImageProblem = build(split_seed=split_seed, **given)
    return source


def checked_side(side: int | None, name: str, source: ImageProblem) -> int:
    """Returns the side of the images; None: the data set's default.

    Raises:
        ConfigurationError: it can't be halved twice, or is larger than the images.
    """
    if side is None:
        return data_set(name).side
    most = min(source.image_shape[1:])
    check_int("problem.side", side, 4, most)
    if side % 4:
        raise ConfigurationError(f"problem.side={side}: must be a multiple of 4. Two of the three stages halve it")
    return side


def shrunk(images: Images, side: int) -> Images:
    """Returns the images averaged to ``(n, channels, side, side)``, rounded to bytes."""
    if images.pixels.shape[-2:] == (side, side):
        return images
    parts = torch.split(images.pixels, 10_000)  # floats take four times the memory
    means = [functional.adaptive_avg_pool2d(part.float(), side).round_().to(torch.uint8) for part in parts]
    return Images(torch.cat(means), images.labels)
