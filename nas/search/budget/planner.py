"""The planned end of each stage within a budget of hours and GPU-hours.

The budget includes finals, tests and export. The planner reserves the estimated time of the remaining trials of later
stages, and of tests and export. A trial may start if it can finish before that reserve; see docs/decisions/014.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nas.core.budget import Budget
from nas.core.policy import PolicyPlan, Stage
from nas.core.trial import Trial
from nas.search.budget.durations import DurationEstimator, FullTraining, Kind

Bound = Literal["hours", "gpu_hours"]
MARGIN = 1.1
"""The reserve for a trial, as a multiple of its usual duration."""
MAX_LATER_SHARE = 0.8
"""The largest part of the budget for later stages without a share.

It may be exceeded for one trial of each stage.
"""
SELECTION_SHARE = 0.02
SELECTION_MIN_S, SELECTION_MAX_SHARE = 5.0, 0.2
SELECTION_MAX_S = 120.0
"""The reserve for tests and export before the first one.

It is a share of the hours, within these limits. The minimum is the time to load a network and write it as ONNX, but not
more than SELECTION_MAX_SHARE of the hours.
"""
GRACE_S = 2.0
GRACE_SHARE, GRACE_MAX_SHARE = 0.01, 0.1
"""Time between the stop and the kill of a trial: the longer of the two.

The share is of the hours or of a slot's part of the GPU-hours, whichever is shorter. The reserve for it is at most
GRACE_MAX_SHARE of the hours.
"""
LATEST_END = 0.5
"""The part of the budget until which trials of the search stage may delay shortened finals."""
SHORT_MARGIN = 1.25
"""The reserve of a shortened final, which is poor if it meets the deadline."""
UNLIMITED_MARGIN = 2.0
"""The time for a final without a limit, as a multiple of its estimated duration."""
LEAST_SHARE = 0.001
"""The least share of a full training; problems that count epochs train at least one."""
THREADS_GAIN = 0.6
"""The gain of a final from the threads of each further slot; measured: 0.7 to 0.9."""
LEAST_FINAL = 3.0
"""The shortest time for a shortened final, as a multiple of the shortest search trial."""
LAST_SCORE_S, LAST_SCORE_SHARE, LAST_SCORE_MAX_S = 1.0, 0.04, 60.0
LAST_SCORE_LEAST_SHARE = 0.5
"""The time between a shortened training and the deadline, for the last score.

