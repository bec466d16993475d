"""Who is trained in full, who competes for the export, and who wins: by validation scores, never across stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nas import pareto
from nas.lineage import Lineage
from nas.metric import Metric
from nas.policy import PolicyPlan
from nas.spaces.base import point_key
from nas.trial import State, Trial


def competitors(trials: Iterable[Trial], metric: Metric, stages: Sequence[str]) -> list[Trial]:
    """The trials that compete to be the winner, best first.

    The COMPLETE ones of the last of these stages, or, as long as that has no score, of the first. A stopped trial has a
    score, and is none.
    """
    known = list(trials)
    for stage in (stages[-1], stages[0]):
        in_stage = [trial for trial in known if trial.stage == stage]
        if ranked := Lineage.of(in_stage).best(metric, n=len(in_stage)):
            return [trial for trial in ranked if trial.state == State.COMPLETE]
    return []


@dataclass(frozen=True, slots=True)
class Ranking:
    """Chooses among the trials of a search.

    Attributes:
        plan: The stages.
        metrics: The problem's: the first ranks; where there are more, finalists come from the front.
        n_finalists: How many of the best the final stage trains.
        by: Ranks the scored trials of the search stage, best first (``Tuner.ranked``); None: the first metric does.
    """

    plan: PolicyPlan
    metrics: tuple[Metric, ...]
    n_finalists: int
    by: Callable[[Lineage], Sequence[Trial]] | None = None

    def next_finalists(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials to train in full next: the best not yet trained, until enough finals have a score."""
        taken = {t.parents[0] for t in self._finals(trials)}
        return [t for t in self._finalists(trials) if t.number not in taken]

    def competitors(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials that compete for the export, best first."""
        return competitors(trials, self.metrics[0], [stage.name for stage in self.plan.stages])

    def tested(self, trials: Sequence[Trial]) -> list[Trial]:
        """The competitors that are scored on test data."""
        return self.competitors(trials)[: self.n_finalists]

    def winner(self, trials: Sequence[Trial]) -> Trial | None:
        """The best competitor."""
        return next(iter(self.competitors(trials)), None)

    def needed(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Whose weights must stay: finalists, what is tested and exported, the best of the search stage."""
        best = self._ranked(trials)[:1]
        return frozenset(t.number for t in (*self._finalists(trials), *self.tested(trials), *best))

    def _finals(self, trials: Sequence[Trial]) -> list[Trial]:
        return [] if self.plan.final is None else [t for t in trials if t.stage == self.plan.final.name]

    def _finalists(self, trials: Sequence[Trial]) -> list[Trial]:
        """The best of the search stage, one a point, but for those whose final has ended without a score."""
        if self.plan.final is None:
            return []
        best_of: dict[str, Trial] = {}  # by point, the best first
        for trial in self._candidates(trials):
            best_of.setdefault(point_key(trial.point), trial)
        finals = [t for t in self._finals(trials) if t.is_finished]
        failed = {t.parents[0] for t in finals if t.value(self.metrics[0].name) is None}
        return [t for t in best_of.values() if t.number not in failed][: self.n_finalists]

    def _candidates(self, trials: Sequence[Trial]) -> list[Trial]:
        """The scored trials of the search stage in the order in which they become finalists.

        By the only metric, or as the tuner ranks them; of several objectives the best by the first one, then the front,
        the least crowded first, then who would be on the front without these, and so on, and those without a value for
        each in the end.
        """
        ranked = self._ranked(trials)
        able = pareto.competing(ranked, self.metrics)
        if len(self.metrics) == 1 or not able:
            return ranked if self.by is None else list(self.by(self._searched(trials)))
        in_order = [able[place][0] for place in pareto.best_first([losses for _, losses in able])]
        best = min(able, key=lambda entry: (entry[1][0], entry[0].number))[0]
        return list({trial.number: trial for trial in (best, *in_order, *ranked)}.values())

    def _ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        searched = self._searched(trials)
        return searched.best(self.metrics[0], n=len(searched))

    def _searched(self, trials: Sequence[Trial]) -> Lineage:
        return Lineage.of(t for t in trials if t.stage == self.plan.search.name)
