"""The base class of tuners whose points have no parent, from a model or at random."""

from __future__ import annotations

import random
from collections.abc import Collection

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Proposal
from nas.inheritance.donors.chooser import DonorChooser
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.shared.new_points import draw_new_point


class DonorTuner(Tuner):
    """A tuner whose points have no parent; ``donor`` chooses their donor.

    Args:
        space: The space of the points.
        metrics: The first one ranks donors.
        seed: Seeds every ask, together with its number.
        donor: The rule for donors; see ``DonorChooser``.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int, donor: str) -> None:
        super().__init__(space, metrics, seed=seed)
        self.donors = DonorChooser(donor, space, metrics[0])

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trials that ``donor`` may choose."""
        return self.donors.candidates(lineage)

    def propose(self, lineage: Lineage, point: Point, reason: str, derivation: object = None) -> Proposal:
        """Returns the proposal of a point, with its donor."""
        return Proposal(point=point, donors=self.donors.choose(lineage, point), derivation=derivation, reason=reason)

    def propose_new(self, lineage: Lineage, rng: random.Random, reason: str) -> Proposal | Answer:
        """Returns the proposal of a new random point, or STOP if none is left."""
        point = draw_new_point(self.space, lineage, rng)
        return STOP if point is None else self.propose(lineage, point, reason)
