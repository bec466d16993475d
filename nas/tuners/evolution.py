"""Regularized evolution (Real et al. 2019, arXiv:1802.01548, Alg. 1).

Differs: asynchronous; children inherit weights. A tournament has no member twice. The population is the last
``population_size`` scored trials in the order learned: the oldest is replaced, however good. By default it grows with
the search. A failed trial is not a member. Initial points are drawn until the population is full, so failures never
shrink it.

Two other replacements are options. With ``replacement=worst`` the worst member is replaced. With ``replacement=loser``
and ``sample_size=2``, NNI's naive tournament, it is the loser of each tournament.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Literal, get_args

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Donor, Proposal, Trial
from nas.core.validation import check_choice, check_int, check_number
from nas.inheritance.donors.chooser import DonorChooser
from nas.spaces.space import Space, Variation
from nas.tuners.base import Answer, StartupTrials, Tuner
from nas.tuners.shared.new_points import draw_new_point, needs_initial_point

Replacement = Literal["oldest", "worst", "loser"]
First = Literal["parent", "best_donor"]
FIXED_SIZE = 8
"""The size of a population that does not grow."""
FIRST_SIZE, TRIALS_PER_MEMBER, MAX_SIZE = 5, 8, 100
"""A population that grows: first size, scored trials for each member, last size."""
MIN_SAMPLE, SAMPLE_SHARE = 3, 0.4
"""The size of a tournament, and its share of the population."""


class EvolutionTuner(Tuner):
    """Mutates the best of a random sample of the population; the parent is the child's donor.

    In a space of network graphs a proposal names the operation, which is replayed on the donor's weights.

    Args:
        space: Any space; it mutates and crosses points.
        metrics: The first one decides tournaments.
        seed: Seeds every ask, together with its number.
        population_size: Number of members (the paper: 100). None: it grows with the search, as an eighth of the scored
            trials from 5 to 100. With another ``replacement`` than ``oldest`` it is 8.
        sample_size: Number of members in a tournament (the paper: 25). None: two fifths of the population, at least 3.
            A sample is at most the population, also while that grows.
        crossover: Probability that a child has two parents, the winners of two tournaments. Each decision comes from
            one of them, and both are donors, the better first. A point that a trial has already is mutated as well.
        replacement: The trial that makes room: the ``oldest``, the ``worst``, or the ``loser`` of each tournament.
        donor: The first donor of a child: ``parent``, or ``best_donor``, the trial whose architecture has most in
            common with the child's (``nas.inheritance.donors.lineage_donors``); the parents come after it.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        population_size: int | None = None,
        sample_size: int | None = None,
        crossover: float = 0.0,
        replacement: str = "oldest",
        donor: str = "parent",
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.grows = population_size is None and replacement == "oldest"
        if population_size is None:
            population_size = FIRST_SIZE if self.grows else FIXED_SIZE
        check_int("tuner.population_size", population_size, 1)
        if sample_size is not None:
            check_int("tuner.sample_size", sample_size, 1)
            if not self.grows and sample_size > population_size:
                raise ConfigurationError(
                    f"tuner.sample_size={sample_size}: must be at most tuner.population_size ({population_size})"
                )
        check_number("tuner.crossover", crossover, 0, 1)
        check_choice("tuner.replacement", replacement, get_args(Replacement))
        for name, size in (("population_size", population_size), ("sample_size", sample_size)):
            if replacement == "loser" and size is not None and size < 2:
                raise ConfigurationError(f"tuner.{name}={size}: must be 2 or more with tuner.replacement=loser")
        self.population_size = population_size
        self.startup_trials = StartupTrials(population_size, "population_size")
        self.sample_size = sample_size
        self.crossover = crossover
        check_choice("tuner.donor", donor, get_args(First))
        self.replacement = replacement
        self.donors = DonorChooser("none" if donor == "parent" else donor, space, metrics[0])

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point until the population is full, then children of members."""
        rng = self.rng(number)
        population = self._population(lineage)
        if not population or self._has_room(lineage, len(population)):
            point = draw_new_point(self.space, lineage, rng)
            return Proposal(point=self.space.sample(rng) if point is None else point, reason="initial point")
        sample = self._tournament(population, rng)
        parent = sample[0]
        replaced = {"replaced": sample[-1].number} if self.replacement == "loser" and len(sample) > 1 else {}
        if self.crossover and len(population) > 1 and rng.random() < self.crossover:
            other = self._tournament([trial for trial in population if trial.number != parent.number], rng)[0]
            return self._crossed(sorted((parent, other), key=self._merit, reverse=True), replaced, lineage, rng)
        child = self._mutated(Variation.of(parent.point), rng)
        return Proposal(
            point=child.point,
            parents=(parent.number,),
            donors=self._donors(lineage, child.point, (parent.number,)),
            derivation={**self.space.derivation(child), **replaced},
            reason=f"child of {parent.number}",
        )

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the population, and the trials that ``donor`` may choose. Removed members are never parents again."""
        return {trial.number for trial in self._population(lineage)} | {*self.donors.candidates(lineage)}

    def _donors(self, lineage: Lineage, point: Point, parents: tuple[int, ...]) -> tuple[Donor, ...] | None:
        """Returns a child's donors, or None for its parents."""
        first = [donor for donor in self.donors.choose(lineage, point) if donor not in parents]
        return (*first, *parents) if first else None

    def _tournament(self, population: Sequence[Trial], rng: random.Random) -> list[Trial]:
        """Returns a random sample of the population, best first."""
        share = max(MIN_SAMPLE, round(SAMPLE_SHARE * len(population)))
        sample = rng.sample(population, min(self.sample_size or share, len(population)))
        return sorted(sample, key=self._merit, reverse=True)

    def _merit(self, trial: Trial) -> tuple[float, int]:
        metric = self.metrics[0]
        return metric.rank(trial.metrics[metric.name]), trial.index

    def _crossed(
        self, parents: Sequence[Trial], replaced: dict[str, Any], lineage: Lineage, rng: random.Random
    ) -> Proposal:
        """Returns a child of two parents."""
        crossed = self.space.cross(parents[0].point, parents[1].point, rng)
        child = self._mutated(crossed, rng) if lineage.has_point(crossed.point) else crossed
        numbers = tuple(parent.number for parent in parents)
        return Proposal(
            point=child.point,
            parents=numbers,
            donors=self._donors(lineage, child.point, numbers),
            derivation={"crossed": list(numbers), **self.space.derivation(child), **replaced},
            reason=f"child of {numbers[0]} and {numbers[1]}",
        )

    def _mutated(self, variation: Variation, rng: random.Random) -> Variation:
        try:
            return self.space.vary(variation, rng)
        except SpaceExhaustedError:
            return variation

    def _has_room(self, lineage: Lineage, n_members: int) -> bool:
        """Returns whether the population is not full, counting what still runs."""
        if self.replacement == "loser":  # it is removed when its child is proposed, not when that finishes
            return self.population_size - n_members > len(lineage.pending)
        return needs_initial_point(lineage, n_members, self.population_size)

    def _population(self, lineage: Lineage) -> list[Trial]:
        metric = self.metrics[0]
        if self.replacement == "worst":
            return list(islice(lineage.ranked(metric), self.population_size))
        if self.replacement == "oldest":
            n_grown = min(MAX_SIZE, lineage.n_scored(metric) // TRIALS_PER_MEMBER) if self.grows else 0
            return lineage.newest_scored(metric, max(self.population_size, n_grown))
        replaced = {d.get("replaced") for t in lineage if isinstance(d := t.proposal.derivation, dict)}
        return [trial for trial in lineage.newest_scored(metric, len(lineage)) if trial.number not in replaced]
