"""Points as vectors of their distances to landmarks, for spaces that only define a distance.

Every kernel on such vectors is positive definite; the exponential of a distance need not be. Two points' coordinates
differ by no more than their distance, so near points have near vectors. Bourgain (1985, doi:10.1007/BF02776078) embeds
metric spaces in this way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nas.core.point import Point, point_key
from nas.spaces.space import Space

if TYPE_CHECKING:
    import numpy as np

_MAX_CACHED = 1 << 17


class Distances:
    """A cache of the distances between points of a space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._features: dict[str, Any] = {}  # caches: by the points' keys
        self._known: dict[tuple[str, str], float] = {}

    def add(self, point: Point) -> str:
        """Adds a point, and returns its key for ``between``."""
        key = point_key(point)
        if key not in self._features:
            self._features[key] = self._space.features(point)
        return key

    def between(self, first: str, second: str) -> float:
        """Returns the distance of two added points, by key."""
        pair = (first, second)
        if pair not in self._known:
            self._known[pair] = self._space.feature_distance(self._features[first], self._features[second])
        return self._known[pair]

    def trim(self) -> None:
        """Clears a large cache; its points must be added again."""
        if len(self._known) > _MAX_CACHED:
            self._known.clear()
            self._features.clear()


class Landmarks:
    """Reference points that turn other points into vectors.

    Args:
        points: The landmarks, one or more.
        distances: The distances of their space.
    """

    def __init__(self, points: Iterable[Point], distances: Distances) -> None:
        distances.trim()
        self._distances = distances
        self._keys = [distances.add(point) for point in points]
        apart = [distances.between(one, other) for n, one in enumerate(self._keys) for other in self._keys[:n]]
        self._unit = statistics.median([d for d in apart if d > 0] or [1.0]) * math.sqrt(len(self._keys))

    def vectors(self, points: Iterable[Point]) -> np.ndarray:
        """Returns ``(n, landmarks)``, scaled so that landmarks are about 1 apart."""
        import numpy as np

        keys = [self._distances.add(point) for point in points]
        rows = [[self._distances.between(mark, key) / self._unit for mark in self._keys] for key in keys]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self._keys))
