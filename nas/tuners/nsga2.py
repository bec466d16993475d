"""NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017): evolution towards the Pareto front of several objectives.

Differs: asynchronous. A generation is the next ``population_size`` scored trials in the order learned, so it follows
from the lineage. Each of them may be a parent at once. At the end of a generation the best of parents and children
survive. A child is crossed with probability 0.9 and then mutated at one decision; the paper mutates each decision with
probability one by their number. No point is proposed twice. Children inherit weights.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TypeAlias

from nas.core.errors import SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.pareto import Losses, best_first, losses_of
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int, check_number
from nas.spaces.space import Space, Variation
from nas.tuners.base import STOP, Answer, StartupTrials, Tuner
from nas.tuners.shared.new_points import draw_new_point, needs_initial_point

_TRIES = 16
_Members: TypeAlias = tuple[tuple[int, Losses], ...]


class Nsga2Tuner(Tuner):
    """Selects parents by tournaments of two: the better front wins, then the less crowded trial.

    A crossed child has two parents. Both are donors; the one with more decisions in common comes first.

    Args:
        space: Any space.
        metrics: All count; with a single one the front is the best trials.
        seed: Seeds every ask, together with its number.
        population_size: The number of survivors per generation (the paper: 100; small here, for small budgets).
        crossover_rate: The share of children that have two parents (the paper: 0.9).
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        population_size: int = 16,
        crossover_rate: float = 0.9,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        check_int("tuner.population_size", population_size, 2)
        check_number("tuner.crossover_rate", crossover_rate, 0, 1)
        self.population_size = population_size
        self.startup_trials = StartupTrials(population_size, "population_size")
        self.crossover_rate = crossover_rate
        self._finished: Sequence[Trial] = []  # a cache: the finished trials, and the generations among them
        self._survivors: _Members = ()
        self._children: _Members = ()

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while there are too few trials, then children."""
        rng = self.rng(number)
        survivors, children = self._generations(lineage)
        members = self._best((*survivors, *children))
        if members and not needs_initial_point(lineage, len(members), self.population_size):
            for _ in range(_TRIES):
                parents = self._parents(members, rng)
                try:
                    child = self._child([lineage[parent].point for parent in parents], rng)
                except SpaceExhaustedError:
                    break
                if not lineage.has_point(child.point):
                    return self._proposal(child, parents, lineage)
        point = draw_new_point(self.space, lineage, rng)
        return STOP if point is None else Proposal(point=point, reason="initial point")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the last generation's survivors and later trials. Others are never parents again."""
        survivors, children = self._generations(lineage)
        return [number for number, _ in (*survivors, *children)]

    def _generations(self, lineage: Lineage) -> tuple[_Members, _Members]:
        """Returns the survivors of the last complete generation, and the trials scored since."""
        finished = lineage.finished
        known, self._finished = self._finished, []  # after an exception below, all results are read again
        if not known or finished[: len(known)] != known:
            known, self._survivors, self._children = [], (), ()
        for trial in finished[len(known) :]:
            if (losses := losses_of(trial, self.metrics)) is not None:
                self._add(trial.number, losses)
        self._finished = finished
        return self._survivors, self._children

    def _add(self, number: int, losses: Losses) -> None:
        """Adds a scored trial to the first generation, or to the children of the last."""
        if len(self._survivors) < self.population_size:
            self._survivors = (*self._survivors, (number, losses))
            return
        self._children = (*self._children, (number, losses))
        if len(self._children) == self.population_size:
            self._survivors, self._children = self._best((*self._survivors, *self._children)), ()

    def _best(self, members: _Members) -> _Members:
        """Returns the members of the next population, best first."""
        order = best_first([losses for _, losses in members])
        return tuple(members[place] for place in order[: self.population_size])

    def _parents(self, members: _Members, rng: random.Random) -> list[int]:
        """Returns one or two winners of tournaments of two. ``members`` are sorted, best first."""
        first = min(rng.randrange(len(members)) for _ in range(2))
        if len(members) == 1 or rng.random() >= self.crossover_rate:
            return [members[first][0]]
        others = [place for place in range(len(members)) if place != first]
        second = min(rng.choice(others) for _ in range(2))
        return [members[first][0], members[second][0]]

    def _child(self, points: list[Point], rng: random.Random) -> Variation:
        crossed = self.space.cross(points[0], points[1], rng) if len(points) == 2 else Variation.of(points[0])
        return self.space.vary(crossed, rng)

    def _proposal(self, child: Variation, parents: list[int], lineage: Lineage) -> Proposal:
        own = {(decision.name, decision.answer) for decision in self.space.decisions(child.point)}

        def n_shared(parent: int) -> int:
            theirs = self.space.decisions(lineage[parent].point)
            return sum((decision.name, decision.answer) in own for decision in theirs)

        closest = sorted(parents, key=n_shared, reverse=True)
        shared = {str(parent): n_shared(parent) for parent in closest}
        if closest != parents:
            child = self.space.swap_parents(child)
        crossed = {"crossed": closest} if len(parents) == 2 else {}
        return Proposal(
            point=child.point,
            parents=tuple(closest),
            derivation={**crossed, **self.space.derivation(child), "decisions_of": shared},
            reason=f"child of {' and '.join(shared)}",
        )
