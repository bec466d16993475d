"""NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017): evolution towards the front of several objectives.

Differs: asynchronous. A generation is the next ``population_size`` scored trials in the order learned, so that it
follows from the lineage; each of them may be a parent at once, and at the generation's end the best of parents and
children live on. A child is crossed with probability 0.9 and then changed at one decision, where the paper changes each
with probability one by their number. No point is proposed twice. Children inherit weights.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TypeAlias

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.pareto import Losses, best_first, losses_of
from nas.core.point import Point
from nas.core.trial import Proposal
from nas.core.validation import check_int
from nas.spaces.space import Space, Variation
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.shared.new_points import draw_new_point, needs_initial_point

_TRIES = 16
_Members: TypeAlias = tuple[tuple[int, Losses], ...]


class Nsga2Tuner(Tuner):
    """Breeds from tournaments of two, which the better front wins, or, on one front, the less crowded.

    A child has two parents where it was crossed, that first of which it has more; both are donors of its weights.

    Args:
        space: Any.
        metrics: All of them count; of a single one the best are the front.
        seed: Seeds every ask together with its number.
        population_size: How many live from one generation to the next (the paper: 100; small here, for small budgets).
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
        check_int("population_size", population_size, 2)
        rate = crossover_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ConfigurationError(f"crossover_rate ({rate!r}) must be a number between 0 and 1")
        self.population_size = population_size
        self.crossover_rate = crossover_rate
        self._survivors: dict[tuple[_Members, _Members], _Members] = {}  # a cache

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while there are too few trials, else a child; STOP if no point is left."""
        rng = self.rng(number)
        elders, children = self._generations(lineage)
        members = self._best((*elders, *children))
        if members and not needs_initial_point(lineage, len(members), self.population_size):
            for _ in range(_TRIES):
                parents = self._parents(members, rng)
                try:
                    child = self._child([lineage[parent].point for parent in parents], rng)
                except SpaceExhaustedError:
                    break
                if not lineage.has_point(child.point):
                    return self._proposal(child, parents, lineage)
        fresh = draw_new_point(self.space, lineage, rng)
        return STOP if fresh is None else Proposal(point=fresh, reason="initial point")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the last generation's survivors and later trials. Others are never parents again."""
        elders, children = self._generations(lineage)
        return [number for number, _ in (*elders, *children)]

    def _generations(self, lineage: Lineage) -> tuple[_Members, _Members]:
        """Returns the survivors of the last complete generation, and the trials scored since."""
        scored = ((trial.number, losses_of(trial, self.metrics)) for trial in lineage.finished)
        members = tuple((number, losses) for number, losses in scored if losses is not None)
        size = self.population_size
        elders = members[:size]
        n_whole = len(members) // size * size
        for start in range(size, n_whole, size):
            generation = members[start : start + size]
            if (elders, generation) not in self._survivors:
                self._survivors[elders, generation] = self._best((*elders, *generation))
            elders = self._survivors[elders, generation]
        return elders, members[max(n_whole, size) :]

    def _best(self, members: _Members) -> _Members:
        """Returns the members of the next population, best first."""
        order = best_first([losses for _, losses in members])
        return tuple(members[place] for place in order[: self.population_size])

    def _parents(self, members: _Members, rng: random.Random) -> list[int]:
        """Returns one or two parents, each the winner of a tournament of two. ``members`` are sorted, best first."""
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

        closest_names = sorted(parents, key=n_shared, reverse=True)
        shared = {str(parent): n_shared(parent) for parent in closest_names}
        if closest_names != parents:
            child = self.space.swap_parents(child)
        crossed = {"crossed": closest_names} if len(parents) == 2 else {}
        return Proposal(
            point=child.point,
            parents=tuple(closest_names),
            derivation={**crossed, **self.space.derivation(child), "decisions_of": shared},
            reason=f"child of {' and '.join(shared)}",
        )
