"""CMA-ES (Hansen 2016, arXiv:1604.00772) with restarts, by the library cmaes.

Each restart doubles the population (Auger and Hansen 2005). Differs: asynchronous. A generation is the next
``population_size`` finished trials, whichever distribution they were drawn from. A choice is drawn as one number per
option; the option with the greatest number is taken.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import GREATEST
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int, check_number
from nas.spaces.space import Space
from nas.tuners.base import Answer, StartupTrials
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.flat import FlatSpace

if TYPE_CHECKING:
    import numpy as np
    from cmaes import CMA

MAX_POPULATION = 10_000
"""The largest population: a record can name a size, and each member takes memory."""
_TRIES = 16


class CmaEsTuner(DonorTuner):
    """Draws from a normal distribution that moves and turns towards the better half of each generation.

    Args:
        space: Any space; best for numbers.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        population_size: The number of trials per generation; None: ``4 + 3 ln n`` for n coordinates.
        sigma: The initial standard deviation, as a share of each range.
        donor: The donor of a trial; see ``DonorChooser``.

    Raises:
        ConfigurationError: cmaes is not installed, or an argument is invalid.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        population_size: int | None = None,
        sigma: float = 0.3,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        if population_size is not None:
            check_int("tuner.population_size", population_size, 3, MAX_POPULATION)
        check_number("tuner.sigma", sigma, 0, 1, excluded=0)
        try:
            import cmaes  # noqa: F401
        except ImportError as error:
            raise ConfigurationError('tuner cmaes needs a library: pip install "heirloom-nas[cmaes]"') from error
        self.sigma = float(sigma)
        self._flat = FlatSpace(space)
        self._n_coordinates = max(self._flat.n_coordinates, 2)  # the library's minimum
        self.population_size = population_size or 4 + int(3 * math.log(self._n_coordinates))
        self.startup_trials = StartupTrials(self.population_size, "population_size")
        self._told: list[tuple[Proposal, float | None]] = []  # a cache: the results told to the distribution
        self._cma: CMA | None = None
        self._n_restarts = 0

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a new point from the present distribution, or a random one."""
        rng = self.rng(number)
        cma = self._distribution(lineage)
        cma.reseed_rng(rng.getrandbits(32))
        for _ in range(_TRIES):
            vector = [float(x) for x in cma.ask()]
            point = self._flat.point(self._flat.answers_of(vector), rng)
            if not lineage.has_point(point):
                return self.propose(lineage, point, "cmaes", {"restart": self._n_restarts, "vector": vector})
        return self.propose_new(lineage, rng, "random")

    def _distribution(self, lineage: Lineage) -> CMA:
        """Returns the distribution after all complete generations, in the order learned."""
        drawn = [t for t in lineage.finished if t.proposal.derivation is not None]
        results = [(t.proposal, t.value(self.metrics[0].name)) for t in drawn]
        if self._cma is None or results[: len(self._told)] != self._told:
            self._told, self._n_restarts = [], 0
            self._cma = self._new_distribution()
        while True:
            end = len(self._told) + self._cma.population_size
            generation = drawn[len(self._told) : end]
            if len(generation) < self._cma.population_size:
                return self._cma
            self._told = results[:end]
            self._cma.tell(self._losses(generation))
            if self._cma.should_stop():
                self._n_restarts += 1
                self._cma = self._new_distribution()

    def _losses(self, generation: Sequence[Trial]) -> list[tuple[np.ndarray, float]]:
        """Returns vectors and losses. CMA-ES uses only their order; failed trials come last."""
        import numpy as np

        metric = self.metrics[0]
        values = [t.value(metric.name) for t in generation]
        losses = [math.inf if value is None else -max(-GREATEST, min(GREATEST, metric.rank(value))) for value in values]
        return [(np.array(t.proposal.derivation["vector"]), loss) for t, loss in zip(generation, losses, strict=True)]

    def _new_distribution(self) -> CMA:
        """Returns a new distribution: in the middle at first, at random after a restart."""
        import numpy as np
        from cmaes import CMA

        rng = random.Random(f"{self.seed}/restart/{self._n_restarts}")
        n = self._n_coordinates
        mean = [0.5] * n if not self._n_restarts else [rng.random() for _ in range(n)]
        return CMA(
            mean=np.array(mean),
            sigma=self.sigma,
            bounds=np.array([[0.0, 1.0]] * n),
            population_size=self.population_size * 2**self._n_restarts,
            seed=0,
        )
