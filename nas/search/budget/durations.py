"""How long the trials of each stage take: what was seen of them, or what the search stage's static_metrics."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field

from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.trial import Reason, State, Trial

OFTEN = 0.9
"""As long as this share of the trials is what one should count with."""


@dataclass(slots=True)
class _Durations:
    """In seconds, the shortest first."""

    in_order: list[float] = field(default_factory=list)
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        insort(self.in_order, seconds)
        self.sum_s += seconds


@dataclass(slots=True)
class _Seen:
    complete: _Durations = field(default_factory=_Durations)
    ended: _Durations = field(default_factory=_Durations)
    """The complete ones, and those that a stopper has stopped."""
    warm: _Durations = field(default_factory=_Durations)
    """Of these, but for the first on each slot, which has loaded data and warmed its worker up."""

    @property
    def telling(self) -> _Durations:
        """By which the next ones are static_metrics."""
        return self.warm if self.warm.in_order else self.ended


class DurationEstimator:
    """Learns from the trials that have ended, in whatever order.

    A trial counts that is COMPLETE, or that a stopper has stopped. What failed says nothing of how long a trial takes,
    and what met the deadline only, as long as nothing else does, what one takes at the least. Of a later stage of which
    none has ended yet, the search stage's COMPLETE trials tell: each took its share of a full training
    (``TrialRun.shares``), and the later one takes another by its policies; what comes before ``run.epochs`` is
    called (loading data, finding out what a point costs) takes as long.
    """

    def __init__(self, plan: PolicyPlan) -> None:
        self._plan = plan
        self._seen: defaultdict[str, _Seen] = defaultdict(_Seen)
        self._estimated: defaultdict[str, _Seen] = defaultdict(_Seen)
        self._overdue: defaultdict[str, float | None] = defaultdict(lambda: None)
        self._slots: set[int] = set()

    def learn(self, trial: Trial) -> None:
        """Takes in a finished trial."""
        seconds, is_complete = trial.duration_s, trial.state == State.COMPLETE
        if trial.reached_deadline:
            self._overdue[trial.stage] = max(self._overdue[trial.stage] or 0.0, seconds or 0.0)
        if seconds is None or not (is_complete or trial.reason == Reason.STOPPER):
            return
        is_warm = trial.slot is None or trial.slot in self._slots
        if trial.slot is not None:
            self._slots.add(trial.slot)
        self._add(self._seen[trial.stage], seconds, is_complete, is_warm)
        if is_complete and trial.stage == self._plan.search.name:
            for stage in self._plan.later:
                if (ratio := cost_ratio(trial, stage)) is not None:
                    fixed_s = trial.cost.get("setup_seconds", trial.cost.get("static_metrics_seconds", 0.0))
                    estimated_s = fixed_s + (seconds - fixed_s) * ratio
                    self._add(self._estimated[stage.name], estimated_s, is_complete, is_warm)

    def begin_session(self) -> None:
        """What comes from here on runs on new workers; of what came before, all counts as one session."""
        self._slots.clear()

    def _add(self, seen: _Seen, seconds: float, is_complete: bool, is_warm: bool) -> None:
        for durations, belongs in ((seen.ended, True), (seen.complete, is_complete), (seen.warm, is_warm)):
            if belongs:
                durations.add(seconds)

    def has_seen(self, stage: Stage) -> bool:
        """Returns whether a trial of it has ended."""
        return bool(self._seen[stage.name].ended.in_order)

    def shortest_s(self, stage: Stage) -> float | None:
        """What a trial of it takes at the least, in seconds; None: not known."""
        found = self._of(stage)
        return next(iter(found.complete.in_order or found.ended.in_order), self._overdue[stage.name])

    def mean_s(self, stage: Stage) -> float | None:
        """What its trials take on average, in seconds; None: not known."""
        found = self._of(stage).telling
        return found.sum_s / len(found.in_order) if found.in_order else None

    def usual_s(self, stage: Stage) -> float | None:
        """What nine in ten of its trials do not exceed, in seconds; None: not known."""
        found = self._of(stage).telling.in_order
        return found[math.ceil(OFTEN * len(found)) - 1] if found else None

    def _of(self, stage: Stage) -> _Seen:
        return self._seen[stage.name] if self.has_seen(stage) else self._estimated[stage.name]


def cost_ratio(trial: Trial, stage: Stage) -> float | None:
    """How many times as long as this trial another one of its point takes in a stage; None: its problem declares none.

    ``trial`` did ``epochs_share`` of the epochs and ``scale_share`` of the size. Under EARLY_STOP and DOWNSCALE the
    stage does as the trial did under the same; otherwise all of it. SKIP_TRAIN is not counted as a gain.
    """
    if not trial.cost.keys() & {"epochs_share", "scale_share"}:
        return None
    epochs, scale = trial.cost.get("epochs_share", 1.0), trial.cost.get("scale_share", 1.0)
    if not epochs * scale > 0:
        return None
    is_short = Policy.SKIP_TRAIN in stage.policies or {Policy.EARLY_STOP} <= stage.policies & trial.policies
    is_small = {Policy.DOWNSCALE} <= stage.policies & trial.policies
    return (1.0 if is_short else 1 / epochs) * (1.0 if is_small else 1 / scale)
