"""The batches and learning rates of supernet epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nas.core.validation import check_int, check_number
from nas.problems.images.fit import Recipe
from nas.problems.images.pixels import Images

_LOWEST = 0.002  # share of the peak
_WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetSchedule:
    """The learning rate of each step: a short rise, then a cosine over all supernet epochs.

    Attributes:
        n_epochs: The supernet epochs in which the rate falls. Later ones keep the lowest rate.
        epoch_steps: The steps of an epoch.
        learning_rate: The peak.

    Raises:
        ConfigurationError: a value is out of range.
    """

    n_epochs: int
    epoch_steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_int("problem.n_supernet_epochs", self.n_epochs, 1)
        check_int("problem.epoch_steps", self.epoch_steps, 1)
        check_number("problem.learning_rate", self.learning_rate, 0, excluded=0)

    def rate(self, epoch: int, step: int) -> float:
        """Returns the learning rate at a step of an epoch, both counted from 0."""
        done = epoch * self.epoch_steps + step
        share = min(1.0, done / (self.n_epochs * self.epoch_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * share))
        return self.learning_rate * (min(1.0, (done + 1) / _WARM_UP_STEPS) * cosine + _LOWEST)

    def batches(
        self, images: Images, recipe: Recipe, optimizer: torch.optim.Optimizer, *, epoch: int, seed: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields pixels and labels for each step, and sets the optimizer's rate before it.

        Args:
            images: The training images.
            recipe: The batch size and the augmentation.
            optimizer: The optimizer of the supernet.
            epoch: The number of the epoch.
            seed: The seed of ``draw``.
        """
        for step, batch in enumerate(self.draw(images, recipe, seed=seed)):
            for group in optimizer.param_groups:
                group["lr"] = self.rate(epoch, step)
            yield batch

    def draw(self, images: Images, recipe: Recipe, *, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields pixels and labels for each step of an epoch.

        Images are taken in random orders, each image once an order, as far as they fill batches.

        Args:
            images: The training images.
            recipe: The batch size and the augmentation.
            seed: The seed of the orders and of the augmentation.
        """
        shuffling = torch.Generator().manual_seed(seed)
        n_batches, size = recipe.n_batches(len(images)), min(recipe.batch_size, len(images))
        order = torch.empty(0, dtype=torch.int64)
        for step in range(self.epoch_steps):
            if step % n_batches == 0:
                order = torch.randperm(len(images), generator=shuffling).to(images.pixels.device)
            batch = images[order[step % n_batches * size :][:size]]
            pixels = batch.pixels
            if recipe.augmentation is not None:
                pixels = recipe.augmentation.apply(pixels, shuffling)
            yield pixels, batch.labels
