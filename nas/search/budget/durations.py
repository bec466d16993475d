"""Estimates of trial durations per stage and kind of trial, from finished trials."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.supernet import is_epoch, is_no_epoch
from nas.core.trial import Reason, State, Trial

Kind = frozenset[Policy]
"""The policies of a trial: trials of a stage with other policies take another time."""
USUAL_QUANTILE = 0.9
"""The usual duration is not exceeded by this share of the trials."""


@dataclass(slots=True)
class _Durations:
    """Durations in seconds, shortest first."""

    in_order: list[float] = field(default_factory=list)
    sum_s: float = 0.0

    @property
    def usual_s(self) -> float | None:
        """The 90 % quantile."""
        return self.in_order[math.ceil(USUAL_QUANTILE * len(self.in_order)) - 1] if self.in_order else None

    def add(self, seconds: float) -> None:
        insort(self.in_order, seconds)
        self.sum_s += seconds


@dataclass(slots=True)
class _StageDurations:
    complete: _Durations = field(default_factory=_Durations)
    ended: _Durations = field(default_factory=_Durations)
    """Those of complete trials, and of trials that a stopper stopped."""
    warm: _Durations = field(default_factory=_Durations)
    """Those of ended trials, without each slot's first, which loads data."""

    @property
    def representative(self) -> _Durations:
        """The durations from which those of later trials are estimated."""
        return self.warm if self.warm.in_order else self.ended

    @property
    def shortest_s(self) -> float | None:
        """The shortest duration of complete trials or, without any, of ended ones."""
        return next(iter(self.complete.in_order or self.ended.in_order), None)


class FullTraining(NamedTuple):
    """The estimated duration of a full training."""

    setup_s: float
    """Before the first epoch: loading data, building the network."""
    training_s: float
    least_s: float = 0.0
    """The part that a shortened training does in any case: the epochs of EARLY_STOP."""


