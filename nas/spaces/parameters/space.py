"""Spaces of named parameters: ranges and choices, nested and conditional.

A space is a tree: a dict of parameters, constants and further dicts. An option of a `Choice` may also be such a dict:

>>> space = ParameterSpace({
...     "n_layers": Int(1, 3),
...     "width_2": Int(16, 256, log=True, when={"n_layers": [2, 3]}),
...     "optimizer": Choice({"type": "adam"}, {"type": "sgd", "momentum": Float(0.0, 0.99)}),
...     "batch_size": 64,
... })
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.point import Point
from nas.spaces.domain import Ask, Decision
from nas.spaces.parameters.numeric import Float, Int, Parameter
from nas.spaces.parameters.tree import MAX_POINTS, Choice, ParameterDict
from nas.spaces.space import Space

__all__ = ["Choice", "Float", "Int", "Parameter", "ParameterSpace"]


class ParameterSpace(Space):
    """A space of named parameters.

    A JSON value is a constant, a dict is a nested space.

    Example: ``ParameterSpace({"lr": Float(1e-4, 1e-1, log=True), "batch_size": 64})``.

    Args:
        parameters: The parameters by name. Conditions may refer to earlier parameters only.

    Raises:
        ConfigurationError: a name is not a string, a value is not JSON, or a condition is invalid.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        if not isinstance(parameters, Mapping):
            raise ConfigurationError(f"ParameterSpace: parameters={parameters!r}: must be a dict by name")
        self._root = ParameterDict(parameters, "ParameterSpace")

    def __repr__(self) -> str:
        return f"ParameterSpace({self._root})"

    def sample(self, rng: random.Random) -> Point:
        """Returns a random point, uniform over each range (or its logarithm) and each choice's options."""
        return copy.deepcopy(self._root.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point with another value of one parameter, chosen with equal probability.

        A number changes by a Gaussian step (standard deviation 0.2 of its range, or log range) and is clipped. A choice
        takes another option. Parameters that become active are sampled. All others keep their values.
        """
        self.validate(point)
        sites = self._root.sites(point)
        if not sites:
            raise SpaceExhaustedError(f"the space has no point but {point}. Give a parameter a second value.")
        return copy.deepcopy(self._root.mutate(point, rng.choice(sites), rng))

    def decide(self, ask: Ask) -> Point:
        """Asks for each active choice and range, in the order of the parameters."""
        return copy.deepcopy(self._root.decide("", ask))

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the decisions that give the point, named by their paths, such as ``optimizer.1.lr``."""
        self.validate(point)
        return list(self._root.decisions("", point))

    def validate(self, point: Point) -> None:
        """Checks that the point holds an allowed value for each active parameter, and nothing else."""
        self._root.check(point, "")

    def to_json(self) -> dict[str, Any]:
        """Returns the parameters with their conditions, and the order of the names."""
        return {**self._root.to_json(), "type": "ParameterSpace"}

    @property
    def n_points(self) -> int | None:
        """The number of points; None for more than 1,000,000, or if a `Float` has several values."""
        n_points = self._n_points
        return n_points if n_points is not None and n_points <= MAX_POINTS else None

    def points(self) -> Iterator[Point]:
        """Yields each point once, with the last parameter changing fastest, whatever their number."""
        if self._n_points is None:
            raise ConfigurationError(
                "the points of the space cannot be listed: a Float has more than one value. Use a Choice instead."
            )
        return (copy.deepcopy(point) for point in self._root.values())

    @cached_property
    def _n_points(self) -> int | None:
        return self._root.n_values
