"""A fixed list of points, one after the other (NNI's Batch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal
from nas.spaces.space import Space, check_points
from nas.tuners.base import STOP, Answer
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.listed import PLACE, next_place


class BatchTuner(DonorTuner):
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

    has_fixed_order: ClassVar[bool] = True

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

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next point that no constraint refuses."""
        for place in range(next_place(lineage, number), len(self.points)):
            if not lineage.refuses(self.points[place]):
                return self.propose(lineage, self.points[place], "batch", {PLACE: place})
        return STOP
