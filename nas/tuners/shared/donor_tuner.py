"""Whose weights a trial takes that was not derived from another, for tuners that draw from a model or at random."""

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
    """A tuner that derives no point from another; ``donor`` says whose weights a point takes.

    Args:
        space: Where points lie.
        metrics: The first one makes a trial better.
        seed: Seeds every ask together with its number.
        donor: See ``DonorChooser``.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int, donor: str) -> None:
        super().__init__(space, metrics, seed=seed)
        self.donors = DonorChooser(donor, space, metrics[0])

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Whom ``donor`` may name."""
        return self.donors.candidates(lineage)

    def propose(self, lineage: Lineage, point: Point, reason: str, derivation: object = None) -> Proposal:
        """Returns the point, with its donor."""
        return Proposal(point=point, donors=self.donors.choose(lineage, point), derivation=derivation, reason=reason)

    def propose_new(self, lineage: Lineage, rng: random.Random, reason: str) -> Proposal | Answer:
        """Returns a random point that no trial has, with its donor; STOP where the space has none left."""
        point = draw_new_point(self.space, lineage, rng)
        return STOP if point is None else self.propose(lineage, point, reason)
