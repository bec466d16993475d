"""Random points without a parent."""

from __future__ import annotations

import random

from nas.core.lineage import Lineage
from nas.core.point import Point
from nas.spaces.space import Space

MAX_DRAWS = 64
MAX_ENUMERATED = 20_000


def draw_new_point(space: Space, lineage: Lineage, rng: random.Random) -> Point | None:
    """Returns a random point that no trial has, or None if none is left.

    In a space of more than 20,000 points a point is repeated if 64 draws gave none that is new.
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
