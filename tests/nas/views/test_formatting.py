"""Scores as text: small ones keep their digits."""

from __future__ import annotations

import pytest

from nas.views.comparison.intervals import Mean
from nas.views.comparison.tables import mean_text
from nas.views.formatting import score


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.8e-06, "3.8e-06"), (-0.00012345, "-0.0001234"), (0.001, "0.0010"), (0.94213, "0.9421"), (0.0, "0.0000")],
)
def test_small_scores_keep_their_digits(value: float, text: str) -> None:
    """A score below a thousandth has significant digits; others have four decimals."""
    assert score(value) == text


def test_small_means_keep_their_digits() -> None:
    """A mean of small losses is not 0; one of equal scores that only rounding separates is."""
    assert mean_text(Mean(3.8e-06, 1.2e-06, 3)) == "3.8e-06 ± 1.2e-06"
    assert mean_text(Mean(-5.5e-17, None, 1)) == "0.0000"
