"""Who is trained in full, who competes for the export, and who wins: by validation scores, never across stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nas.core import pareto
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import point_key
from nas.core.policy import PolicyPlan, Stage
from nas.core.trial import State, Trial


def competitors(trials: Iterable[Trial], metric: Metric, stages: Sequence[str]) -> list[Trial]:
    """Returns the trials that compete to be the winner, best first.

    The COMPLETE ones of the last of these stages that has any, or that has at least some that met the deadline and left
    weights: those, then. A trial that a stopper has stopped has a score, and is none.
    """
    known = [(place, trial) for trial in trials if (place := place_among(trial, metric)) is not None]
    for stage in reversed(stages):
        if in_stage := sorted((entry for entry in known if entry[1].stage == stage), key=lambda entry: entry[0]):
            kind = in_stage[0][0][0]
            return [trial for place, trial in in_stage if place[0] == kind]
    return []


def place_among(trial: Trial, metric: Metric) -> tuple[bool, float, int] | None:
    """What orders the competitors of one stage, the least first: of equals, the lower number; None: it is none."""
    value, is_complete = trial.value(metric.name), trial.state == State.COMPLETE
    if value is None or not (is_complete or (trial.met_deadline and trial.checkpoint is not None)):
        return None
    return not is_complete, -metric.rank(value), trial.number


@dataclass(frozen=True, slots=True)
class Ranking:
    """Chooses among the trials of a search.

    Attributes:
        plan: The stages.
        metrics: The problem's: the first ranks; where there are more, finalists come from the front.
        n_finalists: How many of the best a stage trains that does not say it.
        by: Ranks the scored trials of the search stage, best first (``Tuner.ranked``); None: the first metric does.
    """

    plan: PolicyPlan
    metrics: tuple[Metric, ...]
    n_finalists: int
    by: Callable[[Lineage], Sequence[Trial]] | None = None

    def next_finalists(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        """The trials of the stage before to train again next: the best not yet trained, until enough have a score."""
        taken = {t.parents[0] for t in trials if t.stage == stage.name and not t.met_deadline}
        return [t for t in self._finalists(trials, stage) if t.number not in taken]

    def wanted(self, n_trials: int | None) -> dict[str, int | None]:
        """How many trials each stage has where the search stage has so many, all with a score; None: not known."""
        found = {self.plan.search.name: n_trials}
        for stage in self.plan.later:
            n_before = next(reversed(found.values()))
            is_open = n_before is None and isinstance(stage.best, float)
            found[stage.name] = None if is_open else self._n_wanted(stage, n_before or 0)
        return found

    def to_come(self, trials: Sequence[Trial]) -> dict[str, int]:
        """How many trials each later stage has still to train, at least one: a better finalist may come yet."""
        n_scored = sum(t.stage == self.plan.search.name and t.value(self.metrics[0].name) is not None for t in trials)
        wanted = self.wanted(max(n_scored, 1))
        found = {}
        for stage in self.plan.later:
            has_any = any(t.stage == stage.name for t in trials)
            n_trained = len(self._finalists(trials, stage)) - len(self.next_finalists(trials, stage)) if has_any else 0
            found[stage.name] = max(1, (wanted[stage.name] or 0) - n_trained)
        return found

    def _n_wanted(self, stage: Stage, n_before: int) -> int:
        wanted = self.n_finalists if stage.best is None else stage.best
        return math.ceil(wanted * n_before) if isinstance(wanted, float) else wanted

    def competitors(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the trials that compete for the export, best first."""
        return competitors(trials, self.metrics[0], [stage.name for stage in self.plan.stages])

    def tested(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the competitors that are scored on test data."""
        return self.competitors(trials)[: self.n_finalists]

    def winner(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the best competitor."""
        return next(iter(self.competitors(trials)), None)

    def needed(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Whose weights must stay: finalists, what is tested and exported, the best of the search stage."""
        best = self._ranked(trials, self.plan.search)[:1]
        chosen = (trial for stage in self.plan.later for trial in self._finalists(trials, stage))
        return frozenset(t.number for t in (*chosen, *self.tested(trials), *best))

    def n_finalists_of(self, trials: Sequence[Trial], stage: Stage) -> int:
        """How many trials the stage has, as the stage before stands; the same before, amid and after them."""
        n_points = len(self._best_of(trials, stage))
        return min(n_points, self._n_wanted(stage, n_points))

    def _best_of(self, trials: Sequence[Trial], stage: Stage) -> dict[str, Trial]:
        """Returns the scored trials of the stage before, one a point, by its key; the best first."""
        before = self.plan.stages[self.plan.stages.index(stage) - 1]
        best_of: dict[str, Trial] = {}
        for trial in self._candidates(trials, before):
            best_of.setdefault(point_key(trial.point), trial)
        return best_of

    def _finalists(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        """The best of the stage before, one a point, but for those whose second training has ended without a score."""
        best_of = self._best_of(trials, stage)
        ended = [t for t in trials if t.stage == stage.name and t.is_finished and not t.met_deadline]
        failed = {t.parents[0] for t in ended if t.value(self.metrics[0].name) is None}
        return [t for t in best_of.values() if t.number not in failed][: self._n_wanted(stage, len(best_of))]

    def _candidates(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        """Returns the scored trials of a stage in the order in which they become finalists.

        By the only metric, or as the tuner ranks them; of several objectives the best by the first one, then the front,
        the least crowded first, then who would be on the front without these, and so on, and those without a value for
        each in the end.
        """
        ranked = self._ranked(trials, stage)
        able = pareto.competing(ranked, self.metrics)
        if len(self.metrics) == 1 or not able:
            by = self.by if stage == self.plan.search else None
            return ranked if by is None else list(by(_of_stage(trials, stage)))
        in_order = [able[place][0] for place in pareto.best_first([losses for _, losses in able])]
        best = min(able, key=lambda entry: (entry[1][0], entry[0].number))[0]
        return list({trial.number: trial for trial in (best, *in_order, *ranked)}.values())

    def _ranked(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        found = _of_stage(trials, stage)
        return found.best(self.metrics[0], n=len(found))


def _of_stage(trials: Sequence[Trial], stage: Stage) -> Lineage:
    return Lineage.of(t for t in trials if t.stage == stage.name)
