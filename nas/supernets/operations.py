"""Operations of cells, as in NAS-Bench-201 (arXiv:2001.00326) and DARTS (arXiv:1806.09055), and reductions.

Differs from DARTS: pooling has no normalization after it, as in NAS-Bench-201.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool, closest_names

NAS_BENCH_201 = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
DARTS = (
    "none",
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """A set of operations by name, and the kind of their batch-norm.

    In a supernet, batch-norm has neither statistics nor scales: each would be shared by paths that differ. A network
    that trains alone has both.

    Attributes:
        names: The names, in the order of the options; those of `NAS_BENCH_201` and `DARTS` are known.
        affine: Whether batch-norm learns a scale and a bias for each channel.
        track_running_stats: Whether batch-norm has running statistics. Without, it always uses those of the batch.

    Raises:
        ConfigurationError: there is no name, or an unknown one.
    """

    names: Sequence[str] = NAS_BENCH_201
    affine: bool = False
    track_running_stats: bool = False

    def __post_init__(self) -> None:
        check_bool("affine", self.affine)
        check_bool("track_running_stats", self.track_running_stats)
        if not self.names:
            raise ConfigurationError("operations=[]: must name one operation or more.")
        for name in self.names:
            if name not in _MAKERS:
                raise ConfigurationError(f"operations={name!r}: must be one of {closest_names(name, _MAKERS)}.")

    def all(self, n_channels: int, stride: int = 1) -> dict[str, nn.Module]:
        """Returns each operation by name, newly initialized."""
        return {name: self.make(name, n_channels, stride) for name in self.names}

    def make(self, name: str, n_channels: int, stride: int = 1) -> nn.Module:
        """Returns an operation that keeps the channels and divides height and width by the stride."""
        return _MAKERS[name](self, n_channels, stride)

    def norm(self, n_channels: int) -> nn.BatchNorm2d:
        """Returns batch-norm of this kind."""
        return nn.BatchNorm2d(n_channels, affine=self.affine, track_running_stats=self.track_running_stats)

    def conv(self, n_inputs: int, n_outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
        """Returns ReLU, a convolution ``kernel x kernel`` and batch-norm."""
        convolution = nn.Conv2d(n_inputs, n_outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(nn.ReLU(), convolution, self.norm(n_outputs))

    def separable(self, n_channels: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
        """Returns ReLU, a convolution within each channel, one across channels, and batch-norm."""
        padding = dilation * (kernel // 2)
        within = nn.Conv2d(
            n_channels, n_channels, kernel, stride, padding, dilation=dilation, groups=n_channels, bias=False
        )
        across = nn.Conv2d(n_channels, n_channels, 1, bias=False)
        return nn.Sequential(nn.ReLU(), within, across, self.norm(n_channels))


class Zero(nn.Module):
    """The operation ``none``: zeros."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to zeros, with height and width divided by the stride."""
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


class FactorizedReduction(nn.Module):
    """The operation ``skip_connect`` with stride 2: two convolutions 1x1, the second one pixel further."""

    def __init__(self, operations: Operations, n_channels: int) -> None:
        super().__init__()
        halves = n_channels - n_channels // 2, n_channels // 2
        self.convs = nn.ModuleList(nn.Conv2d(n_channels, half, 1, stride=2, bias=False) for half in halves)
        self.norm = operations.norm(n_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to half the height and width, which must be even."""
        first, second = self.convs
        x = functional.relu(x)
        normed: Tensor = self.norm(torch.cat([first(x), second(x[:, :, 1:, 1:])], 1))
        return normed


class Halve(nn.Module):
    """A reduction without parameters: mean of 2x2 pixels, then channels ``x`` and ``-x``.

    Between the stages of a supernet it leaves all learning to the cells, so that shared weights rank them
    (docs/guides/supernets.md).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to twice the channels, and half the height and width."""
        pooled: Tensor = functional.avg_pool2d(x, 2)
        return torch.cat([pooled, -pooled], 1)


class ResidualReduction(nn.Module):
    """The reduction of NAS-Bench-201: a residual block of stride 2 that doubles the channels."""

    def __init__(self, operations: Operations, n_channels: int) -> None:
        super().__init__()
        self.first = operations.conv(n_channels, 2 * n_channels, 3, stride=2)
        self.second = operations.conv(2 * n_channels, 2 * n_channels, 3)
        self.shortcut = nn.Conv2d(n_channels, 2 * n_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to twice the channels, and half the height and width."""
        total: Tensor = self.shortcut(functional.avg_pool2d(x, 2)) + self.second(self.first(x))
        return total


def _skip(operations: Operations, n_channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else FactorizedReduction(operations, n_channels)


def _separable_twice(operations: Operations, n_channels: int, kernel: int, stride: int) -> nn.Module:
    first = operations.separable(n_channels, kernel, stride=stride)
    return nn.Sequential(first, operations.separable(n_channels, kernel))


_MAKERS: Mapping[str, Callable[[Operations, int, int], nn.Module]] = MappingProxyType(
    {
        "none": lambda _, __, stride: Zero(stride),
        "skip_connect": _skip,
        "nor_conv_1x1": lambda kind, n, stride: kind.conv(n, n, 1, stride=stride),
        "nor_conv_3x3": lambda kind, n, stride: kind.conv(n, n, 3, stride=stride),
        "avg_pool_3x3": lambda _, __, stride: nn.AvgPool2d(3, stride, 1, count_include_pad=False),
        "max_pool_3x3": lambda _, __, stride: nn.MaxPool2d(3, stride, 1),
        "sep_conv_3x3": lambda kind, n, stride: _separable_twice(kind, n, 3, stride),
        "sep_conv_5x5": lambda kind, n, stride: _separable_twice(kind, n, 5, stride),
        "dil_conv_3x3": lambda kind, n, stride: kind.separable(n, 3, stride=stride, dilation=2),
        "dil_conv_5x5": lambda kind, n, stride: kind.separable(n, 5, stride=stride, dilation=2),
    }
)
