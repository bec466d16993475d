"""The network of a point with named parameters, for small images.

It is a chain of blocks and a linear layer over the mean of each channel. A block has a convolution, 2x2 max-pooling,
normalization, ReLU, and residual units of 3x3.

It is designed for inheritance. Modules are named by the index of their block, so names match in a wider or deeper
child. A new residual unit starts as the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.problems.images.pixels import N_CLASSES

GROUP = 4  # channels of a group in group-norm; a fixed size, so that a wider child keeps its parent's groups


class ConvNet(nn.Module):
    """The network of a point: ``n_blocks`` blocks, then dropout and a linear layer.

    Block ``i``, counted from 1, reads ``width_i``, ``kernel_i`` and, if the space has it, ``depth_i``.
    """

    def __init__(
        self, point: Point, *, n_inputs: int = 1, n_halves: int = 2, pixel_mean: float, pixel_std: float
    ) -> None:
        super().__init__()
        self.pixel_mean, self.pixel_std = pixel_mean, pixel_std
        self.blocks = nn.ModuleList()
        n_channels = n_inputs
        for i in range(1, point["n_blocks"] + 1):
            width = point[f"width_{i}"] * n_halves // 2
            depth = point.get(f"depth_{i}", 1)
            self.blocks.append(Block(n_channels, width, kernel=point[f"kernel_{i}"], depth=depth, norm=point["norm"]))
            n_channels = width
        self.dropout = nn.Dropout(point["dropout"])
        self.head = nn.Linear(n_channels, N_CLASSES)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.5 times as fast on a CPU

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns logits ``(batch, 10)`` of raw pixels ``(batch, n_inputs, height, width)``."""
        x = (pixels.float() - self.pixel_mean) / self.pixel_std
        x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.dropout(x.mean((2, 3))))  # (batch, width) to (batch, 10)
        return logits


class Block(nn.Module):
    """A convolution that halves height and width, and ``depth - 1`` residual units."""

    def __init__(self, n_inputs: int, width: int, *, kernel: int, depth: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_inputs, width, kernel, padding=kernel // 2, bias=False)
        self.norm = _norm(norm, width)
        self.units = nn.ModuleList(ResidualUnit(width, norm) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, n_inputs, height, width)`` to ``(batch, width, height // 2, width // 2)``."""
        pooled = functional.max_pool2d(self.conv(x), 2)  # pooling first: a quarter of the work for the rest
        x = functional.relu(self.norm(pooled))
        for unit in self.units:
            x = unit(x)
        return x


class ResidualUnit(nn.Module):
    """``relu(x + norm(conv(x)))``. The norm starts with zero weight, so a new unit is the identity."""

    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = _norm(norm, width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of ``x``, which must have no negative number."""
        return functional.relu(x + self.norm(self.conv(x)))


def _norm(kind: str, width: int) -> nn.BatchNorm2d | nn.GroupNorm:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(width // GROUP, width)
