"""Grid search over every combination of values; ranges have equally spaced values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.validation import check_int
from nas.spaces.domain import Domain
from nas.spaces.space import Space
from nas.tuners.shared.listed import ListedTuner

RESOLUTION = 5
"""The default resolution."""
MAX_RESOLUTION = 10_000
"""The largest resolution: a record can name one, and each value takes memory."""


class GridTuner(ListedTuner):
    """Proposes the points of a grid in order, the last parameter fastest; STOP after the last.

    Args:
        space: Any space. All options are used, and all whole numbers of a range with at most ``resolution`` of them.
        metrics: Used only by ``donor``.
        seed: Not used.
        resolution: The number of values of a range, including both ends, equally spaced on its scale.
        donor: The donor of a trial; see ``DonorChooser``.
    """

    reason: ClassVar[str] = "grid"

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        resolution: int = RESOLUTION,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        check_int("tuner.resolution", resolution, 1, MAX_RESOLUTION)
        self.resolution = resolution
        self._points: list[Point] = []  # a cache: the first points of the grid
        self._rest = grid(space, resolution)

    def point_at(self, place: int) -> Point | None:
        """Returns the point at a place of the grid, or None after the last."""
        while len(self._points) <= place:
            if (point := next(self._rest, None)) is None:
                return None
            self._points.append(point)
        return self._points[place]


def grid(space: Space, resolution: int) -> Iterator[Point]:
    """Yields every combination of values; a range has at most ``resolution``."""
    depth = 0
    path: list[tuple[int, int]] = []  # by decision: index of its value, number of its values

    def ask(name: str, domain: Domain) -> float:
        nonlocal depth
        values = domain.grid(resolution)
        if depth == len(path):
            path.append((0, len(values)))
        depth += 1
        return values[path[depth - 1][0]]

    while True:
        depth = 0
        yield space.decide(ask)
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1] = (path[-1][0] + 1, path[-1][1])
