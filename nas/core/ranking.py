"""Selection of finalists and of the winner, by validation scores of one stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from nas.core import pareto
from nas.core.full_scores import has_full_score, trials_in_hand
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import point_key
from nas.core.policy import PolicyPlan, Stage
from nas.core.shared_scores import shared_scores
from nas.core.supernet import comparable, is_epoch, is_no_epoch, shared_epoch, shared_epochs
from nas.core.trial import State, Trial

Export = Literal["final", "best"]
"""Possible winners: trials of the last stage, or also better trials in hand."""
WinnerKey: TypeAlias = tuple[bool, int, list[float], int]
"""Whether a trial was cut short, minus its supernet epoch, its losses by metric, its number."""


_NO_EPOCHS: Mapping[int, int] = {}


def competitors(
    trials: Iterable[Trial], metrics: Sequence[Metric], stages: Sequence[str], export: Export = "final"
) -> list[Trial]:
    """Returns the trials that can become the winner, best first.

    They are the COMPLETE trials of the last stage that has any. Before them come better trials of later stages that
    reached the deadline and saved weights. Without COMPLETE trials, those of the last stage compete. A trial ended by a
    stopper has a score, but cannot win. Subnets of the newest supernet epoch come first.

    With ``export="best"``, the trials in hand of earlier stages that score better than all of these come before them
    (`nas.core.full_scores`).

    Args:
        trials: All trials of the search.
        metrics: The problem's metrics. The first decides.
        stages: The names of the stages, in order.
        export: The rule.
    """
    given = list(trials)
    finals = _of_last_stage(given, metrics, stages)
    better = [] if export == "final" or not finals else better_in_hand(given, finals[0], metrics[0])
    numbers = {trial.number for trial in better}
    return [*better, *(trial for trial in finals if trial.number not in numbers)]


def better_in_hand(trials: Sequence[Trial], final: Trial, metric: Metric) -> list[Trial]:
    """Returns the trials in hand that score better than a final, best first.

    There are none if the score of the final is not full.

    Args:
        trials: All trials of the search.
        final: One of them.
        metric: The metric that ranks.
    """
    if not has_full_score(final, {trial.number: trial for trial in trials}.get, metric):
        return []
    value = final.metrics[metric.name]
    return [trial for trial in trials_in_hand(trials, metric) if metric.is_better(trial.metrics[metric.name], value)]


def _of_last_stage(given: Sequence[Trial], metrics: Sequence[Metric], stages: Sequence[str]) -> list[Trial]:
    """Returns the possible winners of the last stage with any, after better ones cut short."""
    epochs = shared_epochs(given)
    known = [(key, trial) for trial in given if (key := winner_key(trial, metrics, epochs)) is not None]
    known.sort(key=lambda entry: entry[0])
    cut_short: list[tuple[WinnerKey, Trial]] = []
    for stage in reversed(stages):
        in_stage = [entry for entry in known if entry[1].stage == stage]
        if complete := [entry for entry in in_stage if not entry[0][0]]:
            best = complete[0][0]
            better = [entry for entry in cut_short if is_better_cut_short(entry[0], best)]
            return [trial for _, trial in (*sorted(better, key=lambda entry: entry[0]), *complete)]
        cut_short += in_stage
    return [trial for _, trial in cut_short if trial.stage == cut_short[0][1].stage]


def is_better_cut_short(cut_short: WinnerKey, complete: WinnerKey) -> bool:
    """Returns whether a trial cut short in a later stage comes before a COMPLETE one."""
    return cut_short[1] == complete[1] and cut_short[2][0] < complete[2][0]


def winner_key(trial: Trial, metrics: Sequence[Metric], epochs: Mapping[int, int] = _NO_EPOCHS) -> WinnerKey | None:
    """Returns the sort key of a possible winner within its stage, or None for other trials.

    The first metric decides. The others decide between equal trials, so that none of them is better than the winner.

    Args:
        trial: The trial.
        metrics: The problem's metrics.
        epochs: The result of ``shared_epochs``. Epochs can't win; subnets of a newer one are better.
    """
    if trial.outdated or is_epoch(trial):
        return None
    values = [trial.value(metric.name) for metric in metrics]
    is_complete = trial.state == State.COMPLETE
    if values[0] is None or not (is_complete or (trial.reached_deadline and trial.checkpoint is not None)):
        return None
    losses = [math.inf if value is None else -m.rank(value) for m, value in zip(metrics, values, strict=True)]
    return not is_complete, -shared_epoch(trial, epochs), losses, trial.number


def stage_competitors(trials: Iterable[Trial], stage: str, metric: Metric) -> list[Trial]:
    """Returns the trials of a stage that compete for its best score, in the given order.

    They are the COMPLETE trials; without any, those that reached the deadline and saved weights. Trials of older code
    and scores of shared weights do not compete.

    Args:
        trials: All trials of the search.
        stage: The name of the stage.
        metric: The metric that ranks.
    """
    given = list(trials)
    shared = shared_scores(given)
    in_stage = [trial for trial in given if trial.stage == stage and trial.number not in shared]
    found = [trial for trial in in_stage if winner_key(trial, (metric,)) is not None]
    return [trial for trial in found if trial.state == State.COMPLETE] or found


@dataclass(frozen=True, slots=True)
class Ranking:
    """Selects finalists and the winner of a search.

    Attributes:
        plan: The stages.
        metrics: The problem's metrics. The first ranks. With several, finalists come from the Pareto front.
        n_finalists: The number of finalists in a stage without ``best``.
        by: Returns the scored trials of the search stage, best first (``Tuner.ranked``). None: by the first metric.
        export: The trials that can become the winner.
    """

    plan: PolicyPlan
    metrics: tuple[Metric, ...]
    n_finalists: int
    by: Callable[[Lineage], Sequence[Trial]] | None = None
    export: Export = "final"

    def next_finalists(
        self, trials: Sequence[Trial], stage: Stage, fits_in_full: Callable[[Trial], bool] = lambda finalist: False
    ) -> list[Trial]:
        """Returns the best trials of the previous stage that are still to retrain in this stage.

        Args:
            trials: All trials of the search.
            stage: The stage.
            fits_in_full: Whether a finalist whose only retraining was shortened is retrained in full.
        """
        in_stage = [t for t in trials if t.stage == stage.name and t.more_epochs is None and not t.reached_deadline]
        taken = {t.parents[0] for t in in_stage if not (t.is_shortened and fits_in_full(trials[t.parents[0]]))}
        return [t for t in self.finalists(trials, stage) if t.number not in taken]

    def n_trials_by_stage(self, n_trials: int | None) -> dict[str, int | None]:
        """Returns the number of trials per stage, if ``n_trials`` of the search stage get a score.

        None: the number is not known.
        """
        found = {self.plan.search.name: n_trials}
        for stage in self.plan.later:
            n_before = next(reversed(found.values()))
            is_unknown = n_before is None and isinstance(stage.best, float)
            found[stage.name] = None if is_unknown else self._n_finalists(stage, n_before or 0)
        return found

    def n_trials_left(self, trials: Sequence[Trial]) -> dict[str, int]:
        """Returns the number of trials left in each later stage.

        It is at least 1, since a better finalist may follow.
        """
        scored = (t for t in trials if t.stage == self.plan.search.name and t.value(self.metrics[0].name) is not None)
        n_scored = sum(map(is_no_epoch, scored))
        n_by_stage = self.n_trials_by_stage(max(n_scored, 1))
        found = {}
        for stage in self.plan.later:
            has_any = any(t.stage == stage.name for t in trials)
            left = self.next_finalists(trials, stage, fits_in_full=lambda finalist: True)
            n_trained = len(self.finalists(trials, stage)) - len(left) if has_any else 0
            found[stage.name] = max(1, (n_by_stage[stage.name] or 0) - n_trained)
        return found

    def _n_finalists(self, stage: Stage, n_before: int) -> int:
        best = self.n_finalists if stage.best is None else stage.best
        return math.ceil(Fraction(str(best)) * n_before) if isinstance(best, float) else best  # 0.07 * 100 is above 7

    def competitors(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the trials that can become the winner, best first."""
        return competitors(trials, self.metrics, [stage.name for stage in self.plan.stages], self.export)

    def tested(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the finalists that are scored on test data."""
        last = self.plan.stages[-1]
        n_before = len(self._best_of(trials, last)) if isinstance(last.best, float) else 0
        return self.competitors(trials)[: self._n_finalists(last, n_before)]

    def winner(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the winner, or None."""
        return next(iter(self.competitors(trials)), None)

    def weights_to_keep(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Returns trials whose weights must stay: finalists, tested trials, the best of the search stage."""
        ranked = _of_stage(trials, self.plan.search).ranked(self.metrics[0])
        best = [trial for group in comparable(ranked, shared_epochs(trials))[:1] for trial in group[:1]]
        chosen = (trial for stage in self.plan.later for trial in self.finalists(trials, stage))
        return frozenset(t.number for t in (*chosen, *self.tested(trials), *best))

    def n_finalists_of(self, trials: Sequence[Trial], stage: Stage) -> int:
        """Returns the number of trials of a stage, given the results of the previous stage.

        It does not change while the trials of the stage run.
        """
        n_points = len(self._best_of(trials, stage))
        return min(n_points, self._n_finalists(stage, n_points))

    def _best_of(self, trials: Sequence[Trial], stage: Stage) -> dict[str, Trial]:
        """Returns the best trial of each point in the previous stage, by point key, best first."""
        before = self.plan.stages[self.plan.stages.index(stage) - 1]
        best_of: dict[str, Trial] = {}
        for trial in self._candidates(trials, before):
            best_of.setdefault(point_key(trial.point), trial)
        return best_of

    def finalists(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        """Returns the best trials of the previous stage, without those whose newest retraining got no score."""
        best_of = self._best_of(trials, stage)
        in_stage = [t for t in trials if t.stage == stage.name and t.more_epochs is None and not t.reached_deadline]
        newest = {t.parents[0]: t for t in in_stage}
        failed = {n for n, t in newest.items() if t.is_finished and t.value(self.metrics[0].name) is None}
        return [t for t in best_of.values() if t.number not in failed][: self._n_finalists(stage, len(best_of))]

    def _candidates(self, trials: Sequence[Trial], stage: Stage) -> list[Trial]:
        """Returns the scored trials of a stage in the order in which they become finalists.

        With one metric the order is that of the tuner or the metric. With several, the best trial by the first metric
        comes first, then front after front, the least crowded first. Trials without a value of each metric come last.

        Supernet epochs are never finalists. Subnets of a newer one come before those of an older one, unless the tuner
        has another order.
        """
        found, epochs = _of_stage(trials, stage), shared_epochs(trials)
        has_fronts = len(self.metrics) > 1 and bool(pareto.competing(found, self.metrics))
        if self.by is not None and stage == self.plan.search and not has_fronts:
            return [trial for trial in self.by(found) if is_no_epoch(trial)]
        groups = comparable(found.ranked(self.metrics[0]), epochs)
        return [trial for group in groups for trial in (self._by_fronts(group) if has_fronts else group)]

    def _by_fronts(self, ranked: Sequence[Trial]) -> Sequence[Trial]:
        candidates = pareto.competing(ranked, self.metrics)
        if not candidates:
            return ranked
        in_order = [candidates[place][0] for place in pareto.best_first([losses for _, losses in candidates])]
        best = min(candidates, key=lambda entry: (entry[1][0], entry[0].number))[0]
        return list({trial.number: trial for trial in (best, *in_order, *ranked)}.values())


def _of_stage(trials: Sequence[Trial], stage: Stage) -> Lineage:
    """Returns the trials of a stage whose scores can be compared."""
    return Lineage.of(t for t in trials if t.stage == stage.name and not t.outdated)
