"""ENAS by its command, from bundled data to the finals."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.core.policy import Policy
from nas.core.supernet import is_epoch
from tests.support.commands import only_search, run, trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIMIT_S = 300


def test_the_command_ends_within_five_minutes(here: Path, api_url: str) -> None:
    """Four epochs follow the controller's paths, eight subnets are scored with the last, and two finals are trained."""
    overrides = ("+tuner=enas", "problem=cells", "budget.trials=12", "slots=2")
    done = run(here, *overrides, timeout_s=LIMIT_S, PREFECT_API_URL=api_url)
    found = trials(only_search(here))
    epochs = [trial for trial in found if is_epoch(trial)]
    subnets = [trial for trial in found if trial.stage == "search" and not is_epoch(trial)]
    finals = [trial for trial in found if trial.stage == "final"]

    assert done.status == 0, done.err
    assert (len(epochs), len(subnets), len(finals)) == (4, 8, 2)
    assert all(len(trial.proposal.derivation["paths"]) == 64 for trial in epochs)
    assert all(trial.donor == epochs[-1].number and Policy.SKIP_TRAIN in trial.policies for trial in subnets)
    assert min(trial.metrics["accuracy"] for trial in finals) > 0.95
    assert "test: accuracy 0.9" in done.out
