"""What may be built: the contract of a space, and points as plain JSON data."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point, point_key
from nas.spaces.domain import Ask, Decision, Domain, Numeric


@dataclass(frozen=True, slots=True)
class Variation:
    """A point, and how it was made of another one.

    Attributes:
        origin: The other one.
        point: What has become of it.
        operations: What was done, in order, where the space knows operations (`nas.spaces.graphs.space`).
        crossing: How the origin was made of two points (``Space.cross``), where the space knows that.
    """

    origin: Point
    point: Point
    operations: tuple[Any, ...] = ()
    crossing: Any = None

    @classmethod
    def of(cls, point: Point) -> Variation:
        """Returns the point itself, to which nothing was done yet."""
        return cls(point, point)


class Space(ABC):
    """A set of points, which a tuner draws from and steps through without knowing what they mean.

    A space is immutable and can be pickled. The points that it returns are the caller's own: to change one in place
    changes neither the space nor another point. A point that went through JSON, in any order of its keys, is the same
    point and leads to the same answers.
    """

    @abstractmethod
    def sample(self, rng: random.Random) -> Point:
        """Returns a random point of the space."""

    @abstractmethod
    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point near this one, never this one; ``point`` itself stays as it is.

        Raises:
            PointError: ``point`` lies outside the space.
            SpaceExhaustedError: the space holds no other point.
        """

    @abstractmethod
    def validate(self, point: Point) -> None:
        """Returns if the point lies in the space.

        Raises:
            PointError: it does not; the message names the parameter, its value, what is allowed and a remedy.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The space as JSON, for the identity of a search: equal if and only if the same draws give the same points."""

    @abstractmethod
    def decide(self, ask: Ask) -> Point:
        """Returns the point that these answers give; asked in an order and by names that the answers before decide.

        A name always comes with the same domain. What has one value only is not asked.
        """

    @abstractmethod
    def decisions(self, point: Point) -> list[Decision]:
        """Returns the answers that give this point, in order: ``decide`` makes the point of them again.

        Raises:
            PointError: ``point`` lies outside the space.
        """

    def cross(self, first: Point, second: Point, rng: random.Random) -> Variation:
        """A point whose every decision is that of one of the two, either as likely; what neither decides is drawn.

        It is its own origin, to which nothing was done yet.

        Raises:
            PointError: one of them lies outside the space.
        """
        answers = [{decision.name: decision.answer for decision in self.decisions(p)} for p in (first, second)]

        def ask(name: str, domain: Domain) -> float:
            known = [own[name] for own in answers if name in own]
            return rng.choice(known) if known else domain.sample(rng)

        return Variation.of(self.decide(ask))

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more step, the one that ``mutate`` takes.

        Raises:
            PointError: its point lies outside the space.
            SpaceExhaustedError: the space holds no other point.
        """
        return replace(variation, point=self.mutate(variation.point, rng))

    def swap_parents(self, variation: Variation) -> Variation:
        """Returns a variation of two points, as if these had been crossed in the other order: the same point."""
        return variation

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """What a proposal says of it, as JSON: ``mutated``, the names of what differs; a space may add more."""
        before, now = variation.origin, variation.point
        return {"mutated": sorted(name for name in {*before, *now} if before.get(name) != now.get(name))}

    def key(self, point: Point) -> str:
        """A name of the point, equal for points that are the same to a search, so that a second one says nothing new.

        Raises:
            PointError: ``point`` can't be one.
        """
        return point_key(point)

    def distance(self, first: Point, second: Point) -> float:
        """How far two points are apart: ``apart`` of their outlines."""
        return self.feature_distance(self.features(first), self.features(second))

    def features(self, point: Point) -> Any:
        """What distances are measured of: keep it where a point is compared with many.

        Raises:
            PointError: ``point`` lies outside the space.
        """
        return {decision.name: decision for decision in self.decisions(point)}

    def feature_distance(self, first: Any, second: Any) -> float:
        """How far the points of two outlines are apart, 0 where equal; in a space that says no more, at most 1.

        The mean over the decisions of either point: of a number the difference on its scale from 0 to 1, else 1 where
        the answers differ or one point lacks the decision.
        """
        terms = []
        for name in first.keys() | second.keys():  # in any order, of which fsum's sum knows nothing
            if name not in first or name not in second:
                terms.append(1.0)
            elif isinstance(domain := first[name].domain, Numeric):
                terms.append(abs(domain.to_unit(first[name].answer) - domain.to_unit(second[name].answer)))
            else:
                terms.append(float(first[name].answer != second[name].answer))
        return math.fsum(terms) / max(len(terms), 1)

    @property
    @abstractmethod
    def n_points(self) -> int | None:
        """How many points there are, or None: uncountable, or too many to be worth a count."""

    @abstractmethod
    def points(self) -> Iterator[Point]:
        """Yields each point once, made one at a time, in an order that does not change.

        Raises:
            ConfigurationError: the space can't be listed; at the call, not at the first point.
        """


def check_points(name: str, points: Sequence[Point], space: Space) -> None:
    """Returns if all points that a user listed lie in the space.

    Raises:
        ConfigurationError: one does not; the message says which, as ``name[2]``.
    """
    for place, point in enumerate(points):
        try:
            space.validate(point)
        except PointError as error:
            raise ConfigurationError(f"{name}[{place}] is no point of the space: {error}") from error
