"""Limits for scores of diverged trials, which would make all other scores equal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

GREATEST = 1e100
"""Greater scores are clipped to it: their squares, and the differences of some, are infinite."""
FAR = 100.0
"""Scores are outliers beyond this multiple of the distance from the best to the median."""
NEAR = 10.0
"""Outliers count as this multiple of the distance, or as the worst other score."""


def clip_outliers(ranks: Sequence[float]) -> list[float]:
    """Returns the ranks with those far below the others raised to ``outlier_limit``.

    Args:
        ranks: Greater is better. May be empty.
    """
    limited = [max(-GREATEST, min(GREATEST, rank)) for rank in ranks]
    limit = outlier_limit(sorted(limited))
    return limited if limit is None else [max(limit, rank) for rank in limited]


def outlier_limit(ascending: Sequence[float]) -> float | None:
    """Returns the rank that outliers count as, or None if all ranks are equal.

    If the best is the median too, the distance from the best to the next rank counts.

    Args:
        ascending: Sorted ranks between -``GREATEST`` and ``GREATEST``; greater is better.
    """
    if not ascending or ascending[0] == ascending[-1]:
        return None
    best, reference = ascending[-1], median(ascending)
    if reference == best:
        reference = next(rank for rank in reversed(ascending) if rank < best)
    worst = ascending[bisect_left(ascending, best - FAR * (best - reference))]
    return min(worst, best - NEAR * (best - reference))


def median(ascending: Sequence[float]) -> float:
    """Returns the median of sorted numbers; their sums may be infinite."""
    low, high = ascending[(len(ascending) - 1) // 2], ascending[len(ascending) // 2]
    return low if low == high else low / 2 + high / 2
