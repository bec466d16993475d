"""The command with trials that train as lanes of one stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.core.trial import State
from tests.support.commands import only_search, run, trials


@pytest.mark.slow
def test_trials_train_as_lanes(here: Path, api_url: str) -> None:
    """More trials than lanes train in one process, each with its record; a later session may have other lanes."""
    command = ("+tuner=evolution", "problem=digits", "runner=threads", "slots=3", "device=cpu", "policy=search_only")
    done = run(here, *command, "problem.lanes=2", "budget.trials=4", PREFECT_API_URL=api_url)
    resumed = run(here, *command, "problem.lanes=3", "budget.trials=5", PREFECT_API_URL=api_url)

    assert (done.status, resumed.status) == (0, 0), done.err + resumed.err
    made = trials(only_search(here))
    assert [trial.state for trial in made] == [State.COMPLETE] * 5
    assert all(trial.checkpoint is not None and len(trial.curve) == 5 for trial in made)
    assert max(trial.metrics["accuracy"] for trial in made) > 0.7


@pytest.mark.slow
def test_lanes_without_threads_are_refused(here: Path) -> None:
    """Trials in processes of their own can't share a stack; one line says so before anything is written."""
    done = run(here, "+tuner=random", "problem=digits", "problem.lanes=2", "slots=2", "device=cpu")

    assert done.status == 2
    assert done.complaint == (
        "problem.lanes=2: must be 1 with runner=processes, whose trials can't train together. Choose runner=threads"
    )
    assert not list(here.rglob("search.json"))
