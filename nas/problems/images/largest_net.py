"""The largest network of a space of blocks, which contains every smaller one.

A smaller network lies in its tensors: channels at the beginning, kernels in the middle, zeros around. If zeros get no
gradient (``inside``), they stay zeros, and the network trains as it would alone. So networks of different points can be
lanes of one stack (`nas.problems.images.stack`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.problems.images.conv_net import GROUP, Block, ConvNet, ResidualUnit
from nas.problems.images.pixels import N_CLASSES
from nas.spaces.domain import Categorical
from nas.spaces.parameters.space import ParameterSpace

Region = tuple[slice, ...]


class LargestConvNet(ConvNet):
    """A `ConvNet` with all blocks, units, channels and kernels of a space.

    ``forward`` is for training only, and computes one lane: ``torch.func.vmap`` adds the others.

    Args:
        space: A space of blocks.
    """

    def __init__(
        self, space: ParameterSpace, *, n_inputs: int, n_halves: int, pixel_mean: float, pixel_std: float
    ) -> None:
        point = largest_point(space)
        super().__init__(point, n_inputs=n_inputs, n_halves=n_halves, pixel_mean=pixel_mean, pixel_std=pixel_std)
        widths = [point[f"width_{i}"] * n_halves // 2 for i in range(1, point["n_blocks"] + 1)]
        self.head = nn.Linear(max(widths), N_CLASSES)

    def forward(  # type: ignore[override]
        self, pixels: Tensor, is_last: Tensor, is_batch: Tensor, dropout: Tensor, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns logits ``(batch, 10)``, and the means and variances of each batch-norm by name.

        Args:
            pixels: Raw pixels ``(batch, n_inputs, height, width)``.
            is_last: ``(n_blocks,)``: 1 at the network's last block, else 0.
            is_batch: ``()``: whether the norm is batch-norm, not group-norm.
            dropout: ``()``: the probability of dropout.
            noise: ``(batch, features)``: uniform random numbers in [0, 1).
        """
        statistics: dict[str, Tensor] = {}
        x = (pixels.float() - self.pixel_mean) / self.pixel_std
        features = torch.zeros_like(noise)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            pooled = functional.max_pool2d(block.conv(x), 2)
            x = functional.relu(_normalized(pooled, block.norm, is_batch, statistics, f"blocks.{i}.norm"))
            for j, unit in enumerate(block.units):
                assert isinstance(unit, ResidualUnit)
                name = f"blocks.{i}.units.{j}.norm"
                x = functional.relu(x + _normalized(unit.conv(x), unit.norm, is_batch, statistics, name))
            mean = x.mean((2, 3))
            features = features + is_last[i] * functional.pad(mean, (0, features.shape[1] - mean.shape[1]))
        kept = features * (noise >= dropout) / (1 - dropout)
        return self.head(kept), statistics


def _normalized(x: Tensor, norm: nn.Module, is_batch: Tensor, statistics: dict[str, Tensor], name: str) -> Tensor:
    """Returns ``x`` after batch-norm or group-norm, and adds the batch's statistics."""
    assert isinstance(norm, nn.BatchNorm2d)
    weight, bias, eps = norm.weight, norm.bias, norm.eps
    by_batch, mean, inverse = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
    by_group = functional.group_norm(x, x.shape[1] // GROUP, weight.to(x.dtype), bias.to(x.dtype), eps)
    n = x.shape[0] * x.shape[2] * x.shape[3]
    statistics[f"{name}.running_mean"] = mean.detach()
    statistics[f"{name}.running_var"] = ((inverse.detach() ** -2) - eps) * (n / max(n - 1, 1))
    return torch.where(is_batch, by_batch, by_group)


def largest_point(space: ParameterSpace) -> Point:
    """Returns the point with the last options, the highest numbers, and batch-norm."""
    most = space.decide(lambda path, domain: domain.n - 1 if isinstance(domain, Categorical) else domain.high)
    return {**most, "norm": "batch"}


def region(small: Sequence[int], large: Sequence[int]) -> Region:
    """Returns where a tensor of the shape ``small`` lies in one of the shape ``large``.

    Dimensions from the third on are those of kernels.
    """
    starts = [0 if dim < 2 else (b - a) // 2 for dim, (a, b) in enumerate(zip(small, large, strict=True))]
    return tuple(slice(start, start + a) for start, a in zip(starts, small, strict=True))


def lane_settings(point: Point, n_blocks: int) -> Mapping[str, Tensor]:
    """Returns the arguments of ``LargestConvNet.forward`` that a point decides."""
    return {
        "is_last": functional.one_hot(torch.tensor(point["n_blocks"] - 1), n_blocks).float(),
        "is_batch": torch.tensor(point["norm"] == "batch"),
        "dropout": torch.tensor(float(point["dropout"])),
    }
