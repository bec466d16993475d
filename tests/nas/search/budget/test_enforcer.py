"""What is stopped when the hours of a stage are over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nas.core.budget import Budget
from nas.core.trial import Reason, State, Trial
from nas.executors.event_queue import EventQueue
from nas.search.budget.enforcer import BudgetEnforcer
from nas.search.budget.planner import StagePlanner
from nas.search.slots import SlotPool
from tests.nas.search.budget.test_planner import PLAN, SEARCH, searched


class StoppedExecutor(EventQueue):
    """Notes what is stopped; its clock is set by hand."""

    clock_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[int, str]] = []

    def now_s(self) -> float:
        return self.clock_s

    def stop(self, subject: Trial, why: str) -> None:
        self.stops.append((subject.number, why))


def test_a_job_that_goes_on_in_the_time_of_finals_is_not_killed() -> None:
    """Its last trial was stopped at the stage's end; then the stage got the time that finals left."""
    budget = Budget(hours=1.0, at_deadline="stop")
    planner = StagePlanner(budget, PLAN, n_left=lambda: {"final": 2})
    executor: Any = StoppedExecutor()
    enforcer = BudgetEnforcer(
        planner, executor, SlotPool(1), lambda: executor.now_s() / 3600, lambda event: None, budget
    )
    enforcer.add_result(searched(0, 60.0))
    running = replace(searched(1, 60.0), state=State.RUNNING)
    executor.clock_s = 3600 - 1000.0
    enforcer.enforce(SEARCH, [running])
    planner.release_reserve()
    executor.clock_s += 300.0
    enforcer.enforce(SEARCH, [replace(running, state=State.STOPPED, reason=Reason.DEADLINE)])
    assert executor.stops == [(1, "deadline")]

    enforcer.enforce(SEARCH, [running])
    assert executor.stops == [(1, "deadline"), (1, "kill")]