It is some seconds and a share of the time left, within the limit. Beyond the seconds it is at most a share of the
final's least duration. A final as long does not start in the rest of it.
"""
RECOUNT = 1.05
"""The growth of the number of trials after which finalists are counted again, which is slow."""
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Usage:
    """The time used by a search so far, in seconds.

    Attributes:
        wall_s: Wall-clock time of all sessions.
        gpu_s: GPU time of the finished trials, divided by ``gpus_per_trial``.
        running: Time since each running trial began; 0 while it waits for a worker.
        kinds: Their policies, as far as they are known.
    """

    wall_s: float
    gpu_s: float
    running: Sequence[float] = ()
    kinds: Sequence[Kind] = ()

    def of(self, bound: Bound) -> float:
        """Returns the time that counts against a bound."""
        return self.wall_s if bound == "hours" else self.gpu_s + math.fsum(self.running)


class StagePlanner:
    """Plans the end of each stage from the trials added so far. It has no clock.

    Args:
        budget: Hours and GPU-hours; without either, every trial may start.
        plan: The stages.
        slots: The number of trials that run at once.
        n_left: Returns the number of trials left to train, by name of the later stage.
        has_selection: Whether tests and an export follow the last stage.
        gpus_per_trial: GPUs of each trial. It divides all GPU time, so that plans count the seconds of trials.
        shortens: Whether finals are shortened to the time left, if hours are limited.
        threads_help: Whether a final with the torch threads of idle slots takes less time.

    Attributes:
        grace_s: Time between the stop and the kill of a trial. It ends before the reserve for tests and export.
    """

    def __init__(
        self,
        budget: Budget,
        plan: PolicyPlan,
        slots: int = 1,
        *,
        n_left: Callable[[], Mapping[str, int]] = dict,
        has_selection: bool = False,
        gpus_per_trial: float = 1.0,
        shortens: bool = False,
        threads_help: bool = False,
    ) -> None:
        self.estimator = DurationEstimator(plan)
        self._plan = plan
        self._slots = slots
        self._stops = budget.stops_trials
        self._final_share = budget.final_share
        self._gpus_per_trial = gpus_per_trial
        self._shortens = shortens and budget.hours is not None
        self._delays_finals = self._shortens and all(stage.share is None for stage in plan.stages)
        self._threads_help = threads_help
        self._total_s: dict[Bound, float] = {}
        if budget.hours is not None:
            self._total_s["hours"] = 3600.0 * budget.hours
        if budget.gpu_hours is not None:
            self._total_s["gpu_hours"] = 3600.0 * budget.gpu_hours / gpus_per_trial
        in_all_s = [seconds if bound == "hours" else seconds / slots for bound, seconds in self._total_s.items()]
        self.grace_s = max(GRACE_S, GRACE_SHARE * min(in_all_s, default=0.0))
        self._count_left = n_left
        self._n_left: Mapping[str, int] | None = None
        self._n_learned = self._n_counted = 0
        self._reserve_is_released = False
        self._spent_later: dict[Bound, float] = {"hours": 0.0, "gpu_hours": 0.0}
        self._later_spans: list[tuple[float, float]] = []
        self._selection_s = 0.0
        if has_selection and budget.hours is not None:
            total_s = 3600.0 * budget.hours
            least_s = min(SELECTION_MIN_S, SELECTION_MAX_SHARE * total_s)
            self._selection_s = min(max(SELECTION_SHARE * total_s, least_s), SELECTION_MAX_S)

    @property
    def is_unlimited(self) -> bool:
        """Whether the budget has neither hours nor GPU-hours."""
        return not self._total_s

    def gpu_s(self, trial: Trial) -> float:
        """Returns the GPU time of a trial for ``Usage.gpu_s``."""
        return trial.cost.get("gpu_seconds", 0.0) / self._gpus_per_trial

    def learn(self, trial: Trial) -> None:
        """Adds a finished trial."""
        self.estimator.learn(trial)
        self._n_learned += 1
        if trial.stage != self._plan.search.name:
            self._spent_later["hours"] += (trial.duration_s or 0.0) / self._slots
            self._spent_later["gpu_hours"] += self.gpu_s(trial)
            if trial.started is not None and trial.finished is not None:
                self._later_spans.append((trial.started, trial.finished))
        if trial.stage != self._plan.search.name or self._n_learned > RECOUNT * self._n_counted:
            self._n_left = None

    def learn_selection(self, seconds: float) -> None:
        """Notes how long tests and export took."""
        self._selection_s = MARGIN * seconds

    def release_reserve(self) -> bool:
        """Gives the search stage the reserve of later stages. Returns False if that was done before.

        Called when no trial and its final fit together any more. Finals of later trials are left to the next session or
        to ``flows.final``.
        """
        if self._reserve_is_released:
            return False
        self._reserve_is_released = True
        return True

    def closed_by(
        self, stage: Stage, spent: Usage, parent: Trial | None = None, *, kind: Kind | None = None
    ) -> Bound | None:
        """Returns the bound that leaves no time for another trial of the stage, or None.

        Args:
            stage: The stage.
            spent: The time used so far.
            parent: The trial to retrain in a later stage; None: any.
            kind: The policies of a trial of the search stage; None: any.
        """
        need_s = self.need_s(stage, parent, kind)
        for bound in self._total_s:
            left_s = self._left_s(stage, spent, bound)
            if bound == "gpu_hours":
                left_s -= self._until_ended_s(stage, spent, need_s)
            if left_s < need_s - _ROUNDING_S or left_s <= _ROUNDING_S:
                return bound
        return None

    def _until_ended_s(self, stage: Stage, spent: Usage, need_s: float) -> float:
        """Returns the seconds until the running trials have ended, all together."""
        needs = [self.need_s(stage, None, kind) for kind in spent.kinds] if self._is_search(stage) else []
        pairs = itertools.zip_longest(spent.running, needs[: len(spent.running)], fillvalue=need_s)
        return math.fsum(max(0.0, own_s - seconds) for seconds, own_s in pairs)

    def need_s(self, stage: Stage, parent: Trial | None = None, kind: Kind | None = None) -> float:
        """Returns the seconds that must be left for a trial to start.

        That is the usual duration of the stage's trials of its kind, by default of the shortest kind. If trials are
        stopped at the deadline, or none has ended, it is the estimate for the parent. Without one it is the shortest
        duration of the stage or of the search stage. A shortened final needs at least the time of its least epochs.
        """
        if self.estimator.has_seen(stage) and not self._stops:
            known_s = self.estimator.need_s(stage, kind, is_usual=True)
        else:
            own_s = None if parent is None else self.estimator.estimated_s(parent, stage)
            known_s = own_s or self.estimator.need_s(stage, kind, is_usual=False)
        known_s = self._shortened_s(stage, known_s)
        if known_s is not None and self._is_search(stage):
            return known_s
        known_s = known_s or self.estimator.shortest_s(self._plan.search) or 0.0
        return known_s if parent is None else max(known_s, MARGIN * self._least_s(stage, parent))

    def share_that_fits(self, stage: Stage, spent: Usage, parent: Trial, n_slots: int = 1) -> float | None:
        """Returns the share of a full training of a parent's point for which there is time.

        1.0: all of it if the estimate is about right, so its time is limited. None: all of it without a limit, or
        trainings are not shortened. ``n_slots``: the slots whose threads the training has.
        """
        full = self._full(stage, parent)
        if full is None:
            return None
        training_s = full.training_s / self._speedup(n_slots)
        left_s = self._final_left_s(stage, spent)
        full_s = full.setup_s + training_s
        if MARGIN * full_s <= left_s:
            return None if UNLIMITED_MARGIN * full_s <= left_s else 1.0
        return max(LEAST_SHARE, (left_s / SHORT_MARGIN - full.setup_s) / training_s)

    def fits_in_full(self, stage: Stage, spent: Usage, parent: Trial) -> bool:
        """Returns whether there is time for a full training of a parent's point on one slot."""
        return self.share_that_fits(stage, spent, parent) in (None, 1.0)

    def training_left_s(self, stage: Stage, spent: Usage, parent: Trial) -> float | None:
        """Returns the seconds until a shortened training of a parent's point should end.

        None: they are not limited.
        """
        if not self._shortens:
            return None
        left_s = self._final_left_s(stage, spent)
        score_s = min(LAST_SCORE_S + LAST_SCORE_SHARE * left_s, LAST_SCORE_MAX_S)
        if (least_s := self._least_s(stage, parent)) > 0:
            score_s = min(score_s, max(LAST_SCORE_S, LAST_SCORE_LEAST_SHARE * least_s))
        return max(0.0, left_s - score_s)

    def n_full(self, stage: Stage, spent: Usage, parent: Trial) -> int | None:
        """Returns the number of full trainings that fit; None: it does not matter.

        It is at least 1, or one for each slot if threads of idle slots don't help.
        """
        full = self._full(stage, parent)
        if full is None:
            return None
        full_s = MARGIN * (full.setup_s + full.training_s)
        n_that_fit = int(self._left_s(stage, spent, "hours") / full_s) * self._slots
        if "gpu_hours" in self._total_s:
            n_that_fit = min(n_that_fit, int(self._left_s(stage, spent, "gpu_hours") / full_s))
        return max(1 if self._threads_help else self._slots, n_that_fit)

    def _final_left_s(self, stage: Stage, spent: Usage) -> float:
        """Returns the seconds left for a final; those that run at once share the GPU-hours."""
        left_s = self._left_s(stage, spent, "hours")
        if "gpu_hours" not in self._total_s:
            return left_s
        n_at_once = max(min(self._slots, self._n_left_in(stage)), len(spent.running))
        return min(left_s, self._left_s(stage, spent, "gpu_hours") / n_at_once)

    def _full(self, stage: Stage, parent: Trial) -> FullTraining | None:
        """Returns the estimated duration of a full training, if it may be shortened and is known."""
        full = self.estimator.full(parent, stage) if self._shortens else None
        return full if full is not None and full.training_s > 0 else None

    def _least_s(self, stage: Stage, parent: Trial) -> float:
        """Returns the least duration of a shortened final with all slots' threads; 0: unknown."""
        full = self._full(stage, parent)
        return 0.0 if full is None or not full.least_s else full.setup_s + full.least_s / self._speedup(self._slots)

    def _speedup(self, n_slots: int) -> float:
        return 1 + THREADS_GAIN * (n_slots - 1) if self._threads_help else 1.0

    def _shortest_s(self, stage: Stage) -> float | None:
        """Returns the shortest duration of a trial of a stage, or None if unknown."""
        return self._shortened_s(stage, self.estimator.shortest_s(stage))

    def _shortened_s(self, stage: Stage, seconds: float | None) -> float | None:
        if seconds is None or not self._shortens or self._is_search(stage):
            return seconds
        return min(seconds, LEAST_FINAL * (self.estimator.shortest_s(self._plan.search) or math.inf))

    def left_s(self, stage: Stage, spent: Usage) -> float:
        """Returns the seconds until the stage's running trials must have ended; may be negative.

        Finals that may be shortened wait for the last trials of the search stage, at most for their usual duration.
        """
        return self._until_end_s(stage, spent, delays_finals=self._delays_finals and self._is_search(stage))

    def _until_end_s(self, stage: Stage, spent: Usage, *, delays_finals: bool) -> float:
        serves_later = not self._is_search(stage) or self.estimator.has_seen(stage)
        left = [math.inf]
        for bound in self._total_s:
            n_running = 1 if bound == "hours" else max(1, len(spent.running))
            left_s = self._left_s(stage, spent, bound) if serves_later else self._before_selection(spent, bound)
            if delays_finals:
                latest_s = self._before_selection(spent, bound) - (1 - LATEST_END) * self._total_s[bound]
                usual_s = self.estimator.usual_s(stage) or 0.0
                left_s = max(left_s, min(left_s + n_running * usual_s, latest_s))
            left.append(left_s / n_running)
        return min(left)

    def next_decisions_s(self, stage: Stage, spent: Usage) -> tuple[float, float]:
        """Returns the seconds until the last start and until the stage's end; past ones are negative."""
        last_start_s = self._until_end_s(stage, spent, delays_finals=False) - self.need_s(stage)
        return last_start_s, self.left_s(stage, spent)

    def stages_without_time(self, current: Stage, spent: Usage) -> Iterator[tuple[Stage, float]]:
        """Yields the later stages in which no trial can finish.

        Each comes with the shortest duration of a trial. Stages with a finished trial are left out.
        """
        for stage in self._after(current):
            fits = all(stage in self._feasible(current, spent, bound) for bound in self._total_s)
            least_s = self._shortest_s(stage)
            has_ended = self.estimator.has_seen(stage) or self.estimator.has_shortened(stage)
            if not fits and least_s is not None and not has_ended:
                yield stage, least_s

    def _after(self, stage: Stage) -> tuple[Stage, ...]:
        names = [known.name for known in self._plan.stages]
        return self._plan.stages[names.index(stage.name) + 1 :] if stage.name in names else ()

    def _is_search(self, stage: Stage) -> bool:
        return stage.name == self._plan.search.name

    def _before_selection(self, spent: Usage, bound: Bound) -> float:
        left_s = self._total_s[bound] - spent.of(bound)
        if bound == "gpu_hours":
            return left_s
        grace_s = min(self.grace_s, GRACE_MAX_SHARE * self._total_s[bound]) if self._stops else 0.0
        return left_s - self._selection_s - grace_s

    def _left_s(self, stage: Stage, spent: Usage, bound: Bound) -> float:
        """Returns the time left for the stage."""
        left_s = self._before_selection(spent, bound)
        if not self._is_search(stage):
            return left_s - self._reserve_s(stage, spent, bound)
        own_s = math.inf
        if stage.share is not None:
            own_s = stage.share * self._total_s[bound] - (spent.of(bound) - self._later_s(bound))
        return min(own_s, left_s - (0.0 if self._reserve_is_released else self._reserve_s(stage, spent, bound)))

    def _later_s(self, bound: Bound) -> float:
        """Returns the time in which trials of later stages ran, on any number of slots."""
        if bound == "gpu_hours":
            return self._spent_later[bound]
        later_s, until = 0.0, -math.inf
        for started, finished in sorted(self._later_spans):
            later_s += max(0.0, finished - max(started, until))
            until = max(until, finished)
        return later_s

    def _reserve_s(self, stage: Stage, spent: Usage, bound: Bound) -> float:
        """Returns the reserve for the stages after this one."""
        later = self._feasible(stage, spent, bound)
        if not self._is_search(stage) and not self.estimator.has_seen(stage):  # it must start before they can
            return math.fsum(self._shortest_s(other) or 0.0 for other in later)
        share_s = math.fsum(self._share_s(other, bound) for other in later)
        estimated_s = math.fsum(self._estimated_s(other, bound) for other in later)
        if self._is_search(stage):
            one_each_s = math.fsum(MARGIN * (self.estimator.usual_s(other) or 0.0) for other in later)
            most_s = MAX_LATER_SHARE * self._total_s[bound] - self._spent_later[bound]
            estimated_s = min(estimated_s, max(most_s, 0.0 if self._shortens else one_each_s))
        return share_s + estimated_s

    def _feasible(self, stage: Stage, spent: Usage, bound: Bound) -> list[Stage]:
        """Returns the later stages in which a trial each can still finish, one stage after another."""
        found: list[Stage] = []
        left_s = self._before_selection(spent, bound) + _ROUNDING_S
        if not self._is_search(stage):
            left_s -= self._shortest_s(stage) or 0.0
        for later in self._after(stage):
            left_s -= self._shortest_s(later) or 0.0
            if left_s < 0:
                break
            found.append(later)
        return found

    def _share_s(self, stage: Stage, bound: Bound) -> float:
        """Returns the reserve of a stage with a share; less than it once durations are known."""
        if stage.share is None:
            return 0.0
        share_s = stage.share * self._total_s[bound]
        return min(share_s, self._remaining_work_s(stage, bound) or 0.0) if self.estimator.has_seen(stage) else share_s

    def _estimated_s(self, stage: Stage, bound: Bound) -> float:
        """Returns the reserve of a stage without a share."""
        if stage.share is not None:
            return 0.0
        work_s = self._remaining_work_s(stage, bound)
        return self._final_share * self._total_s[bound] / len(self._plan.later) if work_s is None else work_s

    def _remaining_work_s(self, stage: Stage, bound: Bound) -> float | None:
        """Returns the duration of a stage's remaining trials on all slots, with a margin."""
        mean_s, usual_s = self.estimator.mean_s(stage), self.estimator.usual_s(stage)
        if mean_s is None or usual_s is None:
            return None
        n_trials = self._n_left_in(stage)
        if bound == "gpu_hours":
            return MARGIN * mean_s * n_trials
        return mean_s * max(0, n_trials - self._slots) / self._slots + MARGIN * usual_s

    def _n_left_in(self, stage: Stage) -> int:
        if self._n_left is None:
            self._n_left, self._n_counted = self._count_left(), self._n_learned
        return self._n_left.get(stage.name, 1)
