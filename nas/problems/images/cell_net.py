"""Networks of NAS-Bench-201 cells (Dong and Yang 2020, arXiv:2001.00326) for small images.

A convolution, three stages of equal cells, and a linear layer over the mean of each channel. Each stage has twice the
channels and half the side of the one before.

Differs: the reduction between stages may have no parameters (`nas.supernets.operations.Halve`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.validation import check_choice, check_int
from nas.problems.images.pixels import N_CLASSES
from nas.supernets.cell import Cell
from nas.supernets.operations import Halve, Operations, ResidualReduction

N_NODES = 4
N_STAGES = 3
SHARED = Operations(affine=False, track_running_stats=False)
"""The operations of a supernet, and of networks that share weights with it."""
OWN = Operations(affine=True, track_running_stats=True)
"""The operations of a network that is trained alone and in full."""
_REDUCTIONS: Mapping[str, Callable[[Operations, int], nn.Module]] = MappingProxyType(
    {"pool": lambda _, __: Halve(), "residual": ResidualReduction}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The part of a network that does not depend on the cell.

    Attributes:
        reduction: The layer between stages. ``pool``: average pooling and the channels ``(x, -x)``, without parameters.
            ``residual``: the published residual block.
        channels: The channels of the first stage.
        cells_per_stage: The number of cells in each stage; 5 in NAS-Bench-201.

    Raises:
        ConfigurationError: a value is not allowed.
    """

    reduction: str = "pool"
    channels: int = 16
    cells_per_stage: int = 1

    def __post_init__(self) -> None:
        check_choice("problem.reduction", self.reduction, tuple(_REDUCTIONS))
        check_int("problem.channels", self.channels, 1, 4096)
        check_int("problem.cells_per_stage", self.cells_per_stage, 1, 100)


class CellNet(nn.Module):
    """The supernet of all cells.

    The two norms outside the cells scale and shift in any case.

    Args:
        skeleton: The fixed part.
        operations: The options of an edge.
        n_inputs: The channels of the images.
        pixel_mean: Mean of all pixels of the training images.
        pixel_std: Standard deviation of all pixels of the training images.
    """

    def __init__(
        self, skeleton: Skeleton, operations: Operations, *, n_inputs: int, pixel_mean: float, pixel_std: float
    ) -> None:
        super().__init__()
        self.pixel_mean, self.pixel_std = pixel_mean, pixel_std
        width, has_statistics = skeleton.channels, operations.track_running_stats
        self.stem = nn.Sequential(
            nn.Conv2d(n_inputs, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, track_running_stats=has_statistics),
        )
        self.stages = nn.Sequential()
        for stage in range(N_STAGES):
            if stage:
                self.stages.append(_REDUCTIONS[skeleton.reduction](operations, width))
                width *= 2
            for _ in range(skeleton.cells_per_stage):
                self.stages.append(Cell(N_NODES, _edge_options(operations, width)))
        self.norm = nn.BatchNorm2d(width, track_running_stats=has_statistics)
        self.head = nn.Linear(width, N_CLASSES)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.5 times as fast on a CPU

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns logits ``(batch, 10)`` of raw pixels ``(batch, n_inputs, height, width)``."""
        x = (pixels.float() - self.pixel_mean) / self.pixel_std
        x = self.stages(self.stem(x.contiguous(memory_format=torch.channels_last)))
        logits: Tensor = self.head(functional.relu(self.norm(x)).mean((2, 3)))  # (batch, channels) to (batch, 10)
        return logits


def _edge_options(operations: Operations, width: int) -> Callable[[int], Mapping[str, nn.Module]]:
    """Returns the function that makes an edge's options for a stride."""
    return lambda stride: operations.all(width, stride=stride)


def initialized(network: nn.Module) -> nn.Module:
    """Returns a network of the meta device on torch's default device, newly initialized.

    Its supernet is built without numbers, and only the layers of the cell get some.
    """
    device = torch.get_default_device()
    for module in network.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(_empty(parameter, device), parameter.requires_grad))
        for name, buffer in [*module.named_buffers(recurse=False)]:
            setattr(module, name, _empty(buffer, device))
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            module.reset_parameters()
    return network


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns what ``empty_like`` does, without its detour for the meta device."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