class DurationEstimator:
    """Estimates trial durations per stage from finished trials, in any order.

    Trials of a stage may be of several kinds. An epoch of a supernet takes a hundred times as long as a subnet.

    Only trials that are COMPLETE or were stopped by a stopper count. The duration of a trial that met the deadline is a
    lower bound, used until another trial has ended.

    While no trial of a later stage has ended, its durations are estimated from COMPLETE trials of the search stage.
    Their training time is scaled by the shares of a full training (``TrialRun.shares``) under both stages' policies.
    The time before ``run.epochs`` (loading data, measuring static metrics) is not scaled. If a trial of the stage met
    the deadline after more time than that, the stage's durations are unknown again.
    """

    def __init__(self, plan: PolicyPlan) -> None:
        self._plan = plan
        self._seen: defaultdict[str, _StageDurations] = defaultdict(_StageDurations)
        self._seen_kinds: defaultdict[str, dict[Kind, _StageDurations]] = defaultdict(dict)
        self._estimated: defaultdict[str, _StageDurations] = defaultdict(_StageDurations)
        self._overdue: defaultdict[str, float | None] = defaultdict(lambda: None)
        self._searched: dict[int, Trial] = {}
        """By number of a trial: the trial of the search stage with its point."""
        self._ratios: dict[str, float] = {}
        """By later stage: the least ratio of training times to the search stage."""
        self._excess: defaultdict[str, float] = defaultdict(lambda: 1.0)
        """By later stage: the greatest training time, as a multiple of that by the shares."""
        self._slots: set[int] = set()
        self._shortened: set[str] = set()
        self._has_epochs = False

    def learn(self, trial: Trial) -> None:
        """Adds a finished trial.

        One that goes on training another tells nothing about its stage. A shortened final tells how long a full one is.
        """
        if trial.more_epochs is not None:
            return
        trained_all = trial.state == State.COMPLETE and not trial.is_shortened
        if trial.stage != self._plan.search.name and trial.proposal.fidelity is not None and not trained_all:
            self._shortened.add(trial.stage)
            self._learn_excess(trial)
            return
        seconds, is_complete = trial.duration_s, trial.state == State.COMPLETE
        if seconds is not None and trial.stage == self._plan.search.name:
            self._searched[trial.number] = trial
        if trial.reached_deadline:
            self._overdue[trial.stage] = max(self._overdue[trial.stage] or 0.0, seconds or 0.0)
        if seconds is None or not (is_complete or trial.reason == Reason.STOPPER):
            return
        if is_complete:
            self._learn_ratio(trial)
        is_warm = trial.slot is None or trial.slot in self._slots
        if trial.slot is not None:
            self._slots.add(trial.slot)
        self._add(self._seen[trial.stage], seconds, is_complete, is_warm)
        kind = self._seen_kinds[trial.stage].setdefault(trial.policies, _StageDurations())
        self._add(kind, seconds, is_complete, is_warm)
        self._has_epochs |= is_epoch(trial)
        if is_complete and trial.stage == self._plan.search.name and is_no_epoch(trial):
            for stage in self._plan.later:
                if (ratio := cost_ratio(trial, stage)) is not None:
                    self._add(self._estimated[stage.name], _scaled_s(trial, ratio), is_complete, is_warm)

    def start_session(self) -> None:
        """Notes that later trials run on new workers. All earlier sessions count as one."""
        self._slots.clear()

    def _learn_ratio(self, trial: Trial) -> None:
        """Notes the search trial of a COMPLETE trial's point, and how much longer this one trained."""
        is_later = trial.stage != self._plan.search.name and bool(trial.parents)
        searched = self._searched.get(trial.parents[0]) if is_later else None
        if searched is None:
            return
        self._searched[trial.number] = searched
        if searched.state == State.COMPLETE and (searched_s := _training_s(searched)) > 0:
            ratio = _training_s(trial) / searched_s
            self._ratios[trial.stage] = min(ratio, self._ratios.get(trial.stage, math.inf))
        self._learn_excess(trial)

    def _learn_excess(self, final: Trial) -> None:
        """Notes by how much a COMPLETE final exceeded the time by its shares."""
        stage = next((stage for stage in self._plan.later if stage.name == final.stage), None)
        searched = self._searched.get(final.parents[0]) if final.parents else None
        if stage is None or searched is None or not final.state == searched.state == State.COMPLETE:
            return
        ratio, own = cost_ratio(searched, stage), cost_ratio(final, stage)
        if ratio is None or own is None or own > ratio:  # a training for fewer epochs tells less
            return
        if (by_shares_s := ratio * _training_s(searched)) > 0:
            self._excess[stage.name] = max(self._excess[stage.name], own * _training_s(final) / by_shares_s)

    def _add(self, seen: _StageDurations, seconds: float, is_complete: bool, is_warm: bool) -> None:
        for durations, belongs in ((seen.ended, True), (seen.complete, is_complete), (seen.warm, is_warm)):
            if belongs:
                durations.add(seconds)

    def has_seen(self, stage: Stage) -> bool:
        """Returns whether a trial of the stage has ended."""
        return bool(self._seen[stage.name].ended.in_order)

    def has_shortened(self, stage: Stage) -> bool:
        """Returns whether a shortened trial of the stage has ended."""
        return stage.name in self._shortened

    def estimated_s(self, trial: Trial, stage: Stage) -> float | None:
        """Returns the estimated duration of a trial's point in a later stage, or None if unknown.

        The trial of its point in the search stage is scaled by the least ratio measured between the two stages. While
        no trial of the later stage has ended, its share of a full training counts. If that trial was stopped, the point
        takes longer.
        """
        searched = self._searched.get(trial.number)
        if searched is None or self._is_refuted(stage):
            return None
        ratio = self._ratios.get(stage.name)
        if ratio is None and not self.has_seen(stage):
            ratio = cost_ratio(searched, stage)
        return None if ratio is None else _scaled_s(searched, ratio)

    def full(self, trial: Trial, stage: Stage) -> FullTraining | None:
        """Returns the estimated duration of a full training in a later stage.

        None: it is unknown, or the stage trains for less. If the search trial was stopped, its shares say less than
        those of complete trials, whose usual duration is then the least.
        """
        searched = self._searched.get(trial.number)
        if searched is None or stage.policies & {Policy.EARLY_STOP, Policy.SKIP_TRAIN}:
            return None
        if (ratio := cost_ratio(searched, stage)) is None:
            return None
        setup_s, training_s = _fixed_s(searched), ratio * _training_s(searched)
        if searched.state != State.COMPLETE:
            training_s = max(training_s, (self._estimated[stage.name].representative.usual_s or 0.0) - setup_s)
        training_s *= self._excess[stage.name]
        is_early = Policy.EARLY_STOP in searched.policies
        return FullTraining(setup_s, training_s, training_s * searched.cost.get("epochs_share", 1.0) * is_early)

    def need_s(self, stage: Stage, kind: Kind | None = None, *, is_usual: bool) -> float | None:
        """Returns the duration for which a trial of the stage needs time, or None if unknown.

        Args:
            stage: The stage.
            kind: Its policies; None: those of the shortest kind. A kind that was not seen needs as long as the stage's
                trials, and no time if it trains nothing, as subnets.
            is_usual: Whether it is the usual duration; else the shortest.
        """
        kinds = self._seen_kinds[stage.name]
        if kind is None and self._has_epochs and len(kinds) == 1 and stage.name == self._plan.search.name:
            return 0.0
        if len(kinds) < 2 and kind in {None, *kinds}:
            return self.usual_s(stage) if is_usual else self.shortest_s(stage)
        if kind is not None and kind not in kinds:
            return 0.0 if Policy.SKIP_TRAIN in kind and kinds else self.need_s(stage, is_usual=is_usual)
        chosen = [kinds[kind]] if kind is not None else kinds.values()
        known = [found.representative.usual_s if is_usual else found.shortest_s for found in chosen]
        return min((seconds for seconds in known if seconds is not None), default=None)

    def shortest_s(self, stage: Stage) -> float | None:
        """Returns the shortest duration of a trial of the stage, or None if unknown."""
        shortest_s = self._of(stage).shortest_s
        return self._overdue[stage.name] if shortest_s is None else shortest_s

    def mean_s(self, stage: Stage) -> float | None:
        """Returns the mean duration of the stage's trials, or None if unknown."""
        found = self._of(stage).representative
        return found.sum_s / len(found.in_order) if found.in_order else None

    def usual_s(self, stage: Stage) -> float | None:
        """Returns the 90 % quantile of the durations of the stage's trials, or None if unknown."""
        return self._of(stage).representative.usual_s

    def _of(self, stage: Stage) -> _StageDurations:
        if self.has_seen(stage):
            return self._seen[stage.name]
        return _StageDurations() if self._is_refuted(stage) else self._estimated[stage.name]

    def _is_refuted(self, stage: Stage) -> bool:
        """Returns whether a trial of the stage met the deadline later than its estimate."""
        usual_s, overdue_s = self._estimated[stage.name].representative.usual_s, self._overdue[stage.name]
        return usual_s is not None and overdue_s is not None and overdue_s >= usual_s


