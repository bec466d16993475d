"""``kill -9`` at any moment: the same command continues, and the table equals an uninterrupted run's."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from nas.storage.checkpoints import load_manifest
from tests.support.commands import ROOT, TIMED, Command, records, run, trials, until
from tests.support.image_files import write_fashion_mnist

SEARCH = (
    *("+tuner=evolution", "tuner.population_size=4", "tuner.sample_size=2", *TIMED[1:], "problem.seconds=0.6"),
    *("deterministic=true", "slots=2", "runner=processes", "budget.trials=20", "max_attempts=2"),
)
JOBS = ("problem._target_=multi_phase_problem.MultiPhaseProblem", "problem.most=7")
"""The same, in jobs of seven trials each."""
SHARED = (
    *("tuner.warm_up_epochs=2", "tuner.n_epochs=3", "tuner.subnets_per_epoch=3", "tuner.subnets_beside_epoch=3"),
    *("problem._target_=supernet_problem.SupernetProblem", "problem.seconds=0.5", "device=cpu", "threads=1"),
    *("deterministic=true", "slots=2", "runner=processes", "budget.trials=10", "finalists=1", "max_attempts=2"),
)
"""Supernet epochs, and subnets that are scored while the next one trains."""
ALPHAS = (
    *("tuner.n_epochs=2", "problem=cells", "problem.data=fashion_mnist", "problem.data_root=.", "problem.side=8"),
    *("problem.channels=2", "problem.epoch_steps=5", "problem.n_epochs=1"),
    *("problem.precision=float32", "device=cpu", "threads=1", "deterministic=true", "slots=2", "runner=processes"),
    *("budget.trials=4", "finalists=1", "max_attempts=2"),
)
"""Supernet epochs that train alphas and suggest cells, on files of random images in the command's folder."""
ONE_SHOT = {"enas": ("+tuner=enas", *SHARED), "darts_pt": ("+tuner=darts_pt", *ALPHAS)}
"""The two with most state of those that share weights: an LSTM, and cells that are chosen at an epoch's end.

tests/test_contracts.py resumes a search of every tuner after 0, 1, half and all but one of its results, and
tests/nas/problems/test_alpha_epoch.py an interrupted epoch of every method. test_proxies_on_workers.py has proxies.
"""

TABLE = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve() / "nasbench201_cifar10.parquet"
SCREENED = (
    *("+tuner=screened", "tuner.inner=evolution", "problem=nasbench201", "tuner.proxies=[live_flops_m]"),
    *("runner=simulated", "budget.trials=60"),
)
CONTINUED = {"gdas": ("+tuner=gdas", *ALPHAS), "rsps": ("+tuner=rsps", *SHARED), "screened": SCREENED}
"""Others, of which only what a kill must leave is compared: alphas with a temperature, random paths, and proxies."""


def table(search: Path) -> list[dict[str, Any]]:
    """Returns each trial's fields that must not depend on kills. Beside long trials slots do."""
    stored = records(search)
    found = stored.load()[0]
    has_fixed_slots = all(trial.proposal.relative_duration == 1 for trial in found)
    rows = []
    for trial in found:
        manifest = None if trial.checkpoint is None else load_manifest(stored.files, trial.checkpoint)
        rows.append(
            {
                "trial": trial.number,
                "job": trial.job,
                "parents": trial.parents,
                "donor": trial.donor,
                "generation": trial.generation,
                "stage": trial.stage,
                "state": trial.state,
                "reason": trial.reason,
                "policies": trial.policies,
                "slot": trial.slot if has_fixed_slots else None,
                "learned": trial.learned,
                "inherited": trial.inherited,
                "metrics": trial.metrics,
                "curve": trial.curve,
                "point": trial.point,
                "suggested": trial.suggested,
                "weights": None if manifest is None else {n: t.digest for n, t in manifest.tensors.items()},
            }
        )
    return rows


def proposals(search: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (search / "trials").glob("*.proposal.json")}


def attempts(search: Path) -> dict[int, list[int]]:
    """Returns the attempts of each trial in order. Names alone would put attempt 10 before attempt 2."""
    found: dict[int, list[int]] = {}
    for path in (search / "trials").glob("*.start-*.json"):
        found.setdefault(int(path.name[:6]), []).append(int(path.stem.rpartition("-")[2]))
    return {number: sorted(tries) for number, tries in found.items()}


def finished(search: Path) -> set[int]:
    return {int(path.name[:6]) for path in (search / "trials").glob("*.result.json")}


def n_starts(search: Path) -> int:
    return sum(map(len, attempts(search).values()))


