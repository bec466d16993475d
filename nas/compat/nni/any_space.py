"""The space of a tuner that is the user's own: whatever it answers lies in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NoReturn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.spaces.domain import Ask, Decision
from nas.spaces.space import Space


class AnySpace(Space):
    """Holds every point, and can't be drawn from."""

    def validate(self, point: Point) -> None:
        """Returns: every point lies in it."""

    def describe(self) -> dict[str, Any]:
        """Returns its type alone."""
        return {"type": "AnySpace"}

    @property
    def n_points(self) -> None:
        """Uncountable."""
        return None

    def sample(self, rng: random.Random) -> Point:
        """Nothing can be drawn."""
        _refuse()

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """No point is near another."""
        _refuse()

    def decide(self, ask: Ask) -> Point:
        """There are no decisions."""
        _refuse()

    def decisions(self, point: Point) -> list[Decision]:
        """There are none to be known."""
        _refuse()

    def points(self) -> Iterator[Point]:
        """They can't be listed."""
        _refuse()


def _refuse() -> NoReturn:
    raise ConfigurationError("only the experiment's own tuner knows its space")
