"""Patience: improvements, and the reports without one."""

from __future__ import annotations

from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.stoppers.patience import PatienceStopper
from tests.support.curves import METRIC, others, trial


def stopped_at(values: list[float], *, metric: Metric = METRIC, **options: Any) -> int | None:
    """Returns the first report at which a trial with these values is told to stop."""
    stopper = PatienceStopper((metric,), **options)
    reports = range(1, len(values) + 1)
    return next((n for n in reports if stopper.should_stop(others(), trial(0, values[:n]))), None)


def test_ends_after_so_many_reports_without_improvement() -> None:
    """With three, a trial with its best at the second report ends at its fifth."""
    assert stopped_at([0.1, 0.5, 0.4, 0.5, 0.3, 0.9], n_reports=3) == 5
    assert stopped_at([0.1, 0.5, 0.4, 0.5, 0.6, 0.5], n_reports=3) is None


def test_improvements_must_exceed_min_delta() -> None:
    """Steps of 0.1 are improvements with min_delta 0.05, but not with 0.25 over two reports."""
    rising = [0.1 * step for step in range(10)]

    assert stopped_at(rising, n_reports=2, min_delta=0.05) is None
    assert stopped_at(rising, n_reports=2, min_delta=0.25) == 3


def test_falling_metric() -> None:
    """A falling minimized metric improves."""
    assert stopped_at([5, 4, 3, 2, 1], metric=Metric("acc", "minimize"), n_reports=2) is None
    assert stopped_at([1, 2, 3, 4, 5], metric=Metric("acc", "minimize"), n_reports=2) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_reports": 0}, r"stopper.n_reports=0: must be a whole number of at least 1"),
        ({"n_reports": "many"}, r"stopper.n_reports='many': must be a whole number of at least 1"),
        ({"n_reports": 2.5}, r"stopper.n_reports=2.5: must be a whole number of at least 1"),
        ({"min_delta": -0.1}, r"stopper.min_delta=-0.1: must be a number of at least 0"),
        ({"min_delta": "x"}, r"stopper.min_delta='x': must be a number"),
        ({"min_delta": float("inf")}, r"stopper.min_delta=inf: must be a number"),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    """Invalid arguments are refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        PatienceStopper((METRIC,), **wrong)
