"""What is stopped when the hours of a stage are over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nas.core.budget import Budget
from nas.core.policy import Policy, Stage
from nas.core.trial import Reason, State, Trial
from nas.executors.event_queue import EventQueue
from nas.search.budget.durations import Kind
from nas.search.budget.enforcer import BudgetEnforcer
from nas.search.budget.planner import StagePlanner, Usage
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

    def stop(self, subject: Trial, kind: str) -> None:
        self.stops.append((subject.number, kind))


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


def test_an_ask_looks_once_at_each_kind_of_waiting_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ask for a thousand slots is as fast as the first, though 999 trials wait for theirs."""
    budget = Budget(hours=1.0)
    planner = StagePlanner(budget, PLAN, n_left=lambda: {"final": 2})
    executor: Any = StoppedExecutor()
    enforcer = BudgetEnforcer(planner, executor, SlotPool(1000), lambda: 0.0, lambda event: None, budget)
    kinds: list[Kind | None] = []
    closed_by = StagePlanner.closed_by

    def note(self: StagePlanner, stage: Stage, spent: Usage, parent: Trial | None = None, *, kind: Any = None) -> Any:
        kinds.append(kind)
        return closed_by(self, stage, spent, parent, kind=kind)

    monkeypatch.setattr(StagePlanner, "closed_by", note)
    short = frozenset({Policy.EARLY_STOP})
    waiting = [replace(searched(n, 60.0), policies=short if n % 2 else frozenset()) for n in range(999)]

    assert enforcer.may_ask(SEARCH, waiting, (999, 0))
    assert kinds == [None, frozenset(), short]
