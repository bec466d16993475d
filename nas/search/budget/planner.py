"""When each stage has to end so that the hours and GPU-hours hold, finals, tests and export included.

Of what is left, the later stages' trials that are still to come are kept back, as long as the forecast says, and a
reserve for tests and export. A trial is begun if it can still finish before that; see docs/decisions/014.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nas.core.budget import Budget
from nas.core.policy import PolicyPlan, Stage
from nas.core.trial import Trial
from nas.search.budget.durations import DurationEstimator

Bound = Literal["hours", "gpu_hours"]
MARGIN = 1.1
"""What is kept back for a trial, for what it usually takes."""
MOST_SHARE = 0.8
"""Of the budget, at most, for later stages without a share; more only where one trial of each takes more."""
SELECTION_SHARE = 0.02
SELECTION_LEAST_S, SELECTION_MOST_SHARE = 5.0, 0.2
SELECTION_MOST_S = 120.0
"""Kept back for tests and export, as long as none was seen: a share of the hours, at least what loading a network and
writing it as ONNX takes (of the shortest budgets a greater share), and at most so many seconds."""
RECOUNT = 1.05
"""Who is to be trained again is counted anew when there are so many times as many trials: it takes a look at all."""
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Usage:
    """What a search has taken up to now, in seconds.

    Attributes:
        wall_s: Of all sessions.
        gpu_s: Of its finished trials.
        running: How long each of the trials that run has run.
    """

    wall_s: float
    gpu_s: float
    running: Sequence[float] = ()

    def of(self, bound: Bound) -> float:
        """In this currency."""
        return self.wall_s if bound == "hours" else self.gpu_s + math.fsum(self.running)


class StagePlanner:
    """Decides by what it has learned; it has no clock of its own.

    Args:
        budget: Hours and GPU-hours; without either, everything is allowed.
        plan: The stages.
        slots: How many trials run at a time.
        to_come: How many trials each later stage has still to train, by name, as the ranking stands.
        has_selection: Tests and an export follow the last stage.
    """

    def __init__(
        self,
        budget: Budget,
        plan: PolicyPlan,
        slots: int = 1,
        *,
        to_come: Callable[[], Mapping[str, int]] = dict,
        has_selection: bool = False,
    ) -> None:
        self.estimator = DurationEstimator(plan)
        self._plan = plan
        self._slots = slots
        self._stops = budget.at_deadline == "stop"
        self._final_share = budget.final_share
        bounds: dict[Bound, float | None] = {"hours": budget.hours, "gpu_hours": budget.gpu_hours}
        self._total_s = {bound: 3600 * hours for bound, hours in bounds.items() if hours is not None}
        self._count = to_come
        self._to_come: Mapping[str, int] | None = None
        self._n_learned = self._n_counted = 0
        self._has_let_go = False
        self._spent_later: dict[Bound, float] = {"hours": 0.0, "gpu_hours": 0.0}
        self._selection_s = 0.0
        if has_selection and budget.hours is not None:
            total_s = 3600 * budget.hours
            least_s = min(SELECTION_LEAST_S, SELECTION_MOST_SHARE * total_s)
            self._selection_s = min(max(SELECTION_SHARE * total_s, least_s), SELECTION_MOST_S)

    @property
    def is_open(self) -> bool:
        """Whether there is no bound at all."""
        return not self._total_s

    def learn(self, trial: Trial) -> None:
        """Takes in a finished trial."""
        self.estimator.learn(trial)
        self._n_learned += 1
        if trial.stage != self._plan.search.name:
            self._spent_later["hours"] += (trial.duration_s or 0.0) / self._slots
            self._spent_later["gpu_hours"] += trial.cost.get("gpu_seconds", 0.0)
        if trial.stage != self._plan.search.name or self._n_learned > RECOUNT * self._n_counted:
            self._to_come = None

    def learn_selection(self, seconds: float) -> None:
        """Takes in what tests and an export took."""
        self._selection_s = MARGIN * seconds

    def let_go(self) -> bool:
        """Gives the search stage what is left: no trial and final of it fit any more; False where it was given before.

        What it finds from here on is left to the next session, or to ``flows.final``.
        """
        if self._has_let_go:
            return False
        self._has_let_go = True
        return True

    def closed_by(self, stage: Stage, spent: Usage) -> Bound | None:
        """Which bound forbids that a trial of the stage begins now; None: it may."""
        need_s = self.need_s(stage)
        for bound in self._total_s:
            left_s = self._left_s(stage, spent, bound)
            if bound == "gpu_hours":
                left_s -= math.fsum(max(0.0, need_s - seconds) for seconds in spent.running)
            if left_s < need_s - _ROUNDING_S or left_s <= _ROUNDING_S:
                return bound
        return None

    def need_s(self, stage: Stage) -> float:
        """How much time must be left for a trial to begin, in seconds.

        Where trials are stopped at the deadline, or none of the stage was seen: the shortest. Where they may finish:
        what is usual. Of a later stage of which nothing is known, as long as a search trial takes at the least.
        """
        is_seen = self.estimator.has_seen(stage)
        by = self.estimator.usual_s if is_seen and not self._stops else self.estimator.shortest_s
        return by(stage) or self.estimator.shortest_s(self._plan.search) or 0.0

    def left_s(self, stage: Stage, spent: Usage) -> float:
        """Seconds until those of its trials that run have to have ended; negative: since when."""
        serves_later = not self._is_search(stage) or self.estimator.has_seen(stage)
        left = [math.inf]
        for bound in self._total_s:
            left_s = self._left_s(stage, spent, bound) if serves_later else self._before_selection(spent, bound)
            left.append(left_s if bound == "hours" else left_s / max(1, len(spent.running)))
        return min(left)

    def next_look_s(self, stage: Stage, spent: Usage) -> float:
        """Seconds after which something has to be decided, if nothing happens before; infinite: nothing has to."""
        left_s = self.left_s(stage, spent)
        return min((s for s in (left_s, left_s - self.need_s(stage)) if s > 0), default=math.inf)

    def hopeless(self, current: Stage, spent: Usage) -> Iterator[tuple[Stage, float]]:
        """The stages after the current one in which no trial can finish, and what one takes at the least, in seconds.

        Of a stage of which trials were seen the question is only how many.
        """
        for stage in self._after(current):
            fits = all(stage in self._fitting(current, spent, bound) for bound in self._total_s)
            least_s = self.estimator.shortest_s(stage)
            if not fits and least_s is not None and not self.estimator.has_seen(stage):
                yield stage, least_s

    def _after(self, stage: Stage) -> tuple[Stage, ...]:
        names = [known.name for known in self._plan.stages]
        return self._plan.stages[names.index(stage.name) + 1 :] if stage.name in names else ()

    def _is_search(self, stage: Stage) -> bool:
        return stage.name == self._plan.search.name

    def _before_selection(self, spent: Usage, bound: Bound) -> float:
        return self._total_s[bound] - spent.of(bound) - (self._selection_s if bound == "hours" else 0.0)

    def _left_s(self, stage: Stage, spent: Usage, bound: Bound) -> float:
        """What the stage may still take."""
        left_s = self._before_selection(spent, bound)
        if not self._is_search(stage):
            return left_s - self._kept_s(stage, spent, bound)
        own_s = math.inf if stage.share is None else stage.share * self._total_s[bound] - spent.of(bound)
        return min(own_s, left_s - (0.0 if self._has_let_go else self._kept_s(stage, spent, bound)))

    def _kept_s(self, stage: Stage, spent: Usage, bound: Bound) -> float:
        """What is kept for the stages after this one."""
        later = self._fitting(stage, spent, bound)
        if not self._is_search(stage) and not self.estimator.has_seen(stage):  # it must begin, so that they can
            return math.fsum(self.estimator.shortest_s(other) or 0.0 for other in later)
        granted_s = math.fsum(self._granted_s(other, bound) for other in later)
        estimated_s = math.fsum(self._estimated_s(other, bound) for other in later)
        if self._is_search(stage):
            one_each_s = math.fsum(MARGIN * (self.estimator.usual_s(other) or 0.0) for other in later)
            most_s = MOST_SHARE * self._total_s[bound] - self._spent_later[bound]
            estimated_s = min(estimated_s, max(most_s, one_each_s))
        return granted_s + estimated_s

    def _fitting(self, stage: Stage, spent: Usage, bound: Bound) -> list[Stage]:
        """Returns the stages after this one of which a trial can still finish, one after the other."""
        found: list[Stage] = []
        left_s = self._before_selection(spent, bound) + _ROUNDING_S
        if not self._is_search(stage):
            left_s -= self.estimator.shortest_s(stage) or 0.0
        for later in self._after(stage):
            left_s -= self.estimator.shortest_s(later) or 0.0
            if left_s < 0:
                break
            found.append(later)
        return found

    def _granted_s(self, stage: Stage, bound: Bound) -> float:
        """Returns the share that a later stage has by the plan, as long as none of it was seen."""
        if stage.share is None:
            return 0.0
        granted_s = stage.share * self._total_s[bound]
        return min(granted_s, self._takes_s(stage, bound) or 0.0) if self.estimator.has_seen(stage) else granted_s

    def _estimated_s(self, stage: Stage, bound: Bound) -> float:
        """What a later stage without a share is kept."""
        if stage.share is not None:
            return 0.0
        takes_s = self._takes_s(stage, bound)
        return self._final_share * self._total_s[bound] / len(self._plan.later) if takes_s is None else takes_s

    def _takes_s(self, stage: Stage, bound: Bound) -> float | None:
        """How long what is still to come of a stage takes, on all slots; the last ones of each slot with a margin."""
        mean_s, usual_s = self.estimator.mean_s(stage), self.estimator.usual_s(stage)
        if mean_s is None or usual_s is None:
            return None
        n_trials = self._n_to_come(stage)
        if bound == "gpu_hours":
            return MARGIN * mean_s * n_trials
        return mean_s * max(0, n_trials - self._slots) / self._slots + MARGIN * usual_s

    def _n_to_come(self, stage: Stage) -> int:
        if self._to_come is None:
            self._to_come, self._n_counted = self._count(), self._n_learned
        return self._to_come.get(stage.name, 1)
