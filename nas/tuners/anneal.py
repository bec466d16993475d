"""Annealing as in Hyperopt (Bergstra et al. 2013, hyperopt.anneal). Differs: no point twice; the neighbor is a donor.

Each point is drawn near a good one, the nearer the more trials there are. Which good one: the rank is drawn from a
geometric distribution, so that most are neighbors of the best few.
"""

from __future__ import annotations

import math
import random

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int
from nas.spaces.domain import Decision, Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.shared.new_points import draw_new_point

_TRIES = 16


class AnnealTuner(Tuner):
    """Draws near good points; the neighbor is the parent, and the donor of the weights.

    Args:
        space: Any.
        metrics: The first ranks.
        seed: Seeds every ask together with its number.
        n_initial_points: Random points before the first neighbor.
        mean_rank: Of the neighbors among the scored trials, on average; 0 would be the best alone.
        shrink: How fast neighborhoods get smaller: a range's share is ``1 / (1 + shrink * n)`` after n scored trials.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_initial_points: int = 5,
        mean_rank: float = 2.0,
        shrink: float = 0.1,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        check_int("n_initial_points", n_initial_points, 1)
        for name, value in (("mean_rank", mean_rank), ("shrink", shrink)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} ({value!r}) must be a number of at least 0")
        self.n_initial_points = n_initial_points
        self.mean_rank = mean_rank
        self.shrink = shrink

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while there are few results, else a neighbor of a good trial."""
        rng = self.rng(number)
        scored = lineage.ranked(self.metrics[0])
        if len(scored) < self.n_initial_points:
            point = draw_new_point(self.space, lineage, rng)
            return STOP if point is None else Proposal(point=point, reason="initial point")
        parent = scored[min(self._rank(rng), len(scored) - 1)]
        near = self._near(parent, 1.0 / (1.0 + self.shrink * len(scored)), lineage, rng)
        if near is None:
            return STOP
        return Proposal(point=near, parents=(parent.number,), reason=f"near {parent.number}")

    def _rank(self, rng: random.Random) -> int:
        """From the geometric distribution of this mean."""
        if not self.mean_rank:
            return 0
        return int(math.log(1.0 - rng.random()) / math.log(self.mean_rank / (1.0 + self.mean_rank)))

    def _near(self, parent: Trial, share: float, lineage: Lineage, rng: random.Random) -> Point | None:
        """Returns a point near the parent's that no trial has; farther and farther away, and anywhere in the end."""
        here = {decision.name: decision for decision in self.space.decisions(parent.point)}

        def step(name: str, domain: Domain) -> float:
            return _step(here.get(name), domain, share, rng)

        for _ in range(_TRIES):
            point = self.space.decide(step)
            if point_key(point) != point_key(parent.point) and not lineage.has_point(point):
                return point
            share = min(1.0, share * 1.5)
        return draw_new_point(self.space, lineage, rng)


def _step(here: Decision | None, domain: Domain, share: float, rng: random.Random) -> float:
    """Returns an answer near the parent's: within this share of the range, or another option with this probability."""
    if here is None:
        return domain.sample(rng)
    if isinstance(domain, Numeric):
        low = min(max(domain.to_unit(here.answer) - share / 2, 0.0), 1.0 - share)
        return domain.from_unit(low + share * rng.random())
    return domain.sample(rng) if rng.random() < share else here.answer
