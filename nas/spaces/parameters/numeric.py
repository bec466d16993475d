"""The contract of a parameter, and ranges of numbers."""

from __future__ import annotations

import copy
import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import is_json, point_key
from nas.spaces.domain import Ask, Decision, Numeric

Site: TypeAlias = tuple[str, ...]
"""The path of a part that can be mutated: names, or none for the whole value."""

When: TypeAlias = Mapping[str, Sequence[Any]] | None

_MAX_INT = 2**53  # floats, and numbers in other languages' JSON, are exact up to here
_STEP = 0.2
_TRIES = 16


class Parameter(ABC):
    """The set of JSON values that a `ParameterSpace` allows for one name.

    ``when={"n_layers": [2, 3]}`` makes a parameter conditional. It is active only if each named parameter is active and
    has one of the values. The names must be those of *earlier* parameters in the same dict.
    """

    __slots__ = ()
    when: When

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """Returns a random value."""

    @abstractmethod
    def sites(self, value: Any) -> list[Site]:
        """Returns the sites of this value, in an order independent of its keys' order."""

    @abstractmethod
    def mutate(self, value: Any, site: Site, rng: random.Random) -> Any:
        """Returns a value that differs at this site, and in parameters that depend on it."""

    @abstractmethod
    def decide(self, name: str, ask: Ask) -> Any:
        """Returns the value that the answers give (``Space.decide``)."""

    @abstractmethod
    def decisions(self, name: str, value: Any) -> Iterator[Decision]:
        """Yields the decisions that give the value."""

    @abstractmethod
    def check(self, value: Any, name: str) -> None:
        """Checks that the value is allowed.

        Raises:
            PointError: it is not.
        """

    @property
    @abstractmethod
    def n_values(self) -> int | None:
        """The number of values, or None if it is infinite."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """Yields each value once, if ``n_values`` is not None."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the set of values as JSON, without ``when``."""

    @abstractmethod
    def __str__(self) -> str:
        """Returns the allowed values, as they follow "must be" in an error."""

    def key(self, value: Any) -> str:
        """Returns a key that is equal for values that are the same for a condition."""
        return point_key(value)

    def accepts(self, value: Any) -> bool:
        """Returns whether the value is allowed."""
        try:
            self.check(value, "")
        except PointError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Range(Parameter):
    """The numbers from ``low`` to ``high``, on a linear or logarithmic scale."""

    low: float
    high: float
    log: bool = field(default=False, kw_only=True)
    when: When = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigurationError(f"{self!r}: low={self.low}: must be at most high ({self.high}). Correct one.")
        if type(self.log) is not bool:
            raise ConfigurationError(f"{self!r}: log={self.log!r}: must be True or False")
        if self.log and self.low <= 0:
            raise ConfigurationError(f"{self!r}: low={self.low}: must be greater than 0 for log. Raise it or drop log.")
        object.__setattr__(self, "when", checked_conditions(self.when))

    @abstractmethod
    def _at(self, unit: float) -> float:
        """Returns the allowed number nearest to a position from 0 to 1 on the scale."""

    @property
    @abstractmethod
    def _ends(self) -> tuple[float, float]:
        """The numbers at the positions 0 and 1 of the scale."""

    def sample(self, rng: random.Random) -> float:
        return self._at(rng.random())

    def sites(self, value: float) -> list[Site]:
        return [()] if self.low < self.high else []

    def mutate(self, value: float, site: Site, rng: random.Random) -> float:
        low, high, present = (math.log(x) if self.log else x for x in (*self._ends, value))
        unit = (present - low) / (high - low) if low < high else 0.5  # the logarithms of neighbors may be equal
        for _ in range(_TRIES):
            mutated = self._at(rng.gauss(unit, _STEP))
            if mutated != value:
                return mutated
        return rng.choice([end for end in (self.low, self.high) if end != value])

    def decide(self, name: str, ask: Ask) -> float:
        return self.low if self.low == self.high else self._nearest(ask(name, self._domain))

    def decisions(self, name: str, value: float) -> Iterator[Decision]:
        if self.low < self.high:
            yield Decision(name, self._domain, value)

    @property
    def _domain(self) -> Numeric:
        return Numeric(self.low, self.high, self.log, isinstance(self, Int))

    @abstractmethod
    def _nearest(self, value: float) -> float:
        """Returns the nearest allowed number, since a tuner's library may round out of the range."""

    def to_json(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "low": self.low, "high": self.high, "log": self.log}

    def _from_unit(self, unit: float) -> float:
        low, high = self._ends
        if not 0.0 < unit < 1.0:
            return low if unit <= 0.0 else high
        if self.log:
            return math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit)
        return low + (high - low) * unit


