"""A tuner that begins with initial points and weights (`nas.search.search_init`)."""

from __future__ import annotations

from dataclasses import replace

from nas.core.lineage import Lineage
from nas.core.trial import Proposal
from nas.search.search_init import SearchInit
from nas.tuners.base import Answer, Tuner
from nas.tuners.shared.wrapper import WrapperTuner


class InitialTuner(WrapperTuner):
    """Proposes the initial points, then the proposals of another tuner.

    Args:
        inner: The other tuner, which sees the first trials in its lineage. Its numbers start at 0 after the last
            initial point.
        init: The initial points, and the initial weights: the donor of trials to which the tuner gives none.
    """

    def __init__(self, inner: Tuner, init: SearchInit) -> None:
        super().__init__(inner)
        self.init = init

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point, or the other tuner's answer."""
        points = self.init.points
        if number < len(points):
            return self._with_weights(self.inner.propose_given(points[number], lineage, number))
        answer = self.inner.ask(lineage, number - len(points), job)
        return self._with_weights(answer) if isinstance(answer, Proposal) else answer

    def check_trials(self, n_trials: int) -> None:
        """Passes the number of trials on, unless an initial point can win."""
        if not self.init.points:
            self.inner.check_trials(n_trials)

    def _with_weights(self, proposal: Proposal) -> Proposal:
        """Returns the proposal, with the initial weights as its donor if it has none."""
        weights = self.init.weights
        return proposal if weights is None or proposal.weight_donors else replace(proposal, donors=(weights,))
