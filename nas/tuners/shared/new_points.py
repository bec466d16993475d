"""Points that are derived from no other."""

from __future__ import annotations

import random

from nas.core.lineage import Lineage
from nas.core.point import Point
from nas.spaces.space import Space

MAX_DRAWS = 64
MAX_ENUMERATED = 20_000


def draw_new_point(space: Space, lineage: Lineage, rng: random.Random) -> Point | None:
    """Returns a point that no trial of the lineage has; None where the space has none left.

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


def needs_initial_point(lineage: Lineage, n_members: int, population_size: int) -> bool:
    """Returns whether a population is not full, counting the initial points that still run."""
    lacking = population_size - n_members
    return lacking > 0 and sum(not trial.parents for trial in lineage.pending) < lacking
