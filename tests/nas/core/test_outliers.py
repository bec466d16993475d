"""Outliers among scores are limited, and nothing else changes."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.core.outliers import clip_outliers, median

SCORES = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30)


@pytest.mark.parametrize(
    ("ranks", "clipped"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([-1e308, -1e308], [-1e100, -1e100]),
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]),
        ([0.0, -1.0, -90.0], [0.0, -1.0, -90.0]),
        ([0.0, -1.0, -1e9], [0.0, -1.0, -10.0]),
        ([0.0, -1.0, -20.0, -1e308, -1.0], [0.0, -1.0, -20.0, -20.0, -1.0]),
        ([0.0, 0.0, 0.0, -1.0, -1e308], [0.0, 0.0, 0.0, -1.0, -10.0]),
    ],
)
def test_outliers_count_as_a_bad_score(ranks: list[float], clipped: list[float]) -> None:
    """An outlier counts as ten times the distance from the best to the median, or as the worst of the others."""
    assert clip_outliers(ranks) == clipped


@given(SCORES)
def test_clipping_keeps_the_order(ranks: list[float]) -> None:
    """Clipped ranks are in the same order, squares of their differences are finite, and clipping again changes none."""
    clipped = clip_outliers(ranks)
    in_order = sorted(zip(ranks, clipped, strict=True))

    assert len(clipped) == len(ranks)
    assert all(x <= y for (_, x), (_, y) in pairwise(in_order))
    assert all(math.isfinite((x - clipped[0]) ** 2) for x in clipped)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=9))
def test_median_is_the_usual_one(values: list[float]) -> None:
    """It is that of the standard library."""
    assert median(sorted(values)) == pytest.approx(statistics.median(values))


def test_median_of_great_numbers_is_finite() -> None:
    """The sum of both middle numbers may be infinite."""
    assert median([1.5e308, 1.7e308]) == pytest.approx(1.6e308)
