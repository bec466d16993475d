"""Regularised evolution (Real et al. 2019, arXiv:1802.01548, Alg. 1). Differs: asynchronous; children inherit weights.

The population is the last ``population_size`` scored trials in the order learned: the oldest dies, however good.
A failed trial is no member: founders are drawn until the population is full, so failures never shrink it.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from nas.errors import ConfigurationError, SpaceExhaustedError
from nas.lineage import Lineage
from nas.metric import Metric
from nas.spaces.base import Space
from nas.trial import Proposal, Trial
from nas.tuners.base import Answer, Tuner
from nas.tuners.random import draw_new_point


class EvolutionTuner(Tuner):
    """Mutates the best of a random sample of the living; the parent is the donor of the child's weights.

    Args:
        space: Where points lie; gives mutation.
        metrics: The first decides the tournament.
        seed: Seeds every ask together with its number.
        population_size: How many trials live at once (the paper: 100; small here, for budgets of tens of trials).
        sample_size: How many of them enter the tournament (the paper: 25).
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        population_size: int = 8,
        sample_size: int = 3,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        for name, value in (("population_size", population_size), ("sample_size", sample_size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigurationError(f"{name} ({value!r}) must be a whole number")
        if population_size < 1:
            raise ConfigurationError(f"population_size ({population_size}) must be at least 1")
        if not 1 <= sample_size <= population_size:
            raise ConfigurationError(
                f"sample_size ({sample_size}) must lie between 1 and population_size ({population_size})"
            )
        self.population_size = population_size
        self.sample_size = sample_size

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """A founder while the population is not full, else a mutated child."""
        rng = self.rng(number)
        population = self._population(lineage)
        if not population or self._wants_founders(lineage, len(population)):
            point = draw_new_point(self.space, lineage, rng)
            return Proposal(point=self.space.sample(rng) if point is None else point, reason="founder")
        metric = self.metrics[0]
        sample = rng.sample(population, min(self.sample_size, len(population)))
        parent = max(sample, key=lambda t: (metric.rank(t.metrics[metric.name]), t.index))
        try:
            point = self.space.mutate(parent.point, rng)
        except SpaceExhaustedError:
            point = parent.point
        changed = sorted(k for k in {*point, *parent.point} if point.get(k) != parent.point.get(k))
        return Proposal(
            point=point,
            parents=(parent.number,),
            derivation={"mutated": changed},
            reason=f"child of {parent.number}",
        )

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """The living: who has died is no parent again."""
        return [trial.number for trial in self._population(lineage)]

    def _wants_founders(self, lineage: Lineage, n_living: int) -> bool:
        """Whether the population is not full, counting the founders that still run."""
        lacking = self.population_size - n_living
        return lacking > 0 and sum(not trial.parents for trial in lineage.pending) < lacking

    def _population(self, lineage: Lineage) -> list[Trial]:
        name = self.metrics[0].name
        living = (t for t in lineage.newest() if t.value(name) is not None)
        return list(islice(living, self.population_size))
