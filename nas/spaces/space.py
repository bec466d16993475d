"""The contract of a space: a set of points, which are plain JSON data."""

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
    """A point and its derivation from another point.

    Attributes:
        origin: The other point.
        point: The result.
        operations: The operations from origin to result, in order, if the space records them
            (`nas.spaces.graphs.space`).
        crossing: The crossover of two points that made the origin (``Space.cross``), if the space records it.
    """

    origin: Point
    point: Point
    operations: tuple[Any, ...] = ()
    crossing: Any = None

    @classmethod
    def of(cls, point: Point) -> Variation:
        """Returns a variation without a change."""
        return cls(point, point)


class Space(ABC):
    """A set of points that a tuner samples and mutates.

    A space is immutable and can be pickled. A caller may change a returned point in place; the space and other points
    stay the same. A point read back from JSON, with its keys in any order, is the same point with the same answers.
    """

    @abstractmethod
    def sample(self, rng: random.Random) -> Point:
        """Returns a random point of the space."""

    @abstractmethod
    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns another point near this one. ``point`` is not changed.

        Raises:
            PointError: ``point`` is not in the space.
            SpaceExhaustedError: the space has no other point.
        """

    @abstractmethod
    def validate(self, point: Point) -> None:
        """Checks that the point is in the space.

        Raises:
            PointError: it is not. The message names the parameter, its value, what is allowed and a remedy.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the space as JSON, for the identity of a search.

        It is equal for two spaces if and only if the same random numbers give the same points.
        """

    @abstractmethod
    def decide(self, ask: Ask) -> Point:
        """Returns the point that the answers give.

        Earlier answers decide which names are asked next, and in which order. A name always has the same domain.
        A parameter with a single value is not asked.
        """

    @abstractmethod
    def decisions(self, point: Point) -> list[Decision]:
        """Returns the decisions that give this point, in order. ``decide`` is the inverse.

        Raises:
            PointError: ``point`` is not in the space.
        """

    def cross(self, first: Point, second: Point, rng: random.Random) -> Variation:
        """Returns a point with each decision from one of the two points, chosen at random.

        A decision that neither point has is sampled. The result is a variation without a change.

        Raises:
            PointError: one of the points is not in the space.
        """
        answers = [{decision.name: decision.answer for decision in self.decisions(p)} for p in (first, second)]

        def ask(name: str, domain: Domain) -> float:
            known = [own[name] for own in answers if name in own]
            return rng.choice(known) if known else domain.sample(rng)

        return Variation.of(self.decide(ask))

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more mutation.

        Raises:
            PointError: its point is not in the space.
            SpaceExhaustedError: the space has no other point.
        """
        return replace(variation, point=self.mutate(variation.point, rng))

    def swap_parents(self, variation: Variation) -> Variation:
        """Returns the same variation with the two parents of its crossover in the other order."""
        return variation

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """Returns the ``derivation`` of a proposal as JSON.

        ``mutated`` lists the names whose values differ. A space may add more.
        """
        before, now = variation.origin, variation.point
        return {"mutated": sorted(name for name in {*before, *now} if before.get(name) != now.get(name))}

    def key(self, point: Point) -> str:
        """Returns a key of the point. Points with the same key need only one trial.

        Raises:
            PointError: ``point`` cannot be a point of the space.
        """
        return point_key(point)

    def distance(self, first: Point, second: Point) -> float:
        """Returns the distance of two points."""
        return self.feature_distance(self.features(first), self.features(second))

    def features(self, point: Point) -> Any:
        """Returns the data that ``feature_distance`` compares. Keep it to compare a point with many others.

        Raises:
            PointError: ``point`` is not in the space.
        """
        return {decision.name: decision for decision in self.decisions(point)}

    def feature_distance(self, first: Any, second: Any) -> float:
        """Returns the distance of two points, given their features.

        It is 0 for equal points, and here at most 1: the mean over the decisions of both points. Numbers count by their
        difference on the scale from 0 to 1. Other answers count 1 if they differ, as do decisions that one point lacks.
        """
        terms = []
        for name in first.keys() | second.keys():  # the order does not matter: fsum's result does not depend on it
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
        """The number of points, or None if there are infinitely or too many."""

    @abstractmethod
    def points(self) -> Iterator[Point]:
        """Yields each point once, lazily and in a fixed order.

        Raises:
            ConfigurationError: the space cannot be listed. It is raised by the call, not by the first ``next``.
        """


def check_points(name: str, points: Sequence[Point], space: Space) -> None:
    """Checks that all points of a user's list are in the space.

    Raises:
        ConfigurationError: one is not. The message names it, as ``name[2]``.
    """
    for index, point in enumerate(points):
        try:
            space.validate(point)
        except PointError as error:
            raise ConfigurationError(f"{name}[{index}] is not in the space: {error}") from error
