"""A tuner that begins with given points, and whose first trials take given weights (`nas.search.initial_points`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from nas.core.lineage import Lineage
from nas.core.trial import Proposal, Trial
from nas.search.initial_points import SearchInit
from nas.tuners.base import Answer, Tuner


class InitialTuner(Tuner):
    """Proposes the founders' points, then what another tuner answers, which sees them in the lineage.

    Args:
        tuner: Asked from its own number 0 on when all points are proposed.
        founders: Their points, and the donor of every trial that the tuner gives none.
    """

    def __init__(self, tuner: Tuner, init: SearchInit) -> None:
        super().__init__(tuner.space, tuner.metrics, seed=tuner.seed)
        self.tuner = tuner
        self.init = init

    @property
    def shown_name(self) -> str:
        """The tuner's."""
        return self.tuner.shown_name

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a given point, or the tuner's answer."""
        points = self.init.points
        if number < len(points):
            return self._given(self.tuner.given(points[number], lineage, number))
        answer = self.tuner.ask(lineage, number - len(points), job)
        return self._given(answer) if isinstance(answer, Proposal) else answer

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Whom the tuner may name."""
        return self.tuner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """As the tuner ranks them."""
        return self.tuner.ranked(lineage)

    def _given(self, proposal: Proposal) -> Proposal:
        """Returns the proposal, with the founders' weights where it has no donor."""
        weights = self.init.weights
        return proposal if weights is None or proposal.weight_donors else replace(proposal, donors=(weights,))
