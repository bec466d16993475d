"""Random search (Bergstra and Bengio 2012, JMLR 13).

Differs: no point is proposed twice while another is left.
"""

from __future__ import annotations

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal
from nas.spaces.space import Space
from nas.tuners.base import Answer
from nas.tuners.shared.donor_tuner import DonorTuner


class RandomTuner(DonorTuner):
    """Draws points from the space; STOP when a finite space has none left.

    Args:
        space: Any space.
        metrics: Used only by ``donor``.
        seed: Seeds every ask, together with its number.
        donor: The donor of a trial; see ``DonorChooser``.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0, donor: str = "none") -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a new random point without a parent."""
        return self.propose_new(lineage, self.rng(number), "random")