def _fixed_s(trial: Trial) -> float:
    """Returns the time that the trial's point takes in every stage."""
    return trial.cost.get("setup_seconds", trial.cost.get("static_metrics_seconds", 0.0))


def _training_s(trial: Trial) -> float:
    """Returns the rest of the trial's duration."""
    return (trial.duration_s or 0.0) - _fixed_s(trial)


def _scaled_s(trial: Trial, ratio: float) -> float:
    """Returns the duration of a finished trial whose training takes ``ratio`` times as long."""
    return _fixed_s(trial) + _training_s(trial) * ratio


def cost_ratio(trial: Trial, stage: Stage) -> float | None:
    """Returns the duration of the trial's point in another stage, as a multiple of this trial's.

    The trial did ``epochs_share`` of the epochs at ``scale_share`` of the size. With EARLY_STOP or DOWNSCALE the stage
    has the same share if the trial had the policy too; otherwise all of it. SKIP_TRAIN does not count as a saving.
    Returns None if the trial has no shares.
    """
    if not trial.cost.keys() & {"epochs_share", "scale_share"}:
        return None
    epochs, scale = trial.cost.get("epochs_share", 1.0), trial.cost.get("scale_share", 1.0)
    if not epochs * scale > 0:
        return None
    is_short = Policy.SKIP_TRAIN in stage.policies or {Policy.EARLY_STOP} <= stage.policies & trial.policies
    is_small = {Policy.DOWNSCALE} <= stage.policies & trial.policies
    return (1.0 if is_short else 1 / epochs) * (1.0 if is_small else 1 / scale)
