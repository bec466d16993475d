"""Two seconds after any end of a search or a trial, nothing that it started is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.children_problem import KINDS
from tests.support.commands import Command, trials, until
from tests.support.processes import is_alive, parent_of

pytestmark = pytest.mark.slow

CHILDREN = (
    *("+tuner=random", "problem._target_=children_problem.ChildrenProblem", "device=cpu", "threads=1", "slots=1"),
    *("max_attempts=1", "policy=search_only", "name=mine"),
)
COMMAND_ENDS: dict[str, Callable[[Command], None]] = {
    "success": lambda command: None,
    "interrupt": lambda command: command.send(signal.SIGINT),
    "two interrupts": lambda command: (command.send(signal.SIGINT), time.sleep(0.3), command.send(signal.SIGINT))[1],
    "terminate": lambda command: command.send(signal.SIGTERM, to_group=False),
    "driver killed": lambda command: command.kill(to_group=False),
}
TRIAL_ENDS = ("timeout", "worker", "keeper", "guard")


@pytest.mark.parametrize("end", COMMAND_ENDS)
def test_nothing_is_left_of_a_search(here: Path, api_url: str, end: str) -> None:
    """All kinds of children end with the command, and none holds its output."""
    with start(here, api_url, hangs=end != "success", n_trials=1) as command:
        until(lambda: (here / "ready-0").exists(), 120, what="all children")
        there = alive(here)
        held = [pid for pid in command.leftovers() if pid != command.process.pid and holds_output(pid, command)]
        COMMAND_ENDS[end](command)
        command.wait(40)
        seconds = until(lambda: not command.leftovers(), 10, what="the end of all processes")

    assert end == "success" or len(there) > len(KINDS)
    assert held == []
    assert seconds < 2


def test_nothing_is_left_of_a_trial(here: Path, api_url: str) -> None:
    """All kinds of children end with a trial, be it by a timeout or by a kill of its worker, keeper or guard."""
    waited_s: dict[str, float] = {}
    with start(here, api_url, hangs=True, n_trials=len(TRIAL_ENDS), timeout_s=30) as command:
        for number, end in enumerate(TRIAL_ENDS):
            until(lambda: (here / f"ready-{number}").exists(), 120, what="all children")  # noqa: B023
            there = alive(here, number)
            assert len(there) > len(KINDS), end
            if end != "timeout":
                os.kill(pid_of(end, here, number), signal.SIGKILL)
            until(lambda: trials(here / "heirloom" / "mine")[number].is_finished, 60, what="the result")  # noqa: B023
            waited_s[end] = until(lambda: not alive(here, number), 10, what="the end of all children")  # noqa: B023
        command.wait(40)

    assert max(waited_s.values()) < 2, waited_s
    assert [trial.reason for trial in trials(here / "heirloom" / "mine")] == ["timeout", "lost", "lost", "lost"]


def start(here: Path, api_url: str, *, hangs: bool, n_trials: int, timeout_s: float = 300) -> Command:
    """Starts a search whose trials start children of all kinds, and either hang or leave them."""
    plan = (f"budget.trials={n_trials}", f"trial_timeout_s={timeout_s}")
    plan = (*plan, f"problem.folder={here}", f"problem.hangs={hangs}")
    return Command(here, *CHILDREN, *plan, forked=True, PREFECT_API_URL=api_url)


def holds_output(pid: int, command: Command) -> bool:
    """Returns whether a process has the output of the command open."""
    outputs = {str(path) for path in command.streams}
    with suppress(OSError):
        return any(os.readlink(fd) in outputs for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def pid_of(role: str, folder: Path, number: int) -> int:
    """Returns the process of a trial's worker, keeper or guard."""
    [path] = folder.glob(f"{number}-worker-*")
    worker = int(path.name.rpartition("-")[2])
    return {"worker": worker, "keeper": parent_of(worker), "guard": parent_of(parent_of(worker))}[role]


def alive(folder: Path, number: int = 0) -> list[str]:
    """Returns the files of a trial's processes that run."""
    return [path.name for path in folder.glob(f"{number}-*-*") if is_alive(int(path.name.rpartition("-")[2]))]
