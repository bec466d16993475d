"""Numbers that are drawn from a distribution and, where wanted, rounded to steps: NNI's q- and normal types."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from nas.core.errors import ConfigurationError
from nas.spaces.domain import Ask, Decision, Numeric
from nas.spaces.parameters.numeric import Parameter, Site, When, checked_conditions, invalid_value

N_SIGMAS = 5.0
"""How far a normal distribution reaches here: one draw in two million falls beyond, and is drawn again."""
_STEP = 0.2
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Distribution(Parameter):
    """A float from a uniform or normal distribution of the number, or of its logarithm.

    Args:
        kind: ``uniform``: between ``first`` and ``second``. ``normal``: of this mean and standard deviation (those of
            the logarithm, with ``log``), cut off at 5 standard deviations.
        first: See ``kind``.
        second: See ``kind``.
        log: Whether the logarithm is distributed so.
        q: Rounded to its multiples, None: not rounded. A uniform one is then clipped to its bounds.
    """

    kind: Literal["uniform", "normal"]
    first: float
    second: float
    log: bool = field(default=False, kw_only=True)
    q: float | None = field(default=None, kw_only=True)
    when: When = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, value in (("first", self.first), ("second", self.second), ("q", 1 if self.q is None else self.q)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigurationError(f"{self!r}: {name} ({value!r}) must be a finite number")
            if name != "q" or self.q is not None:
                object.__setattr__(self, name, float(value))
        if self.kind == "uniform" and (self.first > self.second or (self.log and self.first <= 0)):
            least = "over 0 and " if self.log else ""
            raise ConfigurationError(f"{self!r}: the first bound must be {least}at most the second")
        if self.kind == "normal" and self.second <= 0:
            raise ConfigurationError(f"{self!r}: the standard deviation ({self.second}) must be greater than 0")
        if self.q is not None and self.q <= 0:
            raise ConfigurationError(f"{self!r}: q ({self.q}) must be greater than 0")
        try:
            low, high = self._ends
        except OverflowError:
            low, high = 0.0, math.inf
        if not math.isfinite(high - low):
            raise ConfigurationError(f"{self!r}: it reaches beyond the greatest float; make it narrower")
        object.__setattr__(self, "when", checked_conditions(self.when))

    def __str__(self) -> str:
        steps = "" if self.q is None else f" in steps of {self.q}"
        return f"a float from {self._value(self._first)} to {self._value(self._last)}{steps}"

    def sample(self, rng: random.Random) -> float:
        """Returns a draw from the distribution."""
        if self.kind == "uniform":
            low, high = (math.log(x) if self.log else x for x in (self.first, self.second))
            drawn = low + (high - low) * rng.random()
        else:
            drawn = math.inf
            while not abs(drawn - self.first) <= N_SIGMAS * self.second:
                drawn = rng.gauss(self.first, self.second)
        return self._near(math.exp(drawn) if self.log else drawn)

    def sites(self, value: float) -> list[Site]:
        """Returns the number itself, if there is another one."""
        return [] if self._first == self._last else [()]

    def mutate(self, value: float, site: Site, rng: random.Random) -> float:
        """Another number, by a Gaussian step of 0.2 of the range (or log range)."""
        domain = self._domain
        here = domain.to_unit(self._answer(value))
        for _ in range(_TRIES):
            mutated = self._of(domain.from_unit(rng.gauss(here, _STEP)))
            if mutated != value:
                return mutated
        return rng.choice([end for end in (self._value(self._first), self._value(self._last)) if end != value])

    def decide(self, name: str, ask: Ask) -> float:
        """Asks for the number, or for which of the steps."""
        return self._value(self._first) if self._first == self._last else self._of(ask(name, self._domain))

    def decisions(self, name: str, value: float) -> Iterator[Decision]:
        """Yields the number, or which of the steps it is."""
        if self._first != self._last:
            yield Decision(name, self._domain, self._answer(value))

    def check(self, value: Any, name: str) -> None:
        """Returns if the value is a float that can be drawn; a whole number may stand for one."""
        if type(value) not in (float, int) or not math.isfinite(value):
            raise invalid_value(self, value, name)
        if self.q is None:
            if not self._first <= value <= self._last:
                raise invalid_value(self, value, name)
        elif not self._first <= round(value / self.q) <= self._last or self._near(value) != value:
            raise invalid_value(self, value, name)

    @property
    def n_values(self) -> int | None:
        """How many steps there are; None without steps."""
        if self._first == self._last:
            return 1
        return None if self.q is None else int(self._last - self._first) + 1

    def values(self) -> Iterator[float]:
        """Yields the steps, ascending."""
        return (self._value(step) for step in range(int(self._first), int(self._last) + 1))

    def to_json(self) -> dict[str, Any]:
        """Returns the distribution as JSON."""
        own = {"first": self.first, "second": self.second, "log": self.log, "q": self.q}
        return {"type": f"Distribution.{self.kind}", **own}

    @property
    def _ends(self) -> tuple[float, float]:
        """The least and the greatest number before rounding."""
        if self.kind == "uniform":
            return self.first, self.second
        reach = N_SIGMAS * self.second
        low, high = self.first - reach, self.first + reach
        return (math.exp(low), math.exp(high)) if self.log else (low, high)

    @property
    def _first(self) -> float:
        """The least number, or which multiple of q it is."""
        return self._ends[0] if self.q is None else round(self._ends[0] / self.q)

    @property
    def _last(self) -> float:
        return self._ends[1] if self.q is None else round(self._ends[1] / self.q)

    @property
    def _shift(self) -> int:
        """What is added to the multiples where they are asked for on a logarithmic scale, which has no 0."""
        return 1 if self.log and self.q is not None and self._first < 1 else 0

    @property
    def _domain(self) -> Numeric:
        """Numbers on their scale, or which multiple of q."""
        return Numeric(self._first + self._shift, self._last + self._shift, self.log, self.q is not None)

    def _answer(self, value: float) -> float:
        return value if self.q is None else round(value / self.q) + self._shift

    def _of(self, answer: float) -> float:
        """Returns the number that an answer means; a library's rounding may have left the range by a bit."""
        return self._value(min(max(answer - self._shift, self._first), self._last))

    def _value(self, step: float) -> float:
        """Returns the number itself, or this multiple of q, in its bounds."""
        if self.q is None:
            return float(step)
        value = step * self.q
        return min(max(value, self.first), self.second) if self.kind == "uniform" else float(value)

    def _near(self, value: float) -> float:
        if self.q is not None:
            return self._value(min(max(round(value / self.q), self._first), self._last))
        return min(max(value, self._first), self._last)