def test_attempts_are_in_order_beyond_nine(tmp_path: Path) -> None:
    """The attempts that the tests compare are ordered as numbers: a slow machine kills one trial ten times."""
    (tmp_path / "trials").mkdir()
    for attempt in range(1, 12):
        (tmp_path / "trials" / f"000003.start-{attempt}.json").touch()

    assert attempts(tmp_path) == {3: list(range(1, 12))}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("given", "n_kills"),
    [(SEARCH, 4), ((*SEARCH, *JOBS), 2), *((overrides, 1) for overrides in ONE_SHOT.values())],
    ids=["plain", "jobs", *ONE_SHOT],
)
def test_kills_leave_no_trace(here: Path, api_url: str, given: tuple[str, ...], n_kills: int) -> None:
    """A search killed at random moments, group or driver alone, ends with an uninterrupted run's table.

    One kill comes as soon as one of the first trials has started. If the kills interrupted nothing, more follow.
    No finished trial is run again, no proposal changes, and an unfinished one is run under its id as the next attempt.
    """
    write_fashion_mnist(here)
    seed = int(os.environ.get("HEIRLOOM_KILL_SEED") or time.time())
    print(f"HEIRLOOM_KILL_SEED={seed}")
    rng = random.Random(seed)
    torn = here / "heirloom" / "torn"
    kills = int(os.environ.get("HEIRLOOM_N_KILLS") or n_kills)
    for kill in itertools.count():
        if kill >= kills and (attempts(torn).keys() > finished(torn) or n_starts(torn) > len(attempts(torn))):
            break
        assert kill < kills + 10, "no kill interrupted a trial"
        proposed, started, done = proposals(torn), n_starts(torn), {n: attempts(torn)[n] for n in finished(torn)}
        with Command(here, *given, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
            if kill % 3 == 2:  # while it starts
                time.sleep(rng.uniform(0.1, 2.0))
            else:
                wanted = started + (rng.randint(1, 3) if n_kills == 1 and kill == 0 else 1)
                process = command.process
                until(lambda: n_starts(torn) >= wanted or process.poll() is not None, 500, what="a start")  # noqa: B023
                time.sleep(0.0 if n_kills == 1 else rng.uniform(0.0, 1.0))
            assert command.process.poll() is None, command.err
            command.kill(to_group=(kill + seed) % 2 == 0)
            until(lambda: not command.leftovers(), 20, what="the end of all processes")
        assert proposals(torn).items() >= proposed.items()
        assert {n: attempts(torn)[n] for n in done} == done
    interrupted = {n: tries[-1] for n, tries in attempts(torn).items() if n not in finished(torn)}
    done = {n: attempts(torn)[n] for n in finished(torn)}
    last = run(here, *given, "name=torn", timeout_s=500, PREFECT_API_URL=api_url)
    calm = run(here, *given, "name=calm", timeout_s=500, PREFECT_API_URL=api_url)

    assert last.status == calm.status == 0, last.err
    assert {n: attempts(torn)[n] for n in done} == done
    assert all(attempts(torn)[n] == list(range(1, last + 2)) for n, last in interrupted.items())
    assert all(trial.attempt == attempts(torn)[trial.number][-1] for trial in trials(torn))
    assert any(trial.attempt > 1 for trial in trials(torn))
    assert table(torn) == table(here / "heirloom" / "calm")
    assert records(torn).tests() == records(here / "heirloom" / "calm").tests()
    for key in ("trial", "point", "metrics", "test", "ancestors"):
        assert best(torn)[key] == best(here / "heirloom" / "calm")[key]


@pytest.mark.slow
@pytest.mark.parametrize("tuner", CONTINUED)
def test_a_killed_one_shot_search_continues(here: Path, api_url: str, tuner: str) -> None:
    """After kill -9 the same command goes on: finished trials stay as they are, and the winner is exported."""
    write_fashion_mnist(here)
    given, search = CONTINUED[tuner], here / "heirloom" / "mine"
    if tuner == "screened":
        if not TABLE.exists():
            pytest.skip(f"no {TABLE}; set HEIRLOOM_DATA")
        given += (f"problem.table={TABLE}",)
    with Command(here, *given, "name=mine", forked=True, PREFECT_API_URL=api_url) as command:
        until(lambda: finished(search) and n_starts(search) > 2, what="a trial after the first")
        assert command.process.poll() is None, command.err
        command.kill()
    kept = {path: path.read_bytes() for path in (search / "trials").glob("*.result.json")}
    last = run(here, *given, "name=mine", timeout_s=250, PREFECT_API_URL=api_url)

    assert last.status == 0, last.err
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(trials(search)) > len(kept)
    assert {trial.state for trial in trials(search)} == {"COMPLETE"}
    assert (search / best(search)["export"]).is_dir()


def best(search: Path) -> dict[str, Any]:
    found = records(search).read("best-0001.json")
    assert found is not None
    return found


@pytest.mark.slow
def test_nothing_outlives_a_killed_driver(here: Path) -> None:
    """5 s after kill -9 of the driver alone no temporary server runs; see test_processes.py for workers."""
    with Command(here, *TIMED, "slots=2", "runner=threads", "name=mine", "problem.seconds=60", forked=True) as command:
        until(lambda: n_starts(here / "heirloom" / "mine") >= 2, what="two trials")
        others = [pid for pid in command.leftovers() if pid != command.process.pid]
        command.kill(to_group=False)
        seconds = until(lambda: not command.leftovers(), 5, what="the end of all processes")

    assert len(others) >= 1
    assert seconds < 5


@pytest.mark.slow
def test_a_killed_worker_costs_an_attempt(here: Path, api_url: str) -> None:
    """After kill -9 of a worker its trial runs as attempt 2, and a message reports the loss."""
    search = here / "heirloom" / "mine"
    command = (*TIMED, "slots=1", "runner=processes", "name=mine", "budget.trials=2", "finalists=1")
    (here / "0").touch()
    with Command(here, *command, f"problem.hold={here}", forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: n_starts(search) >= 1, what="a start")
        started = records(search).read("trials/000000.start-1.json")
        assert started is not None
        os.kill(started["pid"], 9)
        (here / "0").unlink()
        done = driver.wait()

    assert done.status == 0
    assert attempts(search) == {0: [1, 2], 1: [1], 2: [1]}
    assert all(trial.state == "COMPLETE" for trial in trials(search))
    assert "trial 0 was lost: its worker was killed by SIGKILL" in done.err


@pytest.mark.slow
def test_a_killed_driver_does_not_count_as_a_lost_worker(here: Path, api_url: str) -> None:
    """Attempts that ended with their session do not count against max_attempts."""
    search = here / "heirloom" / "mine"
    overrides = (*TIMED, "slots=1", "runner=processes", "name=mine", "budget.trials=1", "finalists=1", "max_attempts=2")
    (here / "0").touch()
    with Command(here, *overrides, f"problem.hold={here}", forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: n_starts(search) >= 1, what="a start")
        driver.kill()
    with Command(here, *overrides, f"problem.hold={here}", forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: n_starts(search) >= 2, what="a start")
        started = records(search).read("trials/000000.start-2.json")
        assert started is not None
        os.kill(started["pid"], 9)
        (here / "0").unlink()
        done = driver.wait()

    assert done.status == 0
    assert attempts(search) == {0: [1, 2, 3], 1: [1]}
    assert trials(search)[0].state == "COMPLETE"


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["debug", "threads"])
def test_a_trial_that_ends_its_driver_is_given_up(here: Path, api_url: str, runner: str) -> None:
    """A trial that ends the driver's process three times is FAILED(lost), and the search continues."""
    search = here / "heirloom" / "mine"
    slots = 2 if runner == "threads" else 1
    overrides = (*TIMED, f"runner={runner}", f"slots={slots}", "name=mine", "budget.trials=3", "finalists=1")
    for _ in range(3):
        assert run(here, *overrides, "problem.fail=die", "problem.seconds=0.5", PREFECT_API_URL=api_url).status == 7
    last = run(here, *overrides, "problem.fail=die", "problem.seconds=0.5", PREFECT_API_URL=api_url)

    assert last.status == 0, last.err
    assert [(t.state, t.reason) for t in trials(search)[1:2]] == [("FAILED", "lost")]
    assert attempts(search)[1] == [1, 2, 3]
    assert [t.state for t in trials(search) if t.number != 1] == ["COMPLETE"] * 3
    assert "trial 1 (search) FAILED lost: the driver's process died" in last.err


@pytest.mark.slow
def test_two_kills_of_a_debug_session_are_no_loss(here: Path) -> None:
    """Two kills -9 from outside during one trial do not make it lost."""
    search = here / "heirloom" / "mine"
    overrides = (*TIMED, "runner=debug", "name=mine", "budget.trials=1", "finalists=1", f"problem.hold={here}")
    (here / "0").touch()
    for n in (1, 2):
        with Command(here, *overrides, forked=True) as driver:
            until(lambda: n_starts(search) >= n, what="a start")  # noqa: B023
            driver.kill()
    (here / "0").unlink()
    done = run(here, *overrides)

    assert done.status == 0
    assert attempts(search) == {0: [1, 2, 3], 1: [1]}
    assert {trial.state for trial in trials(search)} == {"COMPLETE"}
