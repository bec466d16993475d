"""Spaces of named parameters: ranges and choices, nested and conditional.

A space is a tree: a dict of parameters, constants and further dicts; an option of a `Choice` may be such a dict again.

    ParameterSpace(
        {
            "n_layers": Int(1, 3),
            "width_2": Int(16, 256, log=True, when={"n_layers": [2, 3]}),
            "optimizer": Choice({"type": "adam"}, {"type": "sgd", "momentum": Float(0.0, 0.99)}),
            "batch_size": 64,
        }
    )
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
    """The points that hold a value for each name; a plain JSON value is a constant, a dict a sub-space.

    Example: ``ParameterSpace({"lr": Float(1e-4, 1e-1, log=True), "batch_size": 64})``.

    Args:
        parameters: By name, in an order in which conditions name earlier parameters only.

    Raises:
        ConfigurationError: a name is no string, a value is no JSON, or a condition can't be.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        if not isinstance(parameters, Mapping):
            raise ConfigurationError(f"ParameterSpace: parameters ({parameters!r}) must be a dict by name")
        self._root = ParameterDict(parameters, "ParameterSpace")

    def __repr__(self) -> str:
        return f"ParameterSpace({self._root})"

    def sample(self, rng: random.Random) -> Point:
        """Returns a random point: uniform over each range (or its logarithm) and over the options of each choice."""
        return copy.deepcopy(self._root.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point in which one parameter, any as likely as the others, has another value.

        A number moves by a Gaussian step (standard deviation 0.2 of its range, or log range), clipped; a choice takes
        another option. What becomes active by it is sampled, all else keeps its value.
        """
        self.validate(point)
        sites = self._root.sites(point)
        if not sites:
            raise SpaceExhaustedError(f"the space holds no point but {point}; give a parameter a second value")
        return copy.deepcopy(self._root.mutate(point, rng.choice(sites), rng))

    def decide(self, ask: Ask) -> Point:
        """Asks for each choice and range that is active, in the order of the parameters."""
        return copy.deepcopy(self._root.decide("", ask))

    def decisions(self, point: Point) -> list[Decision]:
        """The choices (an option's index) and numbers that give the point; a name is a path: ``optimizer.1.lr``."""
        self.validate(point)
        return list(self._root.decisions("", point))

    def validate(self, point: Point) -> None:
        """Returns if each active parameter has an allowed value, and there is nothing else."""
        self._root.check(point, "")

    def to_json(self) -> dict[str, Any]:
        """Returns the parameters with their conditions, by name, and the order of the names."""
        return {**self._root.to_json(), "type": "ParameterSpace"}

    @property
    def n_points(self) -> int | None:
        """How many points there are; None for more than 1,000,000, or if a `Float` has more than one value."""
        return self._n_points if self._n_points is not None and self._n_points <= MAX_POINTS else None

    def points(self) -> Iterator[Point]:
        """Yields each point once, the last parameter fastest; also if they are finite but too many for `n_points`."""
        if self._n_points is None:
            raise ConfigurationError(
                "the points of the space can't be listed: a Float has more than one value; use a Choice in its place"
            )
        return (copy.deepcopy(point) for point in self._root.values())

    @cached_property
    def _n_points(self) -> int | None:
        return self._root.n_values
