"""Decisions of a tuner and their domains, independent of the kind of space."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of ``n`` options without an order. An answer is the index of an option.

    Attributes:
        n: The number of options, at least 2.
        labels: A readable name of each option.
    """

    n: int
    labels: tuple[str, ...]

    def sample(self, rng: random.Random) -> int:
        """Returns a random option. All have the same probability."""
        return rng.randrange(self.n)

    def grid(self, resolution: int) -> list[float]:
        """Returns all options."""
        return list(range(self.n))


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number from ``low`` to ``high``, which differ.

    With ``log`` the scale is logarithmic: equal ratios are equal distances.
    """

    low: float
    high: float
    log: bool
    is_integer: bool

    def sample(self, rng: random.Random) -> float:
        """Returns a random number, uniform on the scale."""
        return self.from_unit(rng.random())

    def from_unit(self, unit: float) -> float:
        """Returns the number at a position from 0 to 1 on the scale.

        An integer ``n`` has the interval from ``n - 0.5`` to ``n + 0.5``.
        """
        low, high = self._ends
        unit = min(max(unit, 0.0), 1.0)
        value = math.exp(low + (high - low) * unit) if self.log else low + (high - low) * unit
        value = min(max(value, self.low), self.high)
        return min(max(round(value), int(self.low)), int(self.high)) if self.is_integer else value

    def to_unit(self, value: float) -> float:
        """Returns the position of a number on the scale, from 0 to 1."""
        low, high = self._ends
        return ((math.log(value) if self.log else value) - low) / (high - low)

    def grid(self, resolution: int) -> list[float]:
        """Returns at most ``resolution`` numbers at equal distances, ascending, with both ends."""
        if self.is_integer and self.high - self.low < resolution:
            return list(range(int(self.low), int(self.high) + 1))
        if resolution == 1:
            return [self.from_unit(0.5)]
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        scale = [low + (high - low) * i / (resolution - 1) for i in range(resolution)]
        values = [math.exp(x) if self.log else x for x in scale]
        values[0], values[-1] = self.low, self.high
        return list(dict.fromkeys(map(round, values))) if self.is_integer else values

    @property
    def _ends(self) -> tuple[float, float]:
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_integer else (self.low, self.high)
        return (math.log(low), math.log(high)) if self.log else (low, high)


Domain: TypeAlias = Categorical | Numeric
Ask: TypeAlias = Callable[[str, Domain], float]
"""Returns the answer to a decision (its name and domain): the option's index, or a number."""


class Decision(NamedTuple):
    """A decision and its answer, one of those that give a point."""

    name: str
    domain: Domain
    answer: float
