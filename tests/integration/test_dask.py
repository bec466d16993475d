"""Searches with ``runner=dask`` as commands, on clusters of this machine: losses, stops, refusals and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Command, records, trials

pytestmark = pytest.mark.slow

EVOLVED = ("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2")
DASK = ("runner=dask", "threads=1", "finalists=1", "name=mine")
PHASES = ("problem._target_=multi_phase_problem.MultiPhaseProblem", *DASK)


def test_a_search_on_a_local_cluster(here: Path, api_url: str) -> None:
    """Jobs, stops, inheritance, a final, its test and export run on Dask's workers; no process is left."""
    plan = (*EVOLVED, *PHASES, "stopper=median", "slots=2", "budget.trials=8")
    with Command(here, *plan, PREFECT_API_URL=api_url) as command:
        done = command.wait()
        left = command.leftovers()

    found = trials(here / "heirloom" / "mine")
    starts = records(here / "heirloom" / "mine").files.names("trials")
    assert done.status == 0, done.err
    assert {t.state for t in found} <= {"COMPLETE", "STOPPED"}
    assert {t.attempt for t in found} == {1}
    assert len(found) == 9
    assert {t.job for t in found if t.stage == "search"} == {0, 1}
    assert any((t.inherited or 0) > 0 for t in found)
    assert "test: score" in done.out
    assert (here / "heirloom/mine/best-0001.json").exists()
    assert sum(name.endswith(".start-1.json") for name in starts) == 9
    assert "2 workers for 2 slots" in done.err
    assert not left
