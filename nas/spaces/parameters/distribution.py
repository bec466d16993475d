"""Floats from a uniform or normal distribution, optionally quantized: NNI's q- and normal types."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from nas.core.errors import ConfigurationError
from nas.spaces.domain import Ask, Decision, Numeric
from nas.spaces.parameters.numeric import Parameter, Site, When, checked_conditions, invalid_value

N_SIGMAS = 5.0
"""The standard deviations at which a normal distribution is cut off: one sample in two million."""
_STEP = 0.2
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Distribution(Parameter):
    """A float from a uniform or normal distribution of the number, or of its logarithm.

    Args:
        kind: ``uniform`` from ``first`` to ``second``, or ``normal``, cut off at 5 standard deviations. The decision of
            a tuner has a uniform scale in both cases.
        first: The lower bound, or the mean (of the logarithm, with ``log``).
        second: The upper bound, or the standard deviation (of the logarithm, with ``log``).
        log: Whether the distribution is that of the logarithm.
        q: The number is rounded to a multiple of it. None: no rounding. A uniform number is clipped to its bounds.
        when: See `Parameter`.
    """

    kind: Literal["uniform", "normal"]
    first: float
    second: float
    log: bool = field(default=False, kw_only=True)
    q: float | None = field(default=None, kw_only=True)
    when: When = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, value in (("first", self.first), ("second", self.second), ("q", 1 if self.q is None else self.q)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                raise ConfigurationError(f"{self!r}: {name}={value!r}: must be a finite number")
            if name != "q" or self.q is not None:
                object.__setattr__(self, name, float(value))
        if self.kind == "uniform" and (self.first > self.second or (self.log and self.first <= 0)):
            positive = "greater than 0 and " if self.log else ""
            raise ConfigurationError(f"{self!r}: the first bound must be {positive}at most the second")
        if self.kind == "normal" and self.second <= 0:
            raise ConfigurationError(f"{self!r}: standard deviation={self.second}: must be greater than 0")
        if self.q is not None and self.q <= 0:
            raise ConfigurationError(f"{self!r}: q={self.q}: must be greater than 0")
        try:
            low, high = self._ends
        except OverflowError:
            low, high = 0.0, math.inf
        if not math.isfinite(high - low):
            raise ConfigurationError(f"{self!r}: the range must be within that of floats; narrow it")
        object.__setattr__(self, "when", checked_conditions(self.when))

    def __str__(self) -> str:
        steps = "" if self.q is None else f" in steps of {self.q}"
        return f"a float from {self._value(self._first)} to {self._value(self._last)}{steps}"

    def sample(self, rng: random.Random) -> float:
        """Returns a sample of the distribution."""
        if self.kind == "uniform":
            low, high = (math.log(x) if self.log else x for x in (self.first, self.second))
            value = low + (high - low) * rng.random()
        else:
            value = math.inf
            while not abs(value - self.first) <= N_SIGMAS * self.second:
                value = rng.gauss(self.first, self.second)
        return self._nearest(math.exp(value) if self.log else value)

    def sites(self, value: float) -> list[Site]:
        """Returns the value as a whole, or no site if there is a single value."""
        return [] if self._first == self._last else [()]

    def mutate(self, value: float, site: Site, rng: random.Random) -> float:
        """Returns another number, by a Gaussian step of 0.2 of the range (or log range)."""
        domain = self._domain
        unit = domain.to_unit(self._answer(value))
        for _ in range(_TRIES):
            mutated = self._from_answer(domain.from_unit(rng.gauss(unit, _STEP)))
            if mutated != value:
                return mutated
        ends = self._value(self._first), self._value(self._last)
        return rng.choice([end for end in ends if end != value])

    def decide(self, name: str, ask: Ask) -> float:
        """Asks for the number, or for its multiple of ``q``."""
        if self._first == self._last:
            return self._value(self._first)
        return self._from_answer(ask(name, self._domain))

    def decisions(self, name: str, value: float) -> Iterator[Decision]:
        """Yields the number, or its multiple of ``q``."""
        if self._first != self._last:
            yield Decision(name, self._domain, self._answer(value))

    def check(self, value: Any, name: str) -> None:
        """Checks that the value is a possible sample. An int stands for the float."""
        if type(value) not in (float, int) or not abs(value) <= sys.float_info.max:
            raise invalid_value(self, value, name)
        if self.q is None:
            if not self._first <= value <= self._last:
                raise invalid_value(self, value, name)
        elif not self._first <= round(value / self.q) <= self._last or self._nearest(value) != value:
            raise invalid_value(self, value, name)

    @property
    def n_values(self) -> int | None:
        """The number of multiples of ``q``, or None without ``q``."""
        if self._first == self._last:
            return 1
        return None if self.q is None else int(self._last - self._first) + 1

    def values(self) -> Iterator[float]:
        """Yields the values of a distribution with ``q``, ascending."""
        return (self._value(multiple) for multiple in range(int(self._first), int(self._last) + 1))

    def to_json(self) -> dict[str, Any]:
        """Returns the distribution as JSON."""
        own = {"first": self.first, "second": self.second, "log": self.log, "q": self.q}
        return {"type": f"Distribution.{self.kind}", **own}

    @property
    def _ends(self) -> tuple[float, float]:
        """The smallest and the greatest number before rounding."""
        if self.kind == "uniform":
            return self.first, self.second
        reach = N_SIGMAS * self.second
        low, high = self.first - reach, self.first + reach
        return (math.exp(low), math.exp(high)) if self.log else (low, high)

    @property
    def _first(self) -> float:
        """The smallest number, or its multiple of ``q``."""
        return self._ends[0] if self.q is None else round(self._ends[0] / self.q)

    @property
    def _last(self) -> float:
        return self._ends[1] if self.q is None else round(self._ends[1] / self.q)

    @property
    def _shift(self) -> int:
        """The number added to multiples of ``q``, since a logarithmic scale has no 0."""
        return 1 if self.log and self.q is not None and self._first < 1 else 0

    @property
    def _domain(self) -> Numeric:
        """The numbers, or their multiples of ``q``."""
        return Numeric(self._first + self._shift, self._last + self._shift, self.log, self.q is not None)

    def _answer(self, value: float) -> float:
        return value if self.q is None else round(value / self.q) + self._shift

    def _from_answer(self, answer: float) -> float:
        """Returns the number of an answer, clipped: a tuner's library may leave the range by rounding."""
        return self._value(min(max(answer - self._shift, self._first), self._last))

    def _value(self, multiple: float) -> float:
        """Returns the number, or the multiple of ``q`` within the bounds."""
        if self.q is None:
            return float(multiple)
        value = multiple * self.q
        return min(max(value, self.first), self.second) if self.kind == "uniform" else float(value)

    def _nearest(self, value: float) -> float:
        if self.q is not None:
            return self._value(min(max(round(value / self.q), self._first), self._last))
        return min(max(value, self._first), self._last)
