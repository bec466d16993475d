"""Parts of a tensor: the projections and heads that share a dimension of an attention's weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from nas.core.errors import CorruptError
from nas.core.validation import short_repr
from nas.storage.record_values import Positive, Whole

MAX_PARTS = 64
"""Maximum number of parts of a tensor; a fused projection has three."""
MAX_SIZES = 8
"""Maximum number of sizes of a part."""


@dataclass(frozen=True, slots=True)
class TensorParts:
    """Sizes within one dimension of a tensor.

    Fused queries, keys and values with 4 heads of size 8 have ``dim=0`` and ``sizes=((4, 8), (4, 8), (4, 8))``.

    Attributes:
        dim: The dimension.
        sizes: The sizes of each part, the outermost first. A part has their product of rows.
    """

    dim: Whole
    sizes: Annotated[
        tuple[Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=MAX_SIZES)], ...],
        Meta(min_length=1, max_length=MAX_PARTS),
    ]

    @property
    def lengths(self) -> list[int]:
        """Length of each part along the dimension."""
        return [math.prod(sizes) for sizes in self.sizes]

    def fit(self, shape: Sequence[int]) -> bool:
        """Returns whether a tensor of this shape has these parts."""
        has_sizes = bool(self.sizes) and all(sizes and min(sizes) >= 1 for sizes in self.sizes)
        return has_sizes and 0 <= self.dim < len(shape) and sum(self.lengths) == shape[self.dim]

    def has_same_rows(self, other: TensorParts) -> bool:
        """Returns whether both have the same dimension, and parts of the same lengths."""
        return (self.dim, self.lengths) == (other.dim, other.lengths)

    def are_like(self, other: TensorParts | None) -> bool:
        """Returns whether both have the same dimension, and as many parts with as many sizes."""
        return other is not None and (self.dim, [*map(len, self.sizes)]) == (other.dim, [*map(len, other.sizes)])


def check_parts(parts: Mapping[str, TensorParts], shapes: Mapping[str, Sequence[int]]) -> None:
    """Checks that tensors of these shapes have these parts.

    Raises:
        CorruptError: a tensor is not there, or its parts do not add up to its dimension.
    """
    for name, own in parts.items():
        if name not in shapes:
            raise CorruptError(f"parts of the tensor {short_repr(name)}, which is not listed")
        if not own.fit(shapes[name]):
            raise CorruptError(f"tensor {short_repr(name)} of shape {short_repr(shapes[name])} can't have its parts")
