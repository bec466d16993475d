"""Searches with several trials per job on every runner; workers that end within and between trials."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import TIMED, Command, records, run, trials, until

pytestmark = pytest.mark.slow

PHASES = (
    "problem._target_=multi_phase_problem.MultiPhaseProblem",
    "device=cpu",
    "threads=1",
    "name=mine",
    "finalists=1",
)
EVOLVED = ("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2", *PHASES)


@pytest.mark.parametrize("runner", ["threads", "debug", "dask"])
def test_every_runner(here: Path, api_url: str, runner: str) -> None:
    """Two jobs run all trials; children inherit; a larger budget continues the same jobs."""
    search = here / "heirloom" / "mine"
    slots = 1 if runner == "debug" else 2
    plan = (*EVOLVED, f"runner={runner}", *(["slots=2"] if slots == 2 else []))
    first = run(here, *plan, "budget.trials=8", PREFECT_API_URL=api_url)
    before = trials(search)
    more = run(here, *plan, "budget.trials=11", PREFECT_API_URL=api_url)
    after = trials(search)
    table = run(here, "name=mine", "format=json", module="flows.report")

    assert first.status == more.status == 0, first.err + more.err
    assert [t.state for t in after] == ["COMPLETE"] * len(after)
    assert {t.job for t in before if t.stage == "search"} == set(range(slots))
    assert {t.job for t in after if t.stage == "search"} == set(range(slots))
    assert all(t.job == t.number for t in after if t.stage != "search")
    assert any((t.inherited or 0) > 0 for t in after)
    assert [row["job"] for row in json.loads(table.out)] == [t.job for t in after]


def test_plain_problem_by_threes(here: Path, api_url: str) -> None:
    """With ``job.trials_per_job`` trials of a plain problem share jobs; it is part of the identity."""
    plan = (*TIMED, "job.trials_per_job=3", "slots=1", "runner=processes", "budget.trials=7", "finalists=1")
    done = run(here, *plan, "name=mine", PREFECT_API_URL=api_url)
    other = run(here, *plan, "name=mine", "job.trials_per_job=2", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    assert [t.job for t in trials(here / "heirloom" / "mine")] == [0, 0, 0, 3, 3, 3, 6, 7]
    assert other.status == 2
    assert "trials_per_job: 3 there, 2 here" in other.complaint


def test_simulated(here: Path) -> None:
    """Simulated jobs ask for trials as on other runners."""
    (here / "table.csv").write_text("x,score\n" + "".join(f"{n},{n / 10}\n" for n in range(10)))
    table = (
        "problem=tabular",
        "problem.table=table.csv",
        "problem.parameters=[x]",
        "problem.metrics.score.column=score",
    )
    plan = ("+tuner=random", *table, "problem.seconds=5", "runner=simulated", "slots=2", "job.trials_per_job=4")
    done = run(here, *plan, "budget.trials=12", "name=mine")

    assert done.status == 0, done.err
    assert {t.job for t in trials(here / "heirloom" / "mine") if t.stage == "search"} == {0, 1, 8, 9}


@pytest.mark.parametrize("between", [False, True], ids=["within", "between"])
def test_a_killed_worker_costs_no_job(here: Path, api_url: str, between: bool) -> None:
    """After kill -9 of a worker its trial runs as attempt 2 of the same job, which starts again."""
    search = here / "heirloom" / "mine"
    plan = (*EVOLVED, "runner=processes", "slots=1", "budget.trials=5")
    held = here / ("pause" if between else "1")
    held.touch()
    with Command(here, *plan, f"problem.hold={here}", forked=True, PREFECT_API_URL=api_url) as driver:
        if between:
            until(lambda: list(here.glob("between-*")), what="a pause between two trials")
            [mark] = here.glob("between-*")
            os.kill(int(mark.name.partition("-")[2]), 9)
        else:
            until(lambda: (search / "trials/000001.start-1.json").exists(), what="the second trial")
            started = records(search).read("trials/000001.start-1.json")
            assert started is not None
            os.kill(started["pid"], 9)
        held.unlink()
        done = driver.wait()

    assert done.status == 0, done.err
    found = trials(search)
    assert [t.state for t in found] == ["COMPLETE"] * 6
    assert [t.job for t in found] == [0] * 5 + [5]
    assert [t.attempt for t in found] == ([1] * 6 if between else [1, 2, 1, 1, 1, 1])
    told = "job 0 ended between two trials" if between else "trial 1 was lost"
    assert f"{told}: its worker was killed by SIGKILL" in done.err


def test_timeout_of_one_trial(here: Path, api_url: str) -> None:
    """A trial over its timeout is FAILED, its worker is killed, and the job continues elsewhere."""
    plan = (
        "+tuner=random",
        "problem._target_=multi_phase_problem.SleepyProblem",
        "device=cpu",
        "threads=1",
        "runner=processes",
    )
    done = run(here, *plan, "slots=1", "trial_timeout_s=5", "budget.trials=3", "name=mine", PREFECT_API_URL=api_url)

    found = trials(here / "heirloom" / "mine")
    assert done.status == 0, done.err
    assert [t.state for t in found[:3]] == ["COMPLETE", "FAILED", "COMPLETE"]
    assert found[1].reason == "timeout"
    assert {t.job for t in found[:3]} == {0}


def test_interruption_and_resumption(here: Path, api_url: str) -> None:
    """Ctrl-C while jobs run: status 130, and the same command ends the search with the same jobs."""
    search = here / "heirloom" / "mine"
    plan = (*EVOLVED, "runner=processes", "slots=2", "budget.trials=8", f"problem.hold={here}")
    (here / "5").touch()
    with Command(here, *plan, forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: len(list((search / "trials").glob("*.result.json"))) >= 3, what="three results")
        os.kill(driver.process.pid, 2)
        first = driver.wait()
    (here / "5").unlink()
    last = run(here, *plan, PREFECT_API_URL=api_url)

    assert first.status == 130
    assert last.status == 0, last.err
    assert {t.job for t in trials(search) if t.stage == "search"} == {0, 1}
