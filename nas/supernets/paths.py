"""Samplers of the points that a supernet trains in each step.

Each is a function of its arguments and the step: the same step gives the same points. Disconnected cells are left out,
since they train nothing but the layers after them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from statistics import fmean
from typing import TypeAlias

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point
from nas.core.validation import check_int
from nas.spaces.domain import Categorical, Domain, Numeric
from nas.spaces.space import Space
from nas.supernets.connectivity import is_connected
from nas.supernets.method import n_nones, n_skips

PathSampler: TypeAlias = Callable[[int], list[Point]]
"""Returns the points of a step, counted from 0."""
PATHS = "paths"
"""The key of a supernet epoch's ``derivation`` with the answers of each step's decisions."""
N_PANEL = 16
"""The number of points whose mean score is that of a supernet epoch."""
_TRIES = 1_000


@dataclass(frozen=True, slots=True)
class UniformPaths:
    """One connected point a step, with equal probability (Guo et al. 2020, arXiv:1904.00420).

    Attributes:
        space: The space of the supernet.
        seed: The seed, an integer.
        accept: Whether a point is trained.
    """

    space: Space
    seed: int
    accept: Callable[[Point], bool] = is_connected

    def __call__(self, step: int) -> list[Point]:
        """Returns one point."""
        return [draw(self.space, _random(self.seed, step), self.accept)]


@dataclass(frozen=True, slots=True)
class FairPaths:
    """Each option of each decision once a step (Chu et al. 2021, arXiv:1907.01845, strict fairness).

    There are as many points as the largest number of options. In shorter decisions options repeat. Numbers are at equal
    distances. Points that are not accepted are left out.

    Attributes:
        space: The space of the supernet.
        seed: The seed, an integer.
        accept: Whether a point is trained.
    """

    space: Space
    seed: int
    accept: Callable[[Point], bool] = is_connected

    def __call__(self, step: int) -> list[Point]:
        """Returns the accepted points; another draw of all of them if there is none."""
        rng = _random(self.seed, step)
        for _ in range(_TRIES):
            if points := [point for point in self._draw(rng) if self.accept(point)]:
                return points
        raise _none_accepted()

    def _draw(self, rng: random.Random) -> Iterator[Point]:
        """Yields points that together have each option."""
        orders: dict[str, list[float]] = {}
        n_points = max(map(_n_options, _domains(self.space).values()), default=1)
        for index in range(n_points):

            def ask(name: str, domain: Domain, index: int = index) -> float:
                if name not in orders:
                    orders[name] = _repeated(domain, n_points, rng)
                return orders[name][index]

            yield self.space.decide(ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandwichPaths:
    """The largest point, the smallest and random ones (Yu and Huang 2019, arXiv:1903.05134).

    With ``PathTraining.distill`` the largest one teaches the others.

    Attributes:
        space: The space of the supernet.
        seed: The seed, an integer.
        largest: The first point of each step.
        smallest: The second point of each step.
        n_random: The number of random points a step.
        accept: Whether a random point is trained.
    """

    space: Space
    seed: int
    largest: Point
    smallest: Point
    n_random: int = 2
    accept: Callable[[Point], bool] = is_connected

    def __post_init__(self) -> None:
        check_int("n_random", self.n_random, 0)
        self.space.validate(self.largest)
        self.space.validate(self.smallest)

    def __call__(self, step: int) -> list[Point]:
        """Returns the largest point, the smallest and the random ones."""
        rng = _random(self.seed, step)
        return [self.largest, self.smallest, *(draw(self.space, rng, self.accept) for _ in range(self.n_random))]


@dataclass(frozen=True, slots=True)
class ListedPaths:
    """One point a step from a list, which starts again after its end.

    In ENAS, these are samples of the controller.
    """

    points: Sequence[Point]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigurationError("paths=[]: must have one point or more.")

    def __call__(self, step: int) -> list[Point]:
        """Returns one point."""
        return [self.points[step % len(self.points)]]

    @classmethod
    def of_answers(cls, space: Space, answers: Sequence[Sequence[float]]) -> ListedPaths:
        """Returns the points of answers, each in the order of ``space.decisions``.

        Raises:
            PointError: there are too few or too many answers for a point, or one is not allowed.
        """
        return cls([_decided(space, own) for own in answers])

    @classmethod
    def of_derivation(cls, space: Space, derivation: object) -> ListedPaths | None:
        """Returns the paths that a tuner listed for a supernet epoch, or None.

        Raises:
            PointError: as for ``of_answers``.
        """
        if isinstance(derivation, Mapping) and PATHS in derivation:
            return cls.of_answers(space, derivation[PATHS])
        return None


def path_metrics(points: Sequence[Point]) -> dict[str, float]:
    """Returns the mean skips and nones of points, and the entropy of a decision in nats."""
    names = dict.fromkeys(chain.from_iterable(points))
    answers = (Counter(repr(point.get(name)) for point in points) for name in names)  # of a list or an object too
    shares = [[n / len(points) for n in counted.values()] for counted in answers]
    return {
        "skips": fmean(map(n_skips, points)),
        "nones": fmean(map(n_nones, points)),
        "entropy": fmean(-sum(share * log(share) for share in own) for own in shares),
    }


def option_share(space: Space, points: Sequence[Point], option: str) -> float:
    """Returns the share of an option among the decisions of points that offer it, or 0."""
    domains = [
        (decision.domain, decision.answer)
        for point in points
        for decision in space.decisions(point)
        if isinstance(decision.domain, Categorical) and repr(option) in decision.domain.labels
    ]
    return fmean(domain.labels[int(answer)] == repr(option) for domain, answer in domains) if domains else 0.0


def draw(space: Space, rng: random.Random, accept: Callable[[Point], bool] = is_connected) -> Point:
    """Returns a random point that is accepted.

    Raises:
        ConfigurationError: none of 1,000 points is.
    """
    for _ in range(_TRIES):
        if accept(point := space.sample(rng)):
            return point
    raise _none_accepted()


def _none_accepted() -> ConfigurationError:
    return ConfigurationError(f"paths: none of {_TRIES:,} points was accepted. Check `accept`.")


def _random(seed: int, step: int) -> random.Random:
    """Returns a generator for a step of a sampler."""
    return random.Random(f"{seed}/{step}")


def _domains(space: Space) -> dict[str, Domain]:
    """Returns the decisions of some points; rare ones may be missing."""
    rng = random.Random(0)
    points = [space.sample(rng) for _ in range(32)]
    return {decision.name: decision.domain for point in points for decision in space.decisions(point)}


def _n_options(domain: Domain) -> int:
    """Returns the number of options, or 1 for a number."""
    return 1 if isinstance(domain, Numeric) else domain.n


def _repeated(domain: Domain, n: int, rng: random.Random) -> list[float]:
    """Returns ``n`` options: permutations of all, one after another."""
    options = domain.grid(n)
    found: list[float] = []
    while len(found) < n:
        found += rng.sample(options, len(options))
    return found[:n]


def _decided(space: Space, answers: Sequence[float]) -> Point:
    """Returns the point of answers."""
    left = list(reversed(answers))

    def ask(name: str, domain: Domain) -> float:
        if not left:
            raise PointError(f"paths={list(answers)}: must have an answer for {name!r}.")
        answer = left.pop()
        if isinstance(domain, Numeric):
            return answer
        if answer not in range(domain.n):
            raise PointError(f"paths={list(answers)}: {name!r} must be an index from 0 to {domain.n - 1}.")
        return int(answer)

    point = space.decide(ask)
    if left:
        raise PointError(f"paths={list(answers)}: must have {len(answers) - len(left)} answers.")
    return point
