"""Random search (Bergstra and Bengio 2012, JMLR 13). Differs: no point is proposed twice while another is left."""

from __future__ import annotations

import random
from collections.abc import Collection

from nas.lineage import Lineage
from nas.spaces.base import Point, Space
from nas.trial import Proposal
from nas.tuners.base import STOP, Answer, Tuner

MAX_DRAWS = 64
MAX_ENUMERATED = 20_000


class RandomTuner(Tuner):
    """Draws points from the space; STOP when a finite space has none left."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """A point that no trial has, with no parent."""
        point = draw_new_point(self.space, lineage, self.rng(number))
        return STOP if point is None else Proposal(point=point, reason="random")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """None: no proposal has a parent or a donor."""
        return ()


def draw_new_point(space: Space, lineage: Lineage, rng: random.Random) -> Point | None:
    """A point that no trial of the lineage has; None where the space has none left.

    In a space too large to enumerate (over 20,000 points) 64 draws that were all seen end in a repeated point.
    """
    point = space.sample(rng)
    for _ in range(MAX_DRAWS):
        if not lineage.has_point(point):
            return point
        point = space.sample(rng)
    n_points = space.n_points
    if n_points is None or n_points > MAX_ENUMERATED:
        return point
    left = [point for point in space.points() if not lineage.has_point(point)]
    return rng.choice(left) if left else None


def wants_founder(lineage: Lineage, n_living: int, population_size: int) -> bool:
    """Whether a population is not full, counting the founders that still run."""
    lacking = population_size - n_living
    return lacking > 0 and sum(not trial.parents for trial in lineage.pending) < lacking
