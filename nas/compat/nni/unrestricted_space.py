"""The space of an experiment with its own tuner class."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NoReturn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.spaces.domain import Ask, Decision
from nas.spaces.space import Space


class UnrestrictedSpace(Space):
    """A space that contains every point and cannot be sampled."""

    def validate(self, point: Point) -> None:
        """Accepts every point."""

    def to_json(self) -> dict[str, Any]:
        """Returns the name of the type."""
        return {"type": "UnrestrictedSpace"}

    @property
    def n_points(self) -> None:
        """None: the points cannot be counted."""
        return None

    def sample(self, rng: random.Random) -> Point:
        """Raises ConfigurationError."""
        _refuse()

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Raises ConfigurationError."""
        _refuse()

    def decide(self, ask: Ask) -> Point:
        """Raises ConfigurationError."""
        _refuse()

    def decisions(self, point: Point) -> list[Decision]:
        """Raises ConfigurationError."""
        _refuse()

    def points(self) -> Iterator[Point]:
        """Raises ConfigurationError."""
        _refuse()


def _refuse() -> NoReturn:
    raise ConfigurationError("this experiment has no search space: only its own tuner can propose points")
