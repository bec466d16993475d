"""One driver per search: a second command is refused, takes over, extends, or shows the finished search."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from tests.support.commands import TIMED, Command, everything, only_search, run, trials, until

DEBUG = (*TIMED, "runner=debug", "name=mine")
BUSY = (
    r"heirloom: the search in \S+ is driven by pid {pid} on {host} \(last heartbeat \d+ s ago\)\. "
    r"Wait for it or stop it; a command can add takeover=true"
)


def starts(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "heirloom" / "mine" / "trials").glob("*.start-*.json"))


@pytest.mark.slow
def test_of_two_at_once_one_runs(here: Path, api_url: str) -> None:
    """Of two commands started at once on one search one runs; the other exits 2 with host, pid and age."""
    command = (*DEBUG, "budget.trials=3", "finalists=1", f"problem.hold={here}")
    (here / "0").touch()
    with (
        Command(here, *command, PREFECT_API_URL=api_url) as first,
        Command(here, *command, PREFECT_API_URL=api_url) as second,
    ):
        drivers = (first, second)
        until(lambda: any(driver.process.poll() is not None for driver in drivers), what="the end of one")
        (here / "0").unlink()
        done = {driver.process.pid: driver.wait() for driver in drivers}
    (winner,) = [pid for pid, outcome in done.items() if outcome.status == 0]
    (loser,) = [outcome for outcome in done.values() if outcome.status != 0]

    assert loser.status == 2
    assert re.match(BUSY.format(pid=winner, host=re.escape(socket.gethostname())), loser.err.splitlines()[-1])
    assert starts(here) == [f"{number:06d}.start-1.json" for number in range(4)]


@pytest.mark.slow
def test_a_second_driver_is_refused_at_once(here: Path, api_url: str) -> None:
    """While a search runs, the same command exits 2 with one line and changes nothing."""
    with Command(here, *DEBUG, "budget.trials=1", "problem.seconds=300", forked=True, PREFECT_API_URL=api_url) as first:
        until(lambda: starts(here))
        before = everything(here)
        second = run(here, *DEBUG, "budget.trials=1", "problem.seconds=300")
        after = everything(here)

    assert second.status == 2
    assert re.match(BUSY.format(pid=first.process.pid, host=re.escape(socket.gethostname())), second.err)
    assert second.err.count("\n") == 1
    assert after == before


@pytest.mark.slow
def test_a_second_driver_without_a_name_is_refused(here: Path, api_url: str) -> None:
    """The problem decides whether it is the same search, after a first line; another seed's search runs."""
    command = (*TIMED, "runner=debug", "budget.trials=1", "finalists=1")
    with Command(here, *command, "problem.seconds=300", forked=True, PREFECT_API_URL=api_url) as first:
        until(lambda: list((here / "heirloom").glob("*/trials/*.start-*.json")))
        same = run(here, *command, "problem.seconds=300")
        other = run(here, *command, "seed=1", "problem.seconds=0", PREFECT_API_URL=api_url)
    driven = r"search timed-random-\S+ is running on this host; checking whether it is this one\n"

    assert (same.status, other.status) == (2, 0)
    assert re.match(driven + BUSY.format(pid=first.process.pid, host=re.escape(socket.gethostname())), same.err)
    assert re.match(driven, other.err)


@pytest.mark.slow
@pytest.mark.parametrize("is_suspended", [False, True], ids=["running", "suspended"])
def test_a_takeover_ends_the_older_driver(here: Path, api_url: str, is_suspended: bool) -> None:
    """With takeover=true the newer driver continues once the older one has stopped or is silent; nothing is lost."""
    many = ("budget.trials=200", "problem.seconds=0.5")
    with Command(here, *DEBUG, *many, forked=True, PREFECT_API_URL=api_url) as older:
        until(lambda: len(starts(here)) >= 2)
        if is_suspended:
            older.send(signal.SIGSTOP)
        few = ("budget.trials=1", "finalists=1", "problem.seconds=0.5", "takeover=true")
        newer = run(here, *DEBUG, *few, PREFECT_API_URL=api_url)
        older.send(signal.SIGCONT)
        done = older.wait(60)
    found = trials(here / "heirloom" / "mine")

    assert newer.status == 0
    assert f"waiting until pid {older.process.pid} on {socket.gethostname()} has stopped" in newer.err
    assert done.status == 1
    assert re.fullmatch(
        rf"heirloom: stopped: session 2 on {re.escape(socket.gethostname())} \(pid \d+\) took the search over; "
        r"\d+ finished trials kept. Resume: python -m flows.search .*",
        done.err.splitlines()[-1],
    )
    assert "Traceback" not in done.err + newer.err
    assert all(trial.state == "COMPLETE" for trial in found)
    assert sum(trial.stage == "final" for trial in found) == 1
    assert max(trial.attempt for trial in found) <= 2


