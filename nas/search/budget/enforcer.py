"""Enforcement of a budget of hours and GPU-hours: trials are not started, stopped or killed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from nas.core.budget import Budget
from nas.core.policy import Stage
from nas.core.trial import Trial
from nas.executors.events import Event, Notice
from nas.executors.executor import Executor
from nas.search.budget.durations import Kind
from nas.search.budget.planner import StagePlanner, Usage
from nas.search.slots import SlotPool

REPEAT_S = 0.5
"""Interval between repeated stops. The first may come before the trial has started."""
MIN_WAIT_S = 0.001


class BudgetEnforcer:
    """Applies the stage planner's decisions to an executor.

    Args:
        planner: Plans the end of each stage.
        executor: Has the clock, and stops trials.
        slots: The running trials.
        spent_hours: Returns the hours of all sessions of the search.
        observe: Called with notices for the user.
        budget: The search's budget.
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
        self._stops = budget.stops_trials
        self._counts_gpus = budget.gpu_hours is not None
        self._gpu_s = self._ask_s = 0.0
        self._started_s: dict[int, float] = {}
        self._kinds: dict[int, Kind] = {}
        self._stop_sent_s: dict[int, float] = {}
        self._noticed: set[str] = set()
        self._refused_ask: tuple[int, int] | None = None
        self._known_decisions_s: tuple[float, float] = (math.inf, math.inf)
        self._is_over = self._repeats = False
        self._stop_again_s = -math.inf

    def add_result(self, trial: Trial) -> None:
        """Adds a finished trial of this session or an earlier one."""
        self._gpu_s += self._planner.gpu_s(trial)
        if not self._planner.is_unlimited:
            self._planner.learn(trial)

    def add_ask_time(self, seconds: float) -> None:
        """Notes how long the tuner's last answer took."""
        self._ask_s = seconds

    def start_session(self) -> None:
        """Notes that all trials of earlier sessions were added."""
        self._planner.estimator.start_session()

    def start_trial(self, trial: Trial) -> None:
        """Notes that a trial is submitted. It may wait for a worker."""
        self._started_s.pop(trial.number, None)
        self._kinds[trial.number] = trial.policies
        self._stop_sent_s.pop(trial.number, None)

    def begin_trial(self, number: int) -> None:
        """Notes that a worker has begun a trial, so that its GPU time counts."""
        self._started_s[number] = self._executor.now_s()

    def resume_trial(self, trial: Trial) -> None:
        """Counts the cost of the attempts that a running trial continues, its ``cost`` so far."""
        if (began_s := self._started_s.get(trial.number)) is not None:
            self._started_s[trial.number] = began_s - self._planner.gpu_s(trial)

    def may_ask(self, stage: Stage, waiting: Iterable[Trial], ask: tuple[int, int]) -> bool:
        """Returns whether there is time for the waiting trials and for the next proposal.

        Args:
            stage: The search stage.
            waiting: Its waiting trials.
            ask: The index of the proposal, and the number of results before it.
        """
        if self._planner.is_unlimited:
            return True
        kinds = Counter(trial.policies for trial in waiting)
        if ask == self._refused_ask or not self.may_start(stage, kinds.total(), after_ask=True):
            return False
        return all(self.may_start(stage, kind=kind) for kind in kinds)

    def may_propose(self, stage: Stage, waiting: Iterable[Trial], trial: Trial, ask: tuple[int, int]) -> bool:
        """Returns whether there is time for a proposed trial; if not, refuses the ask.

        A later session with more time asks again.
        """
        if self._planner.is_unlimited or self.may_start(stage, len(list(waiting)), kind=trial.policies):
            return True
        self._refused_ask = ask
        return False

    def allow_asks(self) -> None:
        """Lets the tuner be asked again for the proposal that was refused."""
        self._refused_ask = None

    def may_start(
        self,
        stage: Stage,
        n_waiting: int = 0,
        *,
        after_ask: bool = False,
        parent: Trial | None = None,
        kind: Kind | None = None,
    ) -> bool:
        """Returns whether there is time for another trial of the stage.

        Args:
            stage: The current stage.
            n_waiting: The number of trials that start before it.
            after_ask: Whether the tuner has to be asked for it first.
            parent: The trial to retrain in a later stage; None: any.
            kind: The policies of a trial of the search stage; None: any.
        """
        if self._planner.is_unlimited:
            return True
        spent = self._spent(n_waiting)
        if after_ask:
            spent = replace(spent, wall_s=spent.wall_s + self._ask_s)
        return self._planner.closed_by(stage, spent, parent, kind=kind) is None

    def share_that_fits(self, stage: Stage, parent: Trial, n_slots: int) -> float | None:
        """Returns ``StagePlanner.share_that_fits``; None: all of it, without a limit."""
        if self._planner.is_unlimited:
            return None
        return self._planner.share_that_fits(stage, self._spent(), parent, n_slots)

    def fits_in_full(self, stage: Stage, parent: Trial) -> bool:
        """Returns whether there is time for a full training on one slot."""
        return self._planner.is_unlimited or self._planner.fits_in_full(stage, self._spent(), parent)

    def training_left_s(self, stage: Stage, parent: Trial, n_waiting: int) -> float | None:
        """Returns ``StagePlanner.training_left_s``; None: there is no limit.

        ``n_waiting`` other trials start at the same time.
        """
        if self._planner.is_unlimited:
            return None
        return self._planner.training_left_s(stage, self._spent(n_waiting), parent)

    def n_full(self, stage: Stage, parent: Trial) -> int | None:
        """Returns ``StagePlanner.n_full``; None: it does not matter."""
        return None if self._planner.is_unlimited else self._planner.n_full(stage, self._spent(), parent)

    def next_check_s(self, stage: Stage) -> float | None:
        """Returns the time of the next check, on the executor's clock, or None."""
        if self._planner.is_unlimited:
            return None
        decisions_s = self._planner.next_decisions_s(stage, self._spent())
        wait_s = min((s for s in decisions_s if s > 0), default=math.inf)
        if any(now <= 0 < before for now, before in zip(decisions_s, self._known_decisions_s, strict=True)):
            wait_s = 0.0  # its time has come since ``enforce``
        if self._repeats or (self._is_over and self._slots.n_active):
            wait_s = min(wait_s, REPEAT_S)
        return None if wait_s == math.inf else self._executor.now_s() + max(wait_s, MIN_WAIT_S)

    @property
    def is_over(self) -> bool:
        """Whether ``enforce`` found that whatever runs must end."""
        return self._is_over

    def enforce(self, stage: Stage, running: Iterable[Trial]) -> None:
        """Stops trials that run past their stage's end, and kills those that do not react.

        Args:
            stage: The current stage.
            running: The running trials, and the last trial of each job that runs without a trial.
        """
        if self._planner.is_unlimited:
            return
        spent = self._spent()
        self._known_decisions_s = self._planner.next_decisions_s(stage, spent)
        self._report_stages_without_time(stage, spent)
        if not self._stops:
            return
        now_s, self._is_over = self._executor.now_s(), self._known_decisions_s[1] <= 0
        if now_s < self._stop_again_s:
            return
        self._repeats = False
        if not self._is_over and not self._stop_sent_s:
            return
        for trial in running:
            sent_s = self._stop_sent_s.get(trial.number)
            if not self._is_over and (sent_s is None or trial.is_finished):
                continue
            self._repeats, self._stop_again_s = True, now_s + REPEAT_S
            sent_s = self._stop_sent_s.setdefault(trial.number, now_s)
            self._executor.stop(trial, "deadline" if now_s < sent_s + self._planner.grace_s else "kill")

    def _spent(self, n_waiting: int = 0) -> Usage:
        running: list[float] = []
        kinds: list[Kind] = []
        if self._counts_gpus:
            now_s, numbers = self._executor.now_s(), self._slots.running.values()
            running = [now_s - self._started_s.get(number, now_s) for number in numbers] + [0.0] * n_waiting
            kinds = [self._kinds[number] for number in numbers]
        return Usage(3600 * self._spent_hours(), self._gpu_s, running, kinds)

    def _report_stages_without_time(self, current: Stage, spent: Usage) -> None:
        for stage, seconds in self._planner.stages_without_time(current, spent):
            if stage.name not in self._noticed:
                self._noticed.add(stage.name)
                text = (
                    f"the budget holds no trial of stage {stage.name}, which takes {seconds / 3600:.2g} h or more: "
                    "raise budget.hours (or gpu_hours), or shorten its trials"
                )
                self._observe(Notice(text))
