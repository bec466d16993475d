"""Layers with sizes that a point chooses (Once-for-all, Cai et al. 2020, arXiv:1908.09791).

A smaller layer has the first channels or features of the largest layer, and the middle of its kernel. These are the
tensors that `nas.inheritance.inherit.inherit` gives a child of its size under ``Rules(rest="own")``. Differs from the
paper: no matrix changes kernels, and channels are not sorted.

>>> width = Elastic("width", (8, 16, 32))
>>> network = nn.Sequential(ElasticConv2d(1, width), ElasticBatchNorm2d(width), nn.ReLU(), ElasticConv2d(width, 8))

`nas.supernets.module.space_of` then has a parameter ``width``. The layers are in `nas.supernets.elastic_layers`,
``elastic_norms``, ``elastic_blocks`` and ``elastic_transformer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from nas.core.point import Point
from nas.inheritance.tensor_blocks import overlap
from nas.spaces.parameters.space import Parameter
from nas.supernets.module import SearchableModule, searchable_modules
from nas.supernets.sizes import Elastic, Size, factors_of, largest, size_at

_Layer = TypeVar("_Layer", bound=nn.Module)


class ElasticModule(SearchableModule):
    """A module with sizes that a point chooses. Until ``select`` is called, they are the largest."""

    _sizes: dict[str, Size]
    _chosen: dict[str, int]

    def declare(self, sizes: Mapping[str, Size]) -> None:
        """Sets the sizes of the module by name; a constructor calls it last."""
        self._sizes = dict(sizes)
        self._chosen = {name: largest(size) for name, size in sizes.items()}

    def decisions(self) -> Mapping[str, Parameter]:
        """Returns the decision of each elastic size by its label."""
        return {size.label: size.decision for size in self.elastic_sizes}

    @property
    def elastic_sizes(self) -> list[Elastic]:
        """The sizes that a point chooses."""
        return list(factors_of(*self._sizes.values()).values())

    def select(self, point: Point) -> None:
        """Selects the sizes of later forward passes."""
        self._chosen = self.sizes_at(point)

    def sizes_at(self, point: Point) -> dict[str, int]:
        """Returns the sizes that a point chooses, by name.

        Raises:
            PointError: the point lacks a label, or has another size.
        """
        return {name: size_at(size, point) for name, size in self._sizes.items()}


def extremes(network: nn.Module, others: Point | None = None) -> tuple[Point, Point]:
    """Returns the points of the largest and of the smallest sizes, as `nas.supernets.paths.SandwichPaths` takes them.

    Args:
        network: A network with elastic modules.
        others: The values of all other decisions, in both points.
    """
    elastic = [module for module in searchable_modules(network) if isinstance(module, ElasticModule)]
    sizes = {size.label: size.sizes for module in elastic for size in module.elastic_sizes}
    points = ({**(others or {}), **{label: own[end] for label, own in sizes.items()}} for end in (-1, 0))
    largest_point, smallest_point = points
    return largest_point, smallest_point


def part_of(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a view of the first channels or features, and of the middle of the kernel.

    Dimensions from the third on are those of the kernel.
    """
    return tensor[overlap(shape, tensor.shape, 2)[1]]


def with_parts(layer: _Layer, source: nn.Module) -> _Layer:
    """Returns the layer with copies of parts of the source's tensors.

    The layer is on the device meta. Names of tensors are the same.
    """
    tensors = source.state_dict()
    return with_copies(
        layer, source, {name: part_of(tensors[name], own.shape) for name, own in layer.state_dict().items()}
    )


def with_copies(layer: _Layer, source: nn.Module, parts: Mapping[str, Tensor]) -> _Layer:
    """Returns the layer with copies of these parts of the source's tensors.

    The layer is on the device meta.
    """
    copies = {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
    layer.load_state_dict(copies, assign=True)
    for name, parameter in source.named_parameters():
        layer.get_parameter(name).requires_grad_(parameter.requires_grad)
    return layer.train(source.training)
