"""A space of transformers: layers, heads, width and MLP ratio, with other parameters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.point import Point
from nas.core.validation import short_repr
from nas.spaces.domain import Ask, Decision
from nas.spaces.growth import (
    MAX_SIZE,
    OPERATIONS,
    Growth,
    GrowthOperation,
    InsertBlock,
    Sizes,
    Stack,
    WidenHeads,
    WidenMlp,
    grown,
)
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.spaces.space import Space, Variation

SIZES = ("n_layers", "n_heads", "width", "mlp_ratio")
"""The names of the sizes in a point."""
DEFAULT_GROWTH = tuple(kind for kind, operation in OPERATIONS.items() if operation.keeps_function)
_PARAMETER_SHARE = 0.25  # the share of mutations that change a parameter instead of a size, as in GraphSpace


@final
class TransformerSpace(Space):
    """The sizes of a transformer, and other parameters.

    Points are such as ``{"n_layers": 2, "n_heads": 2, "width": 64, "mlp_ratio": 4, "learning_rate": 0.003}``. The width
    is a product of heads and head size. A mutation takes one step up or down in one size. A step up is a growth
    operation, which `inherit` replays (`nas.spaces.growth`), if one of ``growth`` makes it.

    Args:
        n_layers: The smallest and the greatest number of blocks.
        n_heads: The numbers of heads.
        head_sizes: The sizes of a head.
        mlp_ratios: The MLP's hidden sizes, as multiples of the width.
        parameters: The other parameters, as in a ``ParameterSpace``.
        growth: The kinds of operations that mutations may use. ``stack`` changes the function and is not a default.

    Raises:
        ConfigurationError: a size is no whole number of at least 1, a list is empty or a name is not allowed.
    """

    def __init__(
        self,
        n_layers: Sequence[int] = (1, 8),
        n_heads: Sequence[int] = (1, 2, 4, 8),
        head_sizes: Sequence[int] = (16, 32),
        mlp_ratios: Sequence[int] = (1, 2, 4),
        parameters: Mapping[str, Any] | None = None,
        *,
        growth: Sequence[str] = DEFAULT_GROWTH,
    ) -> None:
        lists = {"n_heads": n_heads, "head_sizes": head_sizes, "mlp_ratios": mlp_ratios}
        if not _are_sizes(n_layers) or len(n_layers) != 2 or n_layers[0] > n_layers[1]:
            raise ConfigurationError(
                f"n_layers={short_repr(n_layers)}: must be the least and the greatest number, from 1 to {MAX_SIZE}. "
                "Write for example [1,8]."
            )
        for name, values in lists.items():
            if not _are_sizes(values) or len({*values}) < len(values):
                raise ConfigurationError(
                    f"{name}={short_repr(values)}: must be different whole numbers from 1 to {MAX_SIZE}, at least one. "
                    "Write for example [1,2]."
                )
        _check_parameters(parameters)
        _check_growth(growth)
        self.growth = tuple(growth)
        self._ladders = {name: sorted({*values}) for name, values in lists.items()}
        self._ladders["n_layers"] = list(range(n_layers[0], n_layers[1] + 1))
        sizes: dict[str, Any] = {
            "n_layers": Int(*n_layers),
            "n_heads": Choice(*self._ladders["n_heads"]),
            "head_size": Choice(*self._ladders["head_sizes"]),
            "mlp_ratio": Choice(*self._ladders["mlp_ratios"]),
        }
        self.parameters = ParameterSpace(parameters or {})
        self._inner = ParameterSpace({**sizes, **(parameters or {})})

    def __repr__(self) -> str:
        return f"TransformerSpace({self._inner!r})"

    def smallest(self, rng: random.Random) -> Point:
        """Returns the point of the smallest sizes, with random parameters."""
        low = {name: values[0] for name, values in self._ladders.items()}
        sizes = Sizes(low["n_layers"], low["n_heads"], low["n_heads"] * low["head_sizes"], low["mlp_ratios"])
        return {**sizes.to_json(), **self.parameters.sample(rng)}

    def sample(self, rng: random.Random) -> Point:
        """Returns a random point, with each size and parameter drawn by itself."""
        return _with_width(self._inner.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point with one size changed by a step, or (one in four) one parameter."""
        return self.vary(Variation.of(point), rng).point

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more step of ``mutate``, and records growth operations."""
        self.validate(variation.point)
        sizes, others = Sizes.of(variation.point), _others(variation.point)
        growths = self._growths(sizes, rng)
        steps: list[GrowthOperation | Sizes] = [*growths, *self._other_steps(sizes, growths)]
        has_parameters = self.parameters.n_points != 1
        if has_parameters and (not steps or rng.random() < _PARAMETER_SHARE):
            return replace(variation, point={**sizes.to_json(), **self.parameters.mutate(others, rng)})
        if not steps:
            raise SpaceExhaustedError("the space has no other sizes. Give a size a second value.")
        step = rng.choice(steps)
        return _after(variation, step) if isinstance(step, GrowthOperation) else _resized(variation, step)

    def grow(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more growth operation.

        Raises:
            PointError: its point is not in the space.
            SpaceExhaustedError: no operation of ``growth`` stays within the bounds.
        """
        self.validate(variation.point)
        operations = self._growths(Sizes.of(variation.point), rng)
        if not operations:
            raise SpaceExhaustedError("no growth stays within the bounds. Raise the largest sizes.")
        return _after(variation, rng.choice(operations))

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """Returns ``mutated``, and the growth that `inherit` replays if operations alone made the sizes."""
        names = super().derivation(variation)
        before, now = Sizes.of(variation.origin), Sizes.of(variation.point)
        if not variation.operations or not _make(variation.operations, before, now):
            return names
        return {**names, **Growth(before, variation.operations).to_json()}

    def validate(self, point: Point) -> None:
        """Checks the sizes and the parameters."""
        self._inner.validate(_with_head_size(point))

    def to_json(self) -> dict[str, Any]:
        """Returns the sizes and parameters, and the growth operations."""
        return {**self._inner.to_json(), "type": "TransformerSpace", "growth": list(self.growth)}

    def decide(self, ask: Ask) -> Point:
        """Asks for ``n_layers``, ``n_heads``, ``head_size``, ``mlp_ratio``, and the parameters."""
        return _with_width(self._inner.decide(ask))

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the answers that give the point; the width's is ``head_size``."""
        return self._inner.decisions(_with_head_size(point))

    @property
    def n_points(self) -> int | None:
        """The number of points, or None if there are infinitely or too many."""
        return self._inner.n_points

    def points(self) -> Iterator[Point]:
        """Yields each point once, with the last parameter changing fastest."""
        return map(_with_width, self._inner.points())

    def _growths(self, sizes: Sizes, rng: random.Random) -> list[GrowthOperation]:
        """Returns one operation of each allowed kind that stays within the bounds."""
        higher = [ratio for ratio in self._ladders["mlp_ratios"] if ratio > sizes.mlp_ratio]
        found: list[GrowthOperation] = [
            WidenHeads(rng.getrandbits(32)),
            InsertBlock(rng.randrange(sizes.n_layers)),
            WidenMlp(higher[0] if higher else sizes.mlp_ratio + 1, rng.getrandbits(32)),
            Stack(),
        ]
        return [operation for operation in found if operation.kind in self.growth and self._has(operation.apply(sizes))]

    def _other_steps(self, sizes: Sizes, growths: Sequence[GrowthOperation]) -> list[Sizes]:
        """Returns the sizes one step lower or higher that none of the operations makes."""
        head_size = sizes.width // sizes.n_heads
        layers, heads, ratios = (self._ladders[name] for name in ("n_layers", "n_heads", "mlp_ratios"))
        found = [replace(sizes, n_layers=n) for n in _beside(layers, sizes.n_layers)]
        found += [replace(sizes, n_heads=n, width=n * head_size) for n in _beside(heads, sizes.n_heads)]
        found += [replace(sizes, mlp_ratio=n) for n in _beside(ratios, sizes.mlp_ratio)]
        others = [size for size in self._ladders["head_sizes"] if size != head_size]
        found += [replace(sizes, width=size * sizes.n_heads) for size in others]
        grown = {operation.apply(sizes) for operation in growths}
        return [other for other in found if other not in grown]

    def _has(self, sizes: Sizes) -> bool:
        """Returns whether each size is one of its values."""
        given = {"n_layers": sizes.n_layers, "n_heads": sizes.n_heads, "mlp_ratios": sizes.mlp_ratio}
        given["head_sizes"] = sizes.width // sizes.n_heads
        return all(value in self._ladders[name] for name, value in given.items())


