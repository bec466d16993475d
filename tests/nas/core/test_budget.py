"""Budgets: allowed trials, and refused values."""

from __future__ import annotations

import math

import pytest

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError


def test_nothing_set_is_sixteen_trials() -> None:
    """Without any limit a search has 16 trials; a set limit is the only one."""
    assert Budget().trials == 16
    assert Budget(hours=1.0).trials is None
    assert Budget(gpu_hours=1.0).trials is None


def test_trials_are_counted() -> None:
    """Another trial is allowed while there are fewer; without a number, always."""
    assert [Budget(trials=4).allows_trial(n) for n in (3, 4)] == [True, False]
    assert Budget(hours=1.0).allows_trial(10**6)


@pytest.mark.parametrize("share", [-0.1, 1.0, 40, True, "0.4", math.nan])
def test_final_share_is_a_part_of_the_hours(share: object) -> None:
    """A final share of all hours is refused, since it leaves none for the search."""
    with pytest.raises(ConfigurationError, match=r"budget\.final_share=.*: must be a number from 0 to below 1"):
        Budget(final_share=share)  # type: ignore[arg-type]


@pytest.mark.parametrize("wish", ["kill", None, True])
def test_at_the_deadline_trials_finish_or_stop(wish: object) -> None:
    """Other values of at_deadline are refused."""
    with pytest.raises(ConfigurationError, match=r"budget\.at_deadline=.*: must be finish or stop"):
        Budget(at_deadline=wish)  # type: ignore[arg-type]


@pytest.mark.parametrize("trials", [0, -1, 1.5, 16.0, "16", True])
def test_trials_must_be_a_whole_number(trials: object) -> None:
    """Trials must be a whole number of at least 1; the error shows the value."""
    with pytest.raises(ConfigurationError, match=r"budget\.trials=.*: must be"):
        Budget(trials=trials)  # type: ignore[arg-type]


@pytest.mark.parametrize("hours", [0, -1.0, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("name", ["hours", "gpu_hours"])
def test_hours_must_be_positive(name: str, hours: object) -> None:
    """Hours must be a finite number greater than 0; the error names the option."""
    with pytest.raises(ConfigurationError, match=rf"budget\.{name}=.*: must be a number greater than 0"):
        Budget(**{name: hours})  # type: ignore[arg-type]


def test_jobs_are_counted_by_themselves() -> None:
    """A budget of jobs limits new jobs, not the trials of started ones."""
    budget = Budget(jobs=2)

    assert budget.trials is None
    assert budget.allows_trial(100)
    assert [budget.allows_job(n) for n in (1, 2)] == [True, False]
    with pytest.raises(ConfigurationError, match=r"budget\.jobs"):
        Budget(jobs=0)
