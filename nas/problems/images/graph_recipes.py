"""Networks of graphs for small images, and their search space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int
from nas.problems.images.augmentation import Augmentation
from nas.problems.images.fit import Recipe
from nas.problems.images.pixels import N_CLASSES
from nas.spaces.graphs.layers import Shape
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.space import GraphSpace
from nas.spaces.graphs.starts import plain_cnn
from nas.spaces.parameters.space import Float
from nas.training.precision import checked_precision

WIDTHS: tuple[Sequence[int], ...] = ([16, 64, 128, 128], [32, 64, 128, 128], [32, 64, 128, 128, 128])
"""The channels of the initial networks. They halve the image early, so they train fast (docs/decisions/060)."""
N_STARTS = 3
"""The number of initial networks: the largest within the limits."""


class ImageGraph(GraphModule):
    """A network of a graph that takes raw pixels.

    Args:
        network: The graph.
        pixel_mean: Mean of all pixels of the training images.
        pixel_std: Standard deviation of all pixels of the training images.
    """

    def __init__(self, network: Network, *, pixel_mean: float, pixel_std: float) -> None:
        super().__init__(network)
        self.pixel_mean, self.pixel_std = pixel_mean, pixel_std
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.5 times as fast on a CPU

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns logits ``(batch, 10)`` of raw pixels ``(batch, channels, height, width)``."""
        x = (pixels.float() - self.pixel_mean) / self.pixel_std
        return super().forward(x.contiguous(memory_format=torch.channels_last))


def image_graphs(
    shape: Shape, widths: Sequence[Sequence[int]], max_flops: int, max_activations: int | None = None
) -> GraphSpace:
    """Returns the space of networks for images of this shape, with a learning rate.

    The initial networks are the three largest within the limits.

    Args:
        shape: Channels, height and width.
        widths: The channels of each possible initial network, block by block, from the smallest network on.
        max_flops: Most FLOPs of a network for one image.
        max_activations: Most activations of all layers together for one image; None: any.

    Raises:
        ConfigurationError: all initial networks need more.
    """
    starts = [plain_cnn(shape, N_CLASSES, widths=channels, pool_after=[0, 1, 2]) for channels in widths]
    limits = Limits(nodes=80, size=3 * max(map(max, widths)) // 2)
    costs = {"flops": max_flops} | ({} if max_activations is None else {"activations": max_activations})
    for cost, most in costs.items():
        check_int(name := f"problem.max_{cost}", most, 1)
        if most < (least := min(getattr(start, cost) for start in starts)):
            raise ConfigurationError(
                f"{name}={most}: must be at least {least:,}, the cost of the smallest initial network"
            )
        starts = [start for start in starts if getattr(start, cost) <= most]
        limits = replace(limits, **{cost: most})
    return GraphSpace(starts[-N_STARTS:], {"learning_rate": Float(0.02, 0.2, log=True)}, limits=limits, n_moves=4)


def graph_recipe(n_epochs: int, precision: str, augmentation: Augmentation) -> Recipe:
    """Returns the training settings of such networks.

    Raises:
        ConfigurationError: the precision is unknown.
    """
    return Recipe(
        n_epochs=n_epochs,
        n_epochs_early=1,
        n_train_downscaled=None,
        n_validation_quick=5_000,
        batch_size=128,
        augmentation=augmentation,
        precision=checked_precision(precision),
    )