@pytest.mark.slow
def test_a_takeover_ends_a_driver_whose_trial_ignores_it(here: Path) -> None:
    """Without a signal, too, the older process does not wait for the trial's code, which takes 300 s."""
    deaf = (*DEBUG, "budget.trials=1", "problem.seconds=300", "problem.fail=deaf")
    with Command(here, *deaf, forked=True) as older:
        until(lambda: starts(here))
        with Command(here, *deaf, "takeover=true", forked=True):
            done = older.wait(90)

    assert done.status == 1
    assert "took the search over; 0 finished trials kept" in done.err.splitlines()[-1]


@pytest.mark.slow
def test_a_killed_driver_is_replaced_at_once(here: Path) -> None:
    """After kill -9 of a driver on this host the same command takes over without waiting."""
    command = (*DEBUG, "budget.trials=1", "finalists=1", f"problem.hold={here}")
    (here / "0").touch()
    with Command(here, *command, forked=True) as first:
        until(lambda: starts(here))
        first.kill(to_group=False)
    (here / "0").unlink()
    second = run(here, *command)

    assert second.status == 0
    assert "waiting" not in second.err
    assert starts(here) == ["000000.start-1.json", "000000.start-2.json", "000001.start-1.json"]


@pytest.mark.slow
def test_a_finished_search_is_shown_and_extended(here: Path, tmp_path: Path, api_url: str) -> None:
    """The same command on a finished search starts no server and writes nothing; a larger budget extends it."""
    command = (*TIMED, "slots=1", "finalists=1")
    first = run(here, *command, "budget.trials=2", PREFECT_API_URL=api_url)
    before = everything(here)
    second = run(here, *command, "budget.trials=2", HEIRLOOM_CACHE=str(tmp_path / "cache"))
    after = everything(here)
    third = run(here, *command, "budget.trials=3", PREFECT_API_URL=api_url)
    found = trials(only_search(here))

    assert first.status == second.status == third.status == 0
    assert second.out.splitlines()[0].startswith(f"search {only_search(here).name} is finished: raise ")
    assert second.out.splitlines()[1:] == first.out.splitlines()
    assert second.err == ""
    assert after == before
    assert not (tmp_path / "cache").exists()
    assert [trial.stage for trial in found][:4] == ["search", "search", "final", "search"]
    assert all(trial.attempt == 1 for trial in found)
    assert "resumes after 3 finished trials" in third.err


@pytest.mark.slow
def test_a_smaller_budget_finds_it_finished(here: Path, api_url: str) -> None:
    """A budget that is already used up ends the search, and nothing is undone."""
    first = run(here, *DEBUG, "budget.trials=2", "finalists=1", PREFECT_API_URL=api_url)
    second = run(here, *DEBUG, "budget.trials=1", "finalists=1")

    assert first.status == second.status == 0
    assert "search mine is finished" in second.out
    assert len(trials(here / "heirloom" / "mine")) == 3


@pytest.mark.slow
def test_spent_hours_are_finished(here: Path, api_url: str) -> None:
    """A search with used-up hours is finished; the same command names the budget to enlarge."""
    command = (*DEBUG, "budget.hours=0.001", "finalists=1", "problem.seconds=0.2")
    first, second = run(here, *command, PREFECT_API_URL=api_url), run(here, *command)

    assert first.status == second.status == 0
    left = "what is left of budget.hours is too short for another trial. Raise budget.hours, or choose"
    assert f"search mine is finished: {left} another seed or name" in second.out
    assert second.out.splitlines()[1:] == first.out.splitlines()
