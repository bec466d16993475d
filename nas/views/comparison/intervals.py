"""Means over seeds with Student's 95 % intervals, and the paired t test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

LEVEL = 0.95
"""Confidence level of the intervals."""
TEST = "paired t test (Student), two-sided"
_EQUAL = 1e-9
"""Largest spread of equal differences, as a share of the largest one: subtractions round."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of ``n`` values; ``half`` is half of its interval, None for a single value."""

    value: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean | None:
        """Returns the mean with its interval, or None without values."""
        if not values:
            return None
        n = len(values)
        return cls(fmean(values), None if n == 1 else _quantile(n - 1) * stdev(values) / math.sqrt(n), n)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The mean difference of two groups over their common seeds.

    Attributes:
        difference: The mean of the differences with its interval.
        p: The probability of a mean at least as far from 0 if there is no difference. None: all differences are equal.
    """

    difference: Mean
    p: float | None

    @classmethod
    def of(cls, differences: Sequence[float]) -> PairedTest | None:
        """Returns the test of these differences, one per seed, or None for fewer than two."""
        if len(differences) < 2:
            return None
        found, spread = Mean.of(differences), stdev(differences)
        assert found is not None
        if spread <= _EQUAL * max(map(abs, differences)):
            return cls(replace(found, half=0.0), None)
        from scipy.special import stdtr

        n = len(differences)
        return cls(found, 2 * float(stdtr(n - 1, -abs(found.value) * math.sqrt(n) / spread)))


def _quantile(degrees: int) -> float:
    """Returns the quantile of Student's distribution that bounds the interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + LEVEL / 2))
