"""Sizes that a point chooses, of layers and of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TypeAlias

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.core.validation import short_repr
from nas.spaces.parameters.space import Choice, Int, Parameter
from nas.supernets.module import value_of


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
        if not isinstance(self.label, str) or not self.label:
            raise ConfigurationError(f"Elastic: label={short_repr(self.label)}: must be a text. Give a name.")
        object.__setattr__(self, "sizes", tuple(self.sizes) if isinstance(self.sizes, Iterable) else (self.sizes,))
        whole = all(type(size) is int and size >= 1 for size in self.sizes)
        if not whole or len(self.sizes) < 2 or any(one >= other for one, other in pairwise(self.sizes)):
            raise ConfigurationError(
                f"Elastic({self.label!r}): sizes={self.sizes}: must be at least two ascending whole numbers from 1. "
                "Give an int where there is one size."
            )
        if type(self.factor) is not int or self.factor < 1:
            raise ConfigurationError(
                f"Elastic({self.label!r}): factor={self.factor!r}: must be a whole number from 1. Give 1."
            )

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


@dataclass(frozen=True, slots=True)
class ElasticProduct:
    """The product of sizes with different labels, such as heads and their width.

    Attributes:
        factors: The sizes.

    Raises:
        ConfigurationError: there are fewer than two factors, or two have the same label.
    """

    factors: tuple[Elastic, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors) if isinstance(self.factors, Iterable) else ())
        labels = [factor.label for factor in self.factors if isinstance(factor, Elastic)]
        if len(set(labels)) < max(2, len(self.factors)):
            raise ConfigurationError(
                f"ElasticProduct({labels}): must be two or more sizes with different labels. Give one more nas.Elastic."
            )

    @property
    def largest(self) -> int:
        """The product of the largest sizes."""
        return math.prod(factor.largest for factor in self.factors)

    def at(self, point: Point) -> int:
        """Returns the product of the sizes that a point chooses.

        Raises:
            PointError: as for `Elastic.at`.
        """
        return math.prod(factor.at(point) for factor in self.factors)

    def times(self, factor: int) -> ElasticProduct:
        """Returns the product with ``factor`` channels or features for each of its own."""
        return ElasticProduct((self.factors[0].times(factor), *self.factors[1:]))


Size: TypeAlias = int | Elastic | ElasticProduct
"""A size that is the same in all points, or one that the point chooses."""


def largest(size: Size, name: str = "size") -> int:
    """Returns the size in the largest network.

    Args:
        size: The size.
        name: The argument that gives it, for the message.

    Raises:
        ConfigurationError: it is no size.
    """
    if isinstance(size, Elastic | ElasticProduct):
        return size.largest
    if type(size) is not int or size < 1:
        raise ConfigurationError(
            f"{name}={short_repr(size)}: must be a whole number from 1, or elastic. Give nas.Elastic."
        )
    return size


def size_at(size: Size, point: Point) -> int:
    """Returns the size that a point chooses.

    Raises:
        PointError: the point lacks a label, or has another size.
    """
    return size if isinstance(size, int) else size.at(point)


def factors_of(*sizes: Size) -> dict[str, Elastic]:
    """Returns the decisions of sizes by label."""
    found = {}
    for size in sizes:
        if not isinstance(size, int):
            found.update({own.label: own for own in ((size,) if isinstance(size, Elastic) else size.factors)})
    return found


def all_sizes(*sizes: Size) -> list[tuple[int, ...]]:
    """Returns the sizes in each network."""
    factors = factors_of(*sizes)
    points = (dict(zip(factors, chosen, strict=True)) for chosen in product(*(own.sizes for own in factors.values())))
    return [tuple(size_at(size, point) for size in sizes) for point in points]
