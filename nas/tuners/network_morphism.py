"""Network morphism guided by Bayesian optimization (Jin et al. 2019, arXiv:1806.10282, "Auto-Keras", section 3).

A Gaussian process models the scores over the edit distance between networks. A tree-structured search over morphisms
looks for the child with the greatest upper confidence bound. The proposal names the trial where that search started and
all operations from there, so the child starts with its parent's function.

Differs:

* A point is described by its distances to measured ones (`nas.tuners.shared.landmarks`) and by its generation. A child
  that continues from weights trained over many generations scores higher than the same network trained from scratch.
* A network of the tree is expanded by some random moves at a time, not by all.
* Asynchronous: pending trials count with their predicted scores.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nas.core.errors import SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int, check_number
from nas.spaces.space import Space, Variation
from nas.tuners.base import STOP, Answer, StartupTrials, Tuner
from nas.tuners.shared.gaussian import ScoreModel, check_max_points
from nas.tuners.shared.landmarks import Distances, Landmarks
from nas.tuners.shared.new_points import draw_new_point

if TYPE_CHECKING:
    import numpy as np

_N_MOVES = 8
"""The number of children of one network that are evaluated together."""
_COOLING = 0.9
_N_LANDMARKS = 16
_AGE_UNIT = 0.5
"""The distance between a generation and twice that generation; landmarks are 1 apart."""


class _Candidate(NamedTuple):
    """A possible proposal: its upper bound, its parent, and the variation of the parent's point."""

    bound: float
    parent: Trial
    variation: Variation
    n_steps: int


class NetworkMorphismTuner(Tuner):
    """Proposes children of measured trials by the upper confidence bound; the parent is the donor.

    Args:
        space: Any space; best for network graphs (`nas.spaces.graphs.space`), where a child starts with its parent's
            function.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        n_initial_points: Random points before the first child.
        n_candidates: The number of children evaluated per proposal; the best is proposed.
        max_steps: The most operations from a parent to its child.
        beta: Standard deviations above the mean in the upper bound (the paper: 2.5).
        max_points: The most trials in the model: their best half and newest half. At least twice ``n_initial_points``.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_initial_points: int = 4,
        n_candidates: int = 96,
        max_steps: int = 3,
        beta: float = 2.5,
        max_points: int = 300,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        for name, value, least in (
            ("n_initial_points", n_initial_points, 2),
            ("n_candidates", n_candidates, 1),
            ("max_steps", max_steps, 1),
        ):
            check_int(f"tuner.{name}", value, least)
        check_max_points(max_points, n_initial_points)
        check_number("tuner.beta", beta, 0)
        self.n_initial_points = n_initial_points
        self.startup_trials = StartupTrials(n_initial_points, "n_initial_points")
        self.n_candidates = n_candidates
        self.max_steps = max_steps
        self.beta = beta
        self.max_points = max_points
        self._distances = Distances(space)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while few have scores or run, then the best child."""
        rng = self.rng(number)
        known = lineage.best_and_newest(self.metrics[0], self.max_points)
        n_coming = sum(not trial.parents for trial in lineage.pending)
        if len(known) >= 2 and len(known) + n_coming >= self.n_initial_points:
            model = _Model(known, lineage, self._distances, self.metrics[0])
            if (found := self._most_promising(model, known, lineage, rng)) is not None:
                return Proposal(
                    point=found.variation.point,
                    parents=(found.parent.number,),
                    derivation=self.space.derivation(found.variation),
                    reason=f"{found.n_steps} {'step' if found.n_steps == 1 else 'steps'} from {found.parent.number}",
                )
        point = draw_new_point(self.space, lineage, rng)
        return STOP if point is None else Proposal(point=point, reason="initial point")

    def _most_promising(
        self, model: _Model, known: Sequence[Trial], lineage: Lineage, rng: random.Random
    ) -> _Candidate | None:
        """Returns the best new child of the tree-structured search, or None."""
        start = [Variation.of(trial.point) for trial in known]
        bounds = model.upper_bounds(start, known, self.beta)
        best_bound = max(bounds)
        ties = itertools.count()
        tree = [
            (-bound, next(ties), _Candidate(bound, trial, variation, 0))
            for bound, trial, variation in zip(bounds, known, start, strict=True)
        ]
        heapq.heapify(tree)
        seen, best, n_evaluated, temperature = set[str](), None, 0, model.spread
        while tree and n_evaluated < self.n_candidates:
            *_, node = heapq.heappop(tree)
            n_evaluated += _N_MOVES
            for child in self._children(node, model, lineage, seen, rng):
                if best is None or child.bound > best.bound:
                    best = child
                best_bound = max(best_bound, child.bound)
                if child.n_steps < self.max_steps and rng.random() < math.exp((child.bound - best_bound) / temperature):
                    heapq.heappush(tree, (-child.bound, next(ties), child))
            temperature *= _COOLING
        return best

    def _children(
        self, node: _Candidate, model: _Model, lineage: Lineage, seen: set[str], rng: random.Random
    ) -> list[_Candidate]:
        """Returns new points that are some random moves away from a node."""
        variations = []
        for _ in range(_N_MOVES):
            try:
                variation = self.space.vary(node.variation, rng)
            except SpaceExhaustedError:
                break
            key = self.space.key(variation.point)
            if key not in seen and not lineage.has_point(variation.point):
                seen.add(key)
                variations.append(variation)
        if not variations:
            return []
        bounds = model.upper_bounds(variations, [node.parent] * len(variations), self.beta, generations=1)
        return [
            _Candidate(bound, node.parent, variation, node.n_steps + 1)
            for bound, variation in zip(bounds, variations, strict=True)
        ]


class _Model:
    """Predicts the scores of points as children of measured trials.

    Args:
        known: At least two measured trials.
        lineage: Its pending trials count with their predicted scores.
        distances: The distances of the space.
        metric: The score.

    Attributes:
        spread: The standard deviation of the scores.
    """

    def __init__(self, known: Sequence[Trial], lineage: Lineage, distances: Distances, metric: Metric) -> None:
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        marks = lineage.best_and_newest(metric, _N_LANDMARKS)
        self._landmarks = Landmarks([trial.point for trial in marks], distances)
        scores = [metric.rank(trial.metrics[metric.name]) for trial in known]
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (0.05, 50.0), nu=2.5) + WhiteKernel(0.1, (1e-5, 2.0))
        model = ScoreModel(self._vectors_of(known), scores, kernel)
        self.spread = model.spread
        self._model = model.fantasize(self._vectors_of(lineage.pending)) if lineage.pending else model

    def upper_bounds(
        self, variations: Sequence[Variation], parents: Sequence[Trial], beta: float, *, generations: int = 0
    ) -> list[float]:
        """Returns the upper confidence bounds of variations, ``generations`` after their parents."""
        ages = [parent.generation + generations for parent in parents]
        means, spreads = self._model.predict(self._vectors([v.point for v in variations], ages))
        return [float(mean + beta * spread) for mean, spread in zip(means, spreads, strict=True)]

    def _vectors_of(self, trials: Sequence[Trial]) -> np.ndarray:
        return self._vectors([t.point for t in trials], [t.generation for t in trials])

    def _vectors(self, points: Sequence[dict[str, object]], ages: Sequence[int]) -> np.ndarray:
        """Returns ``(n, landmarks + 1)``."""
        import numpy as np

        column = _AGE_UNIT * np.log2(1.0 + np.array(ages, dtype=np.float64)).reshape(-1, 1)
        return np.concatenate([self._landmarks.vectors(points), column], axis=1)
