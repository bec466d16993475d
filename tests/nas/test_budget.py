"""Budgets: what they allow, and what they refuse to be."""

from __future__ import annotations

import math

import pytest

from nas.budget import Budget
from nas.errors import ConfigurationError


def test_nothing_set_is_sixteen_trials() -> None:
    """Without any bound a search has 16 trials; with one, that one alone."""
    assert Budget().trials == 16
    assert Budget(hours=1.0).trials is None
    assert Budget(gpu_hours=1.0).trials is None


@pytest.mark.parametrize(
    ("n_trials", "hours", "gpu_hours", "spent"),
    [(3, 1.9, 0.9, None), (4, 0, 0, "trials"), (0, 2.0, 0, "hours"), (0, 0, 1.0, "gpu_hours"), (9, 9, 9, "trials")],
)
def test_every_bound_counts(n_trials: int, hours: float, gpu_hours: float, spent: str | None) -> None:
    """Another trial is allowed while no bound is reached; the first that is reached is named."""
    budget = Budget(trials=4, hours=2.0, gpu_hours=1.0)

    assert budget.spent(n_trials=n_trials, hours=hours, gpu_hours=gpu_hours) == spent


def test_unset_bounds_allow_everything() -> None:
    """A bound that is not set never ends the search."""
    assert Budget(hours=1.0).spent(n_trials=10**6, hours=0.5, gpu_hours=10**6) is None


@pytest.mark.parametrize("trials", [0, -1, 1.5, 16.0, "16", True])
def test_trials_must_be_a_whole_number(trials: object) -> None:
    """Trials that are no whole number of at least 1 are refused, with the value."""
    with pytest.raises(ConfigurationError, match=r"budget\.trials \("):
        Budget(trials=trials)  # type: ignore[arg-type]


@pytest.mark.parametrize("hours", [0, -1.0, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("name", ["hours", "gpu_hours"])
def test_hours_must_be_positive(name: str, hours: object) -> None:
    """Hours that are not a finite number greater than 0 are refused, naming which."""
    with pytest.raises(ConfigurationError, match=rf"budget\.{name} \(.* must be greater than 0"):
        Budget(**{name: hours})  # type: ignore[arg-type]


def test_jobs_are_counted_by_themselves() -> None:
    """A budget of jobs forbids a further job, and no trial of those that have begun."""
    budget = Budget(jobs=2)

    assert budget.trials is None
    assert budget.spent(n_trials=100, hours=0.0, gpu_hours=0.0) is None
    assert [budget.allows_job(n) for n in (1, 2)] == [True, False]
    with pytest.raises(ConfigurationError, match=r"budget\.jobs"):
        Budget(jobs=0)
