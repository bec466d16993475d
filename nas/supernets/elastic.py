"""Layers with sizes that a point chooses (Once-for-all, Cai et al. 2020, arXiv:1908.09791).

A smaller layer has the first channels or features of the largest layer, and the middle of its kernel. These are the
tensors that `nas.inheritance.inherit.inherit` gives a child of its size under ``Rules(rest="own")``. Differs from the
paper: no matrix changes kernels, and channels are not sorted.

>>> width = Elastic("width", (8, 16, 32))
>>> network = nn.Sequential(ElasticConv2d(1, width), ElasticBatchNorm2d(width), nn.ReLU(), ElasticConv2d(width, 8))

`nas.supernets.module.space_of` then has a parameter ``width``. The layers are in `nas.supernets.elastic_layers`,
``elastic_norms`` and ``elastic_blocks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.inheritance.tensor_matching import overlap
from nas.spaces.parameters.space import Choice, Int, Parameter
from nas.supernets.module import SearchableModule, searchable_modules, value_of

_Layer = TypeVar("_Layer", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Elastic:
    """A size that a point chooses: a width, a depth, a kernel, a number of heads.

    Attributes:
        label: The name of the decision. Layers with the same label have the same size.
        sizes: The sizes, ascending, at least two.
        factor: The channels or features of one unit. ``width.times(16)`` are the features of ``width`` flattened
            channels of 4x4 pixels.

    Raises:
        ConfigurationError: the sizes are not ascending whole numbers from 1, or the factor is below 1.
    """

    label: str
    sizes: tuple[int, ...]
    factor: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        whole = all(type(size) is int and size >= 1 for size in self.sizes)
        if not whole or len(self.sizes) < 2 or any(one >= other for one, other in pairwise(self.sizes)):
            raise ConfigurationError(
                f"Elastic({self.label!r}): sizes={self.sizes}: must be at least two ascending whole numbers from 1. "
                "Give an int where there is one size."
            )
        if type(self.factor) is not int or self.factor < 1:
            raise ConfigurationError(f"Elastic({self.label!r}): factor={self.factor!r}: must be a whole number from 1.")

    @property
    def largest(self) -> int:
        """The largest size, times the factor."""
        return self.sizes[-1] * self.factor

    @property
    def decision(self) -> Parameter:
        """The parameter of the space: a range if the sizes have no gap, else a choice."""
        low, high = self.sizes[0], self.sizes[-1]
        return Int(low, high) if high - low + 1 == len(self.sizes) else Choice(*self.sizes)

    def at(self, point: Point) -> int:
        """Returns the size that a point chooses, times the factor.

        Raises:
            PointError: the point lacks the label, or has another size.
        """
        size = value_of(point, self.label)
        self.decision.check(size, self.label)
        return int(size) * self.factor

    def times(self, factor: int) -> Elastic:
        """Returns the size with ``factor`` channels or features for each of its own."""
        return replace(self, factor=self.factor * factor)


Size: TypeAlias = int | Elastic
"""A size that is the same in all points, or one that the point chooses."""


def largest(size: Size) -> int:
    """Returns the size in the largest network."""
    return size.largest if isinstance(size, Elastic) else size


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
        return [size for size in self._sizes.values() if isinstance(size, Elastic)]

    def select(self, point: Point) -> None:
        """Selects the sizes of later forward passes."""
        self._chosen = self.sizes_at(point)

    def sizes_at(self, point: Point) -> dict[str, int]:
        """Returns the sizes that a point chooses, by name.

        Raises:
            PointError: the point lacks a label, or has another size.
        """
        return {name: size.at(point) if isinstance(size, Elastic) else size for name, size in self._sizes.items()}


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
    parts = {name: part_of(tensors[name], own.shape) for name, own in layer.state_dict().items()}
    copies = {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
    layer.load_state_dict(copies, assign=True)
    for name, parameter in source.named_parameters():
        layer.get_parameter(name).requires_grad_(parameter.requires_grad)
    return layer.train(source.training)
