"""The base class of tuners that propose a list of points."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer
from nas.tuners.shared.donor_tuner import DonorTuner

_PLACE = "place"
"""The key of a point's place in the derivation of its proposal."""


class ListedTuner(DonorTuner):
    """Proposes the points of a list in order; STOP after the last.

    Args:
        space: The space of the points.
        metrics: Used only by ``donor``.
        seed: Not used.
        donor: The rule for donors; see ``DonorChooser``.
    """

    may_be_inner: ClassVar[bool] = False
    reason: ClassVar[str]

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int, donor: str) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        self._finished: Sequence[Trial] = []  # a cache: the finished trials, and the last place among them
        self._last = -1

    @abstractmethod
    def point_at(self, place: int) -> Point | None:
        """Returns the point at a place of the list, or None after the last."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next point that no constraint refuses."""
        last = self._last_place(lineage)
        place = number if last < 0 else last + 1
        while (point := self.point_at(place)) is not None:
            if not lineage.refuses(point):
                return self.propose(lineage, point, self.reason, {_PLACE: place})
            place += 1
        return STOP

    def _last_place(self, lineage: Lineage) -> int:
        """Returns the last place that the proposals of a lineage record, or -1.

        It is recorded because a proxy that refuses a point is known for the number of one proposal only.
        """
        finished = lineage.finished
        if finished[: len(self._finished)] != self._finished:
            self._finished, self._last = [], -1
        self._last = max((self._last, *map(_place_of, finished[len(self._finished) :])))
        self._finished = finished
        return max((self._last, *map(_place_of, lineage.pending)))


def _place_of(trial: Trial) -> int:
    derivation = trial.proposal.derivation
    place = derivation.get(_PLACE) if isinstance(derivation, dict) else None
    return place if type(place) is int else -1