def _are_sizes(values: object) -> bool:
    """Returns whether the values are a list of sizes."""
    is_list = isinstance(values, list | tuple) and len(values) > 0
    return is_list and all(type(value) is int and 1 <= value <= MAX_SIZE for value in values)  # type: ignore[attr-defined]


def _check_growth(kinds: Sequence[str]) -> None:
    """Checks that these are kinds of growth operations, each once."""
    is_list = isinstance(kinds, list | tuple) and all(isinstance(kind, str) for kind in kinds)
    if not is_list or not kinds or not {*kinds} <= OPERATIONS.keys() or len({*kinds}) < len(kinds):
        known = ", ".join(OPERATIONS)
        raise ConfigurationError(
            f"growth={short_repr(kinds)}: must be some of {known}, each once. Write for example growth=[stack]."
        )


def _check_parameters(parameters: object) -> None:
    """Checks that parameters are given by names other than those of sizes."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigurationError(f"parameters={short_repr(parameters)}: must be a dict. Give parameters by name.")
    if taken := [name for name in (*SIZES, "head_size") if name in (parameters or {})]:
        raise ConfigurationError(f"parameters: {taken[0]} must not be among them, it is a size. Choose another name.")


def _make(operations: Sequence[GrowthOperation], before: Sizes, now: Sizes) -> bool:
    """Returns whether the operations alone lead from one to the other sizes."""
    try:
        return grown(before, operations) == now
    except PointError:
        return False


def _beside(ladder: Sequence[int], value: int) -> list[int]:
    """Returns the next lower and the next higher value in a sorted list, if any."""
    lower = [other for other in ladder if other < value]
    return lower[-1:] + [other for other in ladder if other > value][:1]


def _others(point: Point) -> Point:
    return {name: value for name, value in point.items() if name not in SIZES}


def _after(variation: Variation, operation: GrowthOperation) -> Variation:
    """Returns the variation after a growth operation."""
    sizes = operation.apply(Sizes.of(variation.point))
    return replace(_resized(variation, sizes), operations=(*variation.operations, operation))


def _resized(variation: Variation, sizes: Sizes) -> Variation:
    return replace(variation, point={**variation.point, **sizes.to_json()})


def _with_width(inner: Point) -> Point:
    """Returns a point with the width in place of the head size."""
    sizes = Sizes(inner["n_layers"], inner["n_heads"], inner["n_heads"] * inner["head_size"], inner["mlp_ratio"])
    return {**sizes.to_json(), **{name: value for name, value in inner.items() if name not in (*SIZES, "head_size")}}


def _with_head_size(point: Point) -> Point:
    """Returns a point with the head size in place of the width.

    Raises:
        PointError: it is no dict with sizes, or has a head size.
    """
    if type(point) is not dict:
        raise PointError("the point must be a dict. Give the sizes by name.")
    if "head_size" in point:
        raise PointError("head_size: must not be in the point, since the width gives it. Leave it out.")
    sizes = Sizes.of(point)
    named = {"n_layers": sizes.n_layers, "n_heads": sizes.n_heads, "head_size": sizes.width // sizes.n_heads}
    return {**named, "mlp_ratio": sizes.mlp_ratio, **_others(point)}
