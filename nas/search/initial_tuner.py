"""A tuner that begins with initial points and weights (`nas.search.search_init`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from nas.core.lineage import Lineage
from nas.core.trial import Proposal, Trial
from nas.search.search_init import SearchInit
from nas.tuners.base import Answer, Tuner


class InitialTuner(Tuner):
    """Proposes the initial points, then the proposals of another tuner.

    Args:
        tuner: The other tuner, which sees the first trials in its lineage. Its numbers start at 0 after the last
            initial point.
        init: The initial points, and the initial weights: the donor of trials to which the tuner gives none.
    """

    def __init__(self, tuner: Tuner, init: SearchInit) -> None:
        super().__init__(tuner.space, tuner.metrics, seed=tuner.seed)
        self.tuner = tuner
        self.startup_trials = tuner.startup_trials
        self.init = init

    @property
    def shown_name(self) -> str:
        """The name of the other tuner."""
        return self.tuner.shown_name

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point, or the other tuner's answer."""
        points = self.init.points
        if number < len(points):
            return self._with_weights(self.tuner.propose_given(points[number], lineage, number))
        answer = self.tuner.ask(lineage, number - len(points), job)
        return self._with_weights(answer) if isinstance(answer, Proposal) else answer

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trials that the other tuner may name as donors."""
        return self.tuner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the trials as the other tuner ranks them."""
        return self.tuner.ranked(lineage)

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the other tuner's reason."""
        return self.tuner.stop_reason(lineage)

    def _with_weights(self, proposal: Proposal) -> Proposal:
        """Returns the proposal, with the initial weights as its donor if it has none."""
        weights = self.init.weights
        return proposal if weights is None or proposal.weight_donors else replace(proposal, donors=(weights,))
