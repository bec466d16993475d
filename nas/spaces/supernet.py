"""The space of a supernet: the points of its subnets and of its epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, final

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point, point_key
from nas.core.supernet import EPOCH, epoch_of
from nas.spaces.domain import Ask, Decision
from nas.spaces.space import Space, Variation


@final
class SupernetSpace(Space):
    """The points of another space, the subnets, and the points ``{"supernet_epoch": n}``.

    Only a one-shot tuner proposes supernet epochs. All methods give and take points of subnets, except ``validate``
    and ``key``, which take both.

    Args:
        inner: The space of the subnets.

    Raises:
        ConfigurationError: the inner space has the point of a supernet epoch.
    """

    def __init__(self, inner: Space) -> None:
        self.inner = inner
        try:
            inner.validate({EPOCH: 0})
        except PointError:
            return
        raise ConfigurationError(f"{EPOCH}: must not be the only parameter of a space of subnets. Rename it")

    def validate(self, point: Point) -> None:
        """Checks that the point is a supernet epoch or in the inner space.

        Raises:
            PointError: it is neither.
        """
        if epoch_of(point) is None:
            self.inner.validate(point)

    def key(self, point: Point) -> str:
        """Returns the inner space's key; a supernet epoch has its own."""
        return self.inner.key(point) if epoch_of(point) is None else point_key(point)

    def to_json(self) -> dict[str, Any]:
        """Returns the inner space as JSON, under the key ``supernet``."""
        return {"supernet": self.inner.to_json()}

    def sample(self, rng: random.Random) -> Point:
        """Returns a random subnet."""
        return self.inner.sample(rng)

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns another subnet near this one."""
        return self.inner.mutate(point, rng)

    def decide(self, ask: Ask) -> Point:
        """Returns the subnet that the answers give."""
        return self.inner.decide(ask)

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the decisions that give this subnet, in order."""
        return self.inner.decisions(point)

    def cross(self, first: Point, second: Point, rng: random.Random) -> Variation:
        """Returns a subnet with each decision from one of the two subnets."""
        return self.inner.cross(first, second, rng)

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more mutation."""
        return self.inner.vary(variation, rng)

    def swap_parents(self, variation: Variation) -> Variation:
        """Returns the same variation with the two parents of its crossover in the other order."""
        return self.inner.swap_parents(variation)

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """Returns the ``derivation`` of a subnet's proposal as JSON."""
        return self.inner.derivation(variation)

    def features(self, point: Point) -> Any:
        """Returns the data of a subnet that ``feature_distance`` compares."""
        return self.inner.features(point)

    def feature_distance(self, first: Any, second: Any) -> float:
        """Returns the distance of two subnets, given their features."""
        return self.inner.feature_distance(first, second)

    @property
    def n_points(self) -> int | None:
        """The number of subnets, or None if there are infinitely or too many."""
        return self.inner.n_points

    def points(self) -> Iterator[Point]:
        """Yields each subnet once, lazily and in a fixed order."""
        return self.inner.points()
