"""Labeled images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nas.core.errors import ConfigurationError

N_CLASSES = 10
MIN_IMAGES = 6


@dataclass(frozen=True, slots=True)
class Images:
    """Images and labels: ``pixels`` uint8 ``(n, channels, height, width)``, ``labels`` int64 ``(n,)``."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: slice | Tensor) -> Images:
        """Returns the images of a slice, or of a tensor of indices."""
        return Images(self.pixels[which], self.labels[which])

    def to(self, device: str) -> Images:
        """Returns the same images on this device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def split(images: Images, seed: int) -> tuple[Images, Images]:
    """Returns five sixths for training and a sixth for validation, shuffled by the seed.

    Raises:
        ConfigurationError: there are too few images.
    """
    if len(images) < MIN_IMAGES:
        raise ConfigurationError(f"{len(images)} images for training and validation: must be at least {MIN_IMAGES}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    n_validation = len(order) // 6
    return images[order[n_validation:]], images[order[:n_validation]]
