"""The recorded space of a search, for code that needs its tuner but no points."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, final

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.spaces.domain import Ask, Decision
from nas.spaces.space import Space


class PointsNeededError(ConfigurationError):
    """A recorded space was asked for points, which only the problem can give."""


@final
class RecordedSpace(Space):
    """The description of a space, without its points.

    With it, garbage collection asks a tuner which weights it needs without building a problem.

    Args:
        described: ``Space.to_json`` of the search's space.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = dict(described)

    def to_json(self) -> dict[str, Any]:
        """Returns the description."""
        return self._described

    def validate(self, point: Point) -> None:
        """Accepts the points that the search itself has checked."""

    def sample(self, rng: random.Random) -> Point:
        """Raises PointsNeededError."""
        self._refuse()

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Raises PointsNeededError."""
        self._refuse()

    def decide(self, ask: Ask) -> Point:
        """Raises PointsNeededError."""
        self._refuse()

    def decisions(self, point: Point) -> list[Decision]:
        """Raises PointsNeededError."""
        self._refuse()

    @property
    def n_points(self) -> int | None:
        """Raises PointsNeededError."""
        self._refuse()

    def points(self) -> Iterator[Point]:
        """Raises PointsNeededError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise PointsNeededError("the record of a space has no points")
