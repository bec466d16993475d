"""Workers or drivers end during long trials: records and weights equal an uninterrupted search's."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.faults.test_kill import table
from tests.support.commands import Command, records, run, trials, until
from tests.support.long_trials import N_EPOCHS

pytestmark = pytest.mark.slow

SEARCH = (
    *(
        "+tuner=evolution",
        "tuner.population_size=2",
        "tuner.sample_size=2",
        "problem._target_=long_trials.LongTrialProblem",
    ),
    *("device=cpu", "threads=1", "deterministic=true", "slots=2", "runner=processes", "budget.trials=4", "finalists=1"),
    *("resume_every_s=0", "problem.seconds=0.15", "stopper._target_=long_trials.TenthReportStopper"),
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, api_url: str) -> Path:
    """Returns an uninterrupted search."""
    here = tmp_path_factory.mktemp("calm")
    done = run(here, *SEARCH, "name=calm", PREFECT_API_URL=api_url)
    assert done.status == 0, done.err
    return here / "heirloom" / "calm"


def saved(search: Path, trial: int) -> list[Path]:
    """Returns the resume points of a trial, oldest first."""
    return sorted((search / "resume" / f"{trial:06d}").glob("*.json"))


def reached(search: Path, trial: int, number: int) -> bool:
    """Returns whether the trial has saved that often."""
    return any(int(path.name[:6]) >= number for path in saved(search, trial))


def wait_for_both(here: Path, first: int) -> None:
    """Waits until two trials run and have saved four times."""
    search, both = here / "heirloom" / "torn", (first, first + 1)
    until(lambda: all(reached(search, trial, 4) for trial in both), what="a fourth save of both")


def hold(here: Path, *numbers: int) -> None:
    """Stops trials from passing their fifth epoch."""
    for trial in numbers:
        (here / f"hold-{trial}").touch()


def release(here: Path) -> None:
    for path in here.glob("hold-*"):
        path.unlink()


def pid_of(search: Path, trial: int) -> int:
    """Returns the process of a trial's first attempt."""
    start = records(search).read(f"trials/{trial:06d}.start-1.json")
    assert start is not None
    return int(start["pid"])


def check(torn: Path, calm: Path, resumed: list[int]) -> None:
    """Checks that the interrupted search equals the calm one, that these trials resumed, and nothing is left.

    The stopper counts reports, so it must have been told of those of earlier attempts.
    """
    assert table(torn) == table(calm)
    assert len(table(torn)) == 4
    assert any(trial.inherited for trial in trials(torn))
    assert [len(trial.curve) for trial in trials(torn)] == [N_EPOCHS, 10, N_EPOCHS, 10]
    for trial in trials(torn):
        log = records(torn).log(trial.number)
        epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+) in", log, re.MULTILINE)]
        if trial.number in resumed:
            assert trial.attempt > 1
            assert f"trial {trial.number} resumes after step {epochs[0] - 1} of an earlier attempt" in log
            assert epochs == list(range(epochs[0], len(trial.curve) + 1))
            assert epochs[0] > 2
        assert not (torn / "resume" / f"{trial.number:06d}").exists()


def test_a_killed_worker(here: Path, calm: Path, api_url: str) -> None:
    """After kill -9 of a worker the next attempt resumes from the last save, with and without a parent."""
    torn = here / "heirloom" / "torn"
    hold(here, 0, 3)
    with Command(here, *SEARCH, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
        for trial in (0, 3):
            until(lambda: reached(torn, trial, 4), what="a fourth save")  # noqa: B023
            os.kill(pid_of(torn, trial), signal.SIGKILL)
            (here / f"hold-{trial}").unlink()
        done = command.wait()

    assert done.status == 0, done.err
    check(torn, calm, resumed=[0, 3])


@pytest.mark.parametrize(
    ("number", "to_group"),
    [
        pytest.param(signal.SIGKILL, False, id="kill -9 of the driver"),
        pytest.param(signal.SIGINT, True, id="Ctrl-C"),
    ],
)
def test_an_ended_session(here: Path, calm: Path, api_url: str, number: signal.Signals, to_group: bool) -> None:
    """However a session ends, the same command resumes both trials from their last save, repeatedly."""
    torn = here / "heirloom" / "torn"
    for trial in (0, 2):
        hold(here, trial, trial + 1)
        with Command(here, *SEARCH, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
            wait_for_both(here, trial)
            command.send(number, to_group=to_group)
            if number == signal.SIGINT:
                until(lambda: "stopping;" in command.err, what="the stop")
                release(here)  # their next reports end them
            command.wait()
            until(lambda: not command.leftovers(), 20, what="the end of all processes")
        release(here)
        assert saved(torn, trial)
    done = run(here, *SEARCH, "name=torn", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    check(torn, calm, resumed=[0, 1, 2, 3])


def test_a_damaged_newest_save(here: Path, calm: Path, api_url: str) -> None:
    """If a crash damaged the newest save, the trial resumes from the one before, and the log names it."""
    torn = here / "heirloom" / "torn"
    hold(here, 0, 1)
    with Command(here, *SEARCH, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
        wait_for_both(here, 0)
        command.kill()
        until(lambda: not command.leftovers(), 20, what="the end of all processes")
    release(here)
    newest = [saved(torn, trial)[-1] for trial in (0, 1)]
    for path in newest:
        path.write_bytes(path.read_bytes()[:-1])
    done = run(here, *SEARCH, "name=torn", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    for trial, path in enumerate(newest):
        assert re.search(f"resume point is damaged.*{path.name}", records(torn).log(trial))
    check(torn, calm, resumed=[0, 1])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("problem.fail_at=7",), "exception"),
        (("trial_timeout_s=10", "problem.hang_at=3"), "timeout"),
        (("max_attempts=1",), "lost"),
    ],
)
def test_a_failed_trial_leaves_nothing(here: Path, api_url: str, overrides: tuple[str, ...], reason: str) -> None:
    """When a trial ends for good, in its worker or in the driver, its resume points are deleted."""
    search = here / "heirloom" / "mine"
    command = (*SEARCH, "name=mine", *overrides, "budget.trials=1", "slots=1")
    hold(here, 0)
    with Command(here, *command, forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: reached(search, 0, 2), what="a second save")
        if reason == "lost":
            os.kill(pid_of(search, 0), signal.SIGKILL)
        release(here)
        done = driver.wait()

    assert done.status == 1
    assert [trial.reason for trial in trials(search)] == [reason]
    assert saved(search, 0) == []
    assert not (search / "resume" / "000000").exists()
