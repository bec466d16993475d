"""Learned positions of images: a square grid of patches, resampled for a grid of another size.

Positions of texts have no grid, and keep their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

_OFFSETS = "relative_position_bias_table"
"""A bias for each offset between two patches of a window, as in Swin and BEiT."""
_N_OFFSETS_OF_CLASS = 3
"""Offsets to, from and within the class token; BEiT has them behind the grid."""


class Grid(NamedTuple):
    """A square grid of positions along a dimension of a tensor.

    Attributes:
        dim: The dimension.
        n_before: The number of other positions before the grid: class tokens.
        n_after: The number behind it.
    """

    dim: int
    n_before: int = 0
    n_after: int = 0

    def side(self, tensor: Tensor) -> int:
        """Returns the side of a tensor's grid; 0 if the positions are no square grid."""
        n_positions = tensor.shape[self.dim] - self.n_before - self.n_after
        side = math.isqrt(max(n_positions, 0))
        return side if side * side == n_positions else 0

    def is_resized(self, child: Tensor, donor: Tensor) -> bool:
        """Returns whether two tensors have other numbers of positions."""
        return child.shape[self.dim] != donor.shape[self.dim]

    def resampled(self, values: Tensor, side: int) -> Tensor:
        """Returns the values with a grid of this side, by bilinear interpolation; other positions stay."""
        own, rows = self.side(values), values.movedim(self.dim, 0)
        before, grid, after = torch.split(rows, [self.n_before, own * own, self.n_after])
        wide = torch.promote_types(values.dtype, torch.float32)
        image = grid.to(wide).reshape(1, own, own, -1).movedim(-1, 1)
        larger = functional.interpolate(image, size=(side, side), mode="bilinear", align_corners=False)
        new = larger.movedim(1, -1).reshape(side * side, *grid.shape[1:]).to(values.dtype)
        return torch.cat([before, new, after]).movedim(0, self.dim)


def grids_of(model: nn.Module) -> dict[str, Grid]:
    """Returns the grids of a model's learned positions of images, by the tensors' names."""
    found: dict[str, Grid] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        parent = modules[path.rpartition(".")[0]]
        is_below = parent is not module and any(map(_is_patch_layer, parent.children()))  # torchvision's
        if (is_below or _has_patches(module)) and not any(map(_is_of_symbols, module.named_children())):
            is_square = not any(map(_is_oblong, (module, *module.children())))
            positions = _positions(module)
            found |= {f"{path}.{name}".lstrip("."): _grid(tensor, is_square=is_square) for name, tensor in positions}
        offsets = module._parameters.get(_OFFSETS)
        if offsets is not None and not is_lazy(offsets) and offsets.dim() == 2:
            found[f"{path}.{_OFFSETS}".lstrip(".")] = Grid(0, 0, 0 if Grid(0).side(offsets) else _N_OFFSETS_OF_CLASS)
    return found


def _positions(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields a module's own learned positions, ``(..., positions, width)``, flat or not."""
    for name, tensor in module.named_parameters(recurse=False):
        if "pos" in name and "embed" in name and not is_lazy(tensor) and tensor.dim() >= 2:
            yield name, tensor
    for name, layer in module.named_children():
        if "pos" in name and isinstance(layer, nn.Embedding):
            yield f"{name}.weight", layer.weight


def _grid(tensor: Tensor, *, is_square: bool) -> Grid:
    """Returns the grid of learned positions, behind class tokens if they are no square.

    Without a square, all positions count as other positions.
    """
    dim = tensor.dim() - 2
    n_positions = tensor.shape[dim]
    is_flat = is_square and tensor.dim() <= 3
    return Grid(dim, n_positions - math.isqrt(n_positions) ** 2 if is_flat else n_positions)


def _has_patches(module: nn.Module) -> bool:
    """Returns whether a module has a layer that cuts patches, or a child has one."""
    return any(
        _is_patch_layer(child) or (any(map(_is_patch_layer, child.children())) and not any(_positions(child)))
        for child in module.children()
    )


def _is_patch_layer(layer: nn.Module) -> bool:
    """Returns whether a layer convolves images with kernels that do not overlap."""
    return isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride and max(layer.kernel_size) > 1


def _is_of_symbols(child: tuple[str, nn.Module]) -> bool:
    """Returns whether a named layer embeds symbols: positions beside it may be of a text."""
    name, layer = child
    return isinstance(layer, nn.Embedding) and "pos" not in name and "type" not in name


def _is_oblong(module: nn.Module) -> bool:
    """Returns whether a module names an image or a grid of patches that is no square."""
    sizes = (getattr(module, name, None) for name in ("grid_size", "image_size", "img_size"))
    return any(isinstance(size, tuple | list) and len(set(size)) > 1 for size in sizes)
