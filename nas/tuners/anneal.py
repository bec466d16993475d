"""Annealing as in Hyperopt (Bergstra et al. 2013, hyperopt.anneal).

Differs: no point is proposed twice, and the neighbor is the donor. Each point is drawn near a good one, nearer as the
number of trials grows. The rank of the good one has a geometric distribution, so most are among the best few.
"""

from __future__ import annotations

import math
import random

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int, check_number
from nas.spaces.domain import Decision, Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer, StartupTrials, Tuner
from nas.tuners.shared.new_points import draw_new_point

_TRIES = 16


class AnnealTuner(Tuner):
    """Draws points near good ones, which become parent and donor.

    Args:
        space: Any space.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        n_initial_points: Random points before the first neighbor.
        mean_rank: The mean rank of the neighbors among the scored trials; 0 takes only the best.
        shrink: The speed at which neighborhoods shrink. Their share of a range is ``1 / (1 + shrink * n)`` after n
            scored trials.
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
        check_int("tuner.n_initial_points", n_initial_points, 1)
        for name, value in (("mean_rank", mean_rank), ("shrink", shrink)):
            check_number(f"tuner.{name}", value, 0)
        self.n_initial_points = n_initial_points
        self.startup_trials = StartupTrials(n_initial_points, "n_initial_points")
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
        """Returns a rank from the geometric distribution with mean ``mean_rank``."""
        if not self.mean_rank:
            return 0
        return int(math.log(1.0 - rng.random()) / math.log(self.mean_rank / (1.0 + self.mean_rank)))

    def _near(self, parent: Trial, share: float, lineage: Lineage, rng: random.Random) -> Point | None:
        """Returns a new point near the parent's, farther away with each try; random if that fails."""
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
    """Returns an answer near the parent's.

    A number is within ``share`` of the range; another option is drawn with probability ``share``.
    """
    if here is None:
        return domain.sample(rng)
    if isinstance(domain, Numeric):
        low = min(max(domain.to_unit(here.answer) - share / 2, 0.0), 1.0 - share)
        return domain.from_unit(low + share * rng.random())
    return domain.sample(rng) if rng.random() < share else here.answer
