"""Keeps a loop's hours: what may begin now, and who is told to end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from nas.core.budget import Budget
from nas.core.policy import Stage
from nas.core.trial import Trial
from nas.executors.events import Event, Notice
from nas.executors.executor import Executor
from nas.search.budget.planner import StagePlanner, Usage
from nas.search.slots import SlotPool

GRACE_S = 2.0
GRACE_SHARE = 0.01
"""How long a trial that is told to stop may take before it is killed: seconds, or a share of the budget if more.

That is of the hours or of what a slot has of the GPU-hours, the lesser where both are set.
"""
REPEAT_S = 0.5
"""How often it is told: it may not have been there yet."""
MIN_WAIT_S = 0.001


class BudgetEnforcer:
    """A timetable, put into practice on an executor.

    Args:
        timetable: Knows when stages end.
        executor: Has the clock, and stops trials.
        slots: Tell what runs.
        spent_hours: Hours that the search has cost up to now, all sessions together.
        observe: Told of what a person should know.
        budget: Whose hours are kept.
    """

    def __init__(
        self,
        planner: StagePlanner,
        executor: Executor,
        slots: SlotPool,
        spent_hours: Callable[[], float],
        observe: Callable[[Event], None],
        budget: Budget,
    ) -> None:
        self._planner = planner
        self._executor = executor
        self._slots = slots
        self._spent_hours = spent_hours
        self._observe = observe
        self._stops = budget.at_deadline == "stop"
        self._counts_gpus = budget.gpu_hours is not None
        gpu_hours = None if budget.gpu_hours is None else budget.gpu_hours / executor.slots
        hours = min((bound for bound in (budget.hours, gpu_hours) if bound is not None), default=0.0)
        self._grace_s = max(GRACE_S, GRACE_SHARE * 3600 * hours)
        self._gpu_s = self._ask_s = 0.0
        self._began_s: dict[int, float] = {}
        self._told_s: dict[int, float] = {}
        self._noted: set[str] = set()

    def learn(self, trial: Trial) -> None:
        """Takes in a finished trial, of this session or an earlier one."""
        self._gpu_s += trial.cost.get("gpu_seconds", 0.0)
        if not self._planner.is_open:
            self._planner.learn(trial)

    def learn_ask(self, seconds: float) -> None:
        """Takes in how long the tuner has thought of its last answer."""
        self._ask_s = seconds

    def begin_session(self) -> None:
        """All that earlier sessions have is learned."""
        self._planner.estimator.begin_session()

    def begin(self, trial: Trial) -> None:
        """Notes that a trial runs."""
        self._began_s[trial.number] = self._executor.now_s()
        self._told_s.pop(trial.number, None)

    def may_begin(self, stage: Stage, n_waiting: int = 0, *, after_ask: bool = False) -> bool:
        """Whether a trial of the stage may begin now, or once the tuner was asked for it, after so many that wait."""
        if self._planner.is_open:
            return True
        spent = self._spent(n_waiting)
        if after_ask:
            spent = replace(spent, wall_s=spent.wall_s + self._ask_s)
        return self._planner.closed_by(stage, spent) is None

    def until_s(self, stage: Stage) -> float | None:
        """The moment, by the executor's clock, at which ``enforce`` is due again if nothing happens before; or None."""
        if self._planner.is_open:
            return None
        waits_s = self._planner.next_look_s(stage, self._spent())
        if self._told_s and any(number in self._told_s for number in self._slots.running.values()):
            waits_s = min(waits_s, REPEAT_S)
        return None if waits_s == math.inf else self._executor.now_s() + max(waits_s, MIN_WAIT_S)

    def enforce(self, stage: Stage, running: Iterable[Trial]) -> None:
        """Tells the trials that run past the end of their stage's time to stop, and ends those that do not listen."""
        if self._planner.is_open:
            return
        spent = self._spent()
        self._note_hopeless(stage, spent)
        if not self._stops:
            return
        now_s, is_over = self._executor.now_s(), self._planner.left_s(stage, spent) <= 0
        for trial in running:
            told_s = self._told_s.get(trial.number)
            if told_s is None and not is_over:
                continue
            told_s = self._told_s.setdefault(trial.number, now_s)
            self._executor.stop(trial, "deadline" if now_s < told_s + self._grace_s else "kill")

    def _spent(self, n_waiting: int = 0) -> Usage:
        running: list[float] = []
        if self._counts_gpus:
            now_s = self._executor.now_s()
            running = [now_s - self._began_s[number] for number in self._slots.running.values()] + [0.0] * n_waiting
        return Usage(3600 * self._spent_hours(), self._gpu_s, running)

    def _note_hopeless(self, current: Stage, spent: Usage) -> None:
        for stage, seconds in self._planner.hopeless(current, spent):
            if stage.name not in self._noted:
                self._noted.add(stage.name)
                text = (
                    f"the budget holds no trial of stage {stage.name}, which takes {seconds / 3600:.2g} h or more: "
                    "raise budget.hours (or gpu_hours), or shorten its trials"
                )
                self._observe(Notice(text))
