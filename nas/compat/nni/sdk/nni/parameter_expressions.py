"""Random values of each type of a search space, drawn with numpy's ``RandomState``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def choice(options: Sequence[Any], random_state: Any) -> Any:
    """Returns one of the options."""
    return options[random_state.randint(len(options))]


def randint(lower: int, upper: int, random_state: Any) -> int:
    """Returns an integer from ``lower`` to ``upper - 1``."""
    return int(random_state.randint(lower, upper))


def uniform(low: float, high: float, random_state: Any) -> float:
    """Returns a number between ``low`` and ``high``."""
    return float(random_state.uniform(low, high))


def quniform(low: float, high: float, q: float, random_state: Any) -> float:
    """Returns a multiple of ``q``, clipped to the range."""
    return _clip(_multiple(uniform(low, high, random_state), q), low, high)


def loguniform(low: float, high: float, random_state: Any) -> float:
    """Returns a number between ``low`` and ``high``, uniform in its logarithm."""
    return math.exp(uniform(math.log(low), math.log(high), random_state))


def qloguniform(low: float, high: float, q: float, random_state: Any) -> float:
    """Returns a multiple of ``q``, clipped to the range, uniform in its logarithm."""
    return _clip(_multiple(loguniform(low, high, random_state), q), low, high)


def normal(mu: float, sigma: float, random_state: Any) -> float:
    """Returns a number from the normal distribution."""
    return float(random_state.normal(mu, sigma))


def qnormal(mu: float, sigma: float, q: float, random_state: Any) -> float:
    """Returns a multiple of ``q`` from the normal distribution."""
    return _multiple(normal(mu, sigma, random_state), q)


def lognormal(mu: float, sigma: float, random_state: Any) -> float:
    """Returns a number from the log-normal distribution."""
    return math.exp(normal(mu, sigma, random_state))


def qlognormal(mu: float, sigma: float, q: float, random_state: Any) -> float:
    """Returns a multiple of ``q`` from the log-normal distribution."""
    return _multiple(lognormal(mu, sigma, random_state), q)


def _multiple(value: float, q: float) -> float:
    return round(value / q) * q


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