@dataclass(frozen=True, slots=True)
class Float(Range):
    """A float from ``low`` to ``high``, both included. A point may hold an int instead.

    With ``log``, samples and steps are uniform in the logarithm, and ``low`` must be positive.
    """

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not abs(bound) <= sys.float_info.max:
                raise ConfigurationError(f"{self!r}: {name}={bound!r}: must be a finite number")
            object.__setattr__(self, name, float(bound))
        if math.isinf(self.high - self.low):
            raise ConfigurationError(f"{self!r}: high - low must be finite; narrow the range")
        Range.__post_init__(self)  # super() fails here, because slots=True makes a second class

    def __str__(self) -> str:
        return f"a float from {self.low} to {self.high}"

    def check(self, value: Any, name: str) -> None:
        """Checks that the value is a float or int in the range."""
        if type(value) not in (float, int) or not self.low <= value <= self.high:
            raise invalid_value(self, value, name)

    @property
    def n_values(self) -> int | None:
        """1 if the bounds are equal, else None."""
        return 1 if self.low == self.high else None

    def values(self) -> Iterator[float]:
        """Yields the single value, if the bounds are equal."""
        yield self.low

    def key(self, value: Any) -> str:
        """Returns a key that is equal for 0, 0.0 and -0.0."""
        return point_key(float(value) + 0.0)

    def _nearest(self, value: float) -> float:
        return min(max(float(value), self.low), self.high)

    def _at(self, unit: float) -> float:
        return min(max(self._from_unit(unit), self.low), self.high)

    @property
    def _ends(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Int(Range):
    """A whole number from ``low`` to ``high``, both included.

    With ``log``, ``low`` must be positive. The probability of ``n`` is about ``1/n``: that of ``n - 0.5`` to
    ``n + 0.5`` on the logarithmic scale.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, int) or abs(bound) > _MAX_INT:
                raise ConfigurationError(f"{self!r}: {name}={bound!r}: must be an int from -2**53 to 2**53")
            object.__setattr__(self, name, int(bound))
        Range.__post_init__(self)

    def __str__(self) -> str:
        return f"an int from {self.low} to {self.high}"

    def check(self, value: Any, name: str) -> None:
        """Checks that the value is an int in the range; not a bool or a float."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise invalid_value(self, value, name)

    @property
    def n_values(self) -> int:
        """The number of integers in the range."""
        return self.high - self.low + 1

    def values(self) -> Iterator[int]:
        """Yields the integers, ascending."""
        yield from range(self.low, self.high + 1)

    def _nearest(self, value: float) -> int:
        return min(max(round(value), self.low), self.high)

    def _at(self, unit: float) -> int:
        return min(max(round(self._from_unit(unit)), self.low), self.high)

    @property
    def _ends(self) -> tuple[float, float]:
        return self.low - 0.5, self.high + 0.5


def checked_conditions(when: When) -> dict[str, list[Any]] | None:
    """Returns a copy of the conditions after checking that each is a list of JSON values."""
    if when is None:
        return None
    if not isinstance(when, Mapping) or not all(type(name) is str for name in when):
        raise ConfigurationError(f"when={when!r}: must be a dict of parameters' names, each with a list of values")
    for name, values in when.items():
        if not isinstance(values, list | tuple | range) or not values or not is_json(list(values)):
            raise ConfigurationError(f"when: {name}={values!r}: must be a list of at least one JSON value")
        if any(isinstance(value, dict) for value in values):
            raise ConfigurationError(f"when: {name}={values!r}: can't be a dict. Put the parameter inside that dict.")
    return {name: copy.deepcopy(list(values)) for name, values in when.items()}


def invalid_value(parameter: Parameter, value: Any, name: str) -> PointError:
    """Returns the error for a value that a parameter does not allow."""
    return PointError(
        f"{name}={value!r} ({type(value).__name__}): must be {parameter}. Change the point or widen the space."
    )
