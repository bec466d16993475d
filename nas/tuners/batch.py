"""A fixed list of points, one after the other (NNI's Batch)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nas.errors import ConfigurationError, PointError
from nas.lineage import Lineage
from nas.metric import Metric
from nas.spaces.base import Space
from nas.trial import Proposal
from nas.tuners.base import STOP, Answer, Tuner


class BatchTuner(Tuner):
    """Proposes the given points in order; STOP after the last.

    Args:
        space: Where the points must lie.
        metrics: Of no concern.
        seed: Of no concern.
        points: What to try.

    Raises:
        ConfigurationError: there is none, or one lies outside the space.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        points: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        if not points:
            raise ConfigurationError("tuner.points must list at least one point: tuner.points=[{width: 16, depth: 2}]")
        self.points = [dict(point) for point in points]
        for place, point in enumerate(self.points):
            try:
                space.validate(point)
            except PointError as error:
                raise ConfigurationError(f"tuner.points[{place}] is no point of the space: {error}") from error

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """The ``number``-th point of the list, of those that no constraint refuses."""
        allowed = [point for point in self.points if not lineage.refuses(point)]
        return Proposal(point=allowed[number], reason="batch") if number < len(allowed) else STOP

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """None: no proposal has a parent or a donor."""
        return ()
