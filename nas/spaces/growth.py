"""Growth operations: plain data that turns the sizes of a transformer into larger ones.

* HyperCloning (Samragh et al. 2024, arXiv:2409.12903): ``widen_heads``
* Block expansion (LLaMA Pro, Wu et al. 2024, arXiv:2401.02415): ``insert_block``
* G_stack (Du et al. 2024, arXiv:2405.15319): ``stack``

`nas.inheritance.growth` applies them to weights. Random values there come from the operation's ``seed``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from nas.core.errors import PointError
from nas.core.point import Point
from nas.core.validation import closest_names, short_repr

MAX_SIZE = 1 << 20
"""The greatest layer count, head count, width and MLP ratio."""
_KEY = "growth"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a transformer.

    Attributes:
        n_layers: The number of blocks.
        n_heads: The attention heads of each block.
        width: The size of a symbol's vector, a multiple of ``n_heads``.
        mlp_ratio: The MLP's hidden size, as a multiple of ``width``.

    Raises:
        PointError: a size is no whole number from 1 to ``MAX_SIZE``, or the width is no multiple of the heads.
    """

    n_layers: int
    n_heads: int
    width: int
    mlp_ratio: int

    def __post_init__(self) -> None:
        for name, value in self.to_json().items():
            if type(value) is not int or not 1 <= value <= MAX_SIZE:
                raise PointError(f"{name}={short_repr(value)}: must be a whole number from 1 to {MAX_SIZE}")
        if self.width % self.n_heads:
            raise PointError(f"width={self.width}: must be a multiple of n_heads ({self.n_heads}). Change one of them.")

    @classmethod
    def of(cls, point: Point) -> Sizes:
        """Returns the sizes in a point.

        Raises:
            PointError: one is missing or not allowed.
        """
        if missing := [field.name for field in fields(cls) if field.name not in point]:
            raise PointError(f"{missing[0]}: must be in the point. Add it.")
        return cls(**{field.name: point[field.name] for field in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """Returns the sizes by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GrowthOperation(ABC):
    """One step from a transformer to a larger one.

    Raises:
        PointError: a field is no whole number from 0 to below 2^64.
    """

    kind: ClassVar[str]
    keeps_function: ClassVar[bool] = True
    """Whether the larger network computes the same function, but for rounding."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 0 <= value < 1 << 64:
                raise PointError(f"operation {self.kind}: {field.name}={short_repr(value)}: must be a whole number")

    @abstractmethod
    def apply(self, sizes: Sizes) -> Sizes:
        """Returns the sizes after the operation.

        Raises:
            PointError: it is not possible.
        """

    def to_json(self) -> dict[str, Any]:
        """Returns ``kind`` and the fields."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class WidenHeads(GrowthOperation):
    """Doubles heads and width, at the same head size.

    Every unit gets a copy. The two copies' weights differ by noise that cancels in the outputs, so they can learn to
    differ.

    Attributes:
        seed: Seeds the noise.
    """

    kind: ClassVar[str] = "widen_heads"
    seed: int = 0

    def apply(self, sizes: Sizes) -> Sizes:
        """Returns the sizes with twice the heads and width."""
        return replace(sizes, n_heads=2 * sizes.n_heads, width=2 * sizes.width)


@dataclass(frozen=True, slots=True)
class InsertBlock(GrowthOperation):
    """Inserts a copy of a block after it, with output projections of 0.

    Attributes:
        block: The index of the block.
    """

    kind: ClassVar[str] = "insert_block"
    block: int = 0

    def apply(self, sizes: Sizes) -> Sizes:
        """Returns the sizes with one more block."""
        if self.block >= sizes.n_layers:
            raise PointError(f"operation {self.kind}: block={self.block}: must be below {sizes.n_layers}")
        return replace(sizes, n_layers=sizes.n_layers + 1)


@dataclass(frozen=True, slots=True)
class WidenMlp(GrowthOperation):
    """Adds hidden units to every MLP, with outgoing weights of 0.

    Attributes:
        mlp_ratio: The new ratio.
        seed: Seeds the incoming weights.
    """

    kind: ClassVar[str] = "widen_mlp"
    mlp_ratio: int = 1
    seed: int = 0

    def apply(self, sizes: Sizes) -> Sizes:
        """Returns the sizes with the new ratio."""
        if self.mlp_ratio <= sizes.mlp_ratio:
            raise PointError(
                f"operation {self.kind}: mlp_ratio={self.mlp_ratio}: must be greater than {sizes.mlp_ratio}"
            )
        return replace(sizes, mlp_ratio=self.mlp_ratio)


@dataclass(frozen=True, slots=True)
class Stack(GrowthOperation):
    """Puts a copy of all blocks on top of them; changes the function."""

    kind: ClassVar[str] = "stack"
    keeps_function: ClassVar[bool] = False

    def apply(self, sizes: Sizes) -> Sizes:
        """Returns the sizes with twice the blocks."""
        return replace(sizes, n_layers=2 * sizes.n_layers)


OPERATIONS: dict[str, type[GrowthOperation]] = {
    operation.kind: operation for operation in (WidenHeads, InsertBlock, WidenMlp, Stack)
}


@dataclass(frozen=True, slots=True)
class Growth:
    """The parent's sizes and the operations on it, recorded in a proposal and replayed on weights.

    Attributes:
        sizes: The parent's sizes.
        operations: The operations, in order.
    """

    sizes: Sizes
    operations: tuple[GrowthOperation, ...]

    @property
    def grown(self) -> Sizes:
        """The sizes after all operations.

        Raises:
            PointError: an operation is not possible when its turn comes.
        """
        return grown(self.sizes, self.operations)

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"growth": {...}}`` with the fields, for a proposal's ``derivation``."""
        operations = [operation.to_json() for operation in self.operations]
        return {_KEY: {"sizes": self.sizes.to_json(), "operations": operations}}

    @classmethod
    def from_json(cls, data: Any) -> Growth | None:
        """Returns the growth of a proposal's ``derivation``, or None if it has none.

        Raises:
            PointError: the growth is invalid.
        """
        if not isinstance(data, Mapping) or _KEY not in data:
            return None
        found = data[_KEY]
        if not isinstance(found, Mapping) or {*found} != {"sizes", "operations"}:
            raise PointError(f"{_KEY}={short_repr(found)}: must be a dict of sizes and operations")
        sizes, operations = found["sizes"], found["operations"]
        if not isinstance(sizes, Mapping) or {*sizes} != {field.name for field in fields(Sizes)}:
            raise PointError(f"{_KEY}: sizes={short_repr(sizes)}: must be a dict of the sizes of a transformer")
        if not isinstance(operations, list):
            raise PointError(f"{_KEY}: operations={short_repr(operations)}: must be a list")
        return cls(Sizes(**sizes), tuple(map(_operation, operations)))


def grown(sizes: Sizes, operations: Iterable[GrowthOperation]) -> Sizes:
    """Returns the sizes after all operations.

    Raises:
        PointError: an operation is not possible when its turn comes.
    """
    for operation in operations:
        sizes = operation.apply(sizes)
    return sizes


def _operation(data: Any) -> GrowthOperation:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in OPERATIONS:
        known = closest_names(str(kind), OPERATIONS)
        raise PointError(f"operation={short_repr(data)}: must be a dict whose kind is one of {known}")
    values = {name: value for name, value in data.items() if name != "kind"}
    if values.keys() != {field.name for field in fields(OPERATIONS[kind])}:
        raise PointError(f"operation {kind}: has the wrong fields: {', '.join(map(str, values)) or 'none'}")
    return OPERATIONS[kind](**values)
