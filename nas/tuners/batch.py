"""A fixed list of points, one after the other (NNI's Batch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.spaces.space import Space, check_points
from nas.tuners.shared.listed import ListedTuner


class BatchTuner(ListedTuner):
    """Proposes the given points in order; STOP after the last.

    Args:
        space: The space of the points.
        metrics: Used only by ``donor``.
        seed: Not used.
        points: The points to propose.
        donor: The donor of a trial; see ``DonorChooser``.

    Raises:
        ConfigurationError: there is no point, or one is not in the space.
    """

    reason: ClassVar[str] = "batch"

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        points: Sequence[Mapping[str, Any]] = (),
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        if not points:
            raise ConfigurationError("tuner.points must list at least one point: tuner.points=[{width: 16, depth: 2}]")
        self.points = [dict(point) for point in points]
        check_points("tuner.points", self.points, space)

    def point_at(self, place: int) -> Point | None:
        """Returns the point at a place of the list, or None after the last."""
        return self.points[place] if place < len(self.points) else None
