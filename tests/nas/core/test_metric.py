"""Metrics: directions, and numbers as plain Python."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric, not_finite, plain_metrics

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_better_is_by_direction() -> None:
    """A greater value is better for a maximized metric, a smaller one for a minimized one; equal is not better."""
    up, down = Metric("accuracy"), Metric("loss", "minimize")

    assert up.is_better(0.2, than=0.1)
    assert down.is_better(0.1, than=0.2)
    assert not up.is_better(0.1, than=0.1)
    assert not down.is_better(0.1, than=0.1)
    assert down.is_better(0.0, than=0.1)


@given(finite, finite)
def test_rank_orders_as_better_does(one: float, other: float) -> None:
    """The greater rank is the better value, in both directions."""
    for metric in (Metric("m"), Metric("m", "minimize")):
        assert metric.is_better(one, than=other) == (metric.rank(one) > metric.rank(other))


def test_direction_is_checked() -> None:
    """Another direction is refused with the allowed ones."""
    with pytest.raises(ConfigurationError, match=r"metric loss: direction='min': must be 'maximize' or 'minimize'"):
        Metric("loss", "min")  # type: ignore[arg-type]


def test_scalars_of_libraries_become_plain() -> None:
    """numpy's and torch's scalars become floats or ints of the same value."""
    plain = plain_metrics(
        {"a": np.float64(0.1), "b": np.int32(3), "c": torch.tensor(0.5), "d": torch.tensor(7), "e": 0, "f": 0.0}
    )

    assert plain == {"a": 0.1, "b": 3, "c": 0.5, "d": 7, "e": 0, "f": 0.0}
    assert [type(value) for value in plain.values()] == [float, int, float, int, int, float]


def test_single_precision_keeps_its_value() -> None:
    """A float32 becomes the double of exactly its value."""
    value = np.float32(0.1)

    assert plain_metrics({"a": value})["a"] == float(value)
    assert plain_metrics({"a": torch.tensor(0.1)})["a"] == float(value)


def test_whole_numbers_beyond_64_bits_become_floats() -> None:
    """An integer beyond 64 bits becomes a float, infinite if it is too great."""
    plain = plain_metrics({"a": 2**63 - 1, "b": -(2**63), "c": 2**63, "d": -(10**5_000), "e": 10**5_000})

    assert plain == {"a": 2**63 - 1, "b": -(2**63), "c": 2.0**63, "d": -math.inf, "e": math.inf}
    assert [type(value) for value in plain.values()] == [int, int, float, float, float]


@pytest.mark.parametrize("name", ["", "x" * 101, "two\nlines", "\udcff", 5, None], ids=ascii)
def test_name_is_checked(name: Any) -> None:
    """A name that a record or table can't hold is refused."""
    with pytest.raises(ConfigurationError, match=r"metric name=.*: must be 1 to 100 printable characters"):
        Metric(name)


ARRAYS = [np.array([0.1, 0.2]), torch.tensor([[0.1], [0.2]]), torch.ones(0)]


@pytest.mark.parametrize("value", ["0.5", None, True, np.bool_(True), [1.0], Decimal("0.5"), 1j, *ARRAYS])
def test_other_types_are_refused(value: object) -> None:
    """Text, None, a bool, a list or an array is refused in one line with the metric's name and the value."""
    with pytest.raises(TypeError, match=r"metric accuracy must be a number, not .*\(\w+\)"):
        plain_metrics({"accuracy": value})


def test_not_finite_is_named() -> None:
    """NaN and infinities are named; zero and large numbers are allowed."""
    assert not_finite({"a": math.nan, "b": 0.0, "c": -math.inf, "d": 1e308, "e": 10**400}) == ["a", "c"]
