"""Network morphism guided by Bayesian optimization (Jin et al. 2019, arXiv:1806.10282, "Auto-Keras", section 3).

A Gaussian process models the scores over the edit distance between networks, and a tree-structured search over
morphisms seeks the child with the greatest upper confidence bound. Its proposal names the trial that the search set out
from and all operations on the way, so that the child starts from its parent's function.

Differs: a point is described by its distances to measured ones (`nas.tuners.shared.landmarks`), and by its generation:
a child that goes on from trained weights, which have come down so often, scores higher than the same network would
afresh. A network of the tree is left by some random moves at a time, not by all. Asynchronous: pending trials are taken
to score as predicted.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int
from nas.spaces.space import Space, Variation
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.shared.gaussian import ScoreModel, check_max_points
from nas.tuners.shared.landmarks import Distances, Landmarks
from nas.tuners.shared.new_points import draw_new_point

if TYPE_CHECKING:
    import numpy as np

_N_MOVES = 8
"""How many children of one network are looked at together."""
_COOLING = 0.9
_N_LANDMARKS = 16
_AGE_UNIT = 0.5
"""What twice as many ancestors count, beside landmarks that are 1 apart."""


class _Candidate(NamedTuple):
    """What may be proposed: what it is hoped to score, its parent, and how it was made of the parent's point."""

    hope: float
    parent: Trial
    variation: Variation
    n_steps: int


class NetworkMorphismTuner(Tuner):
    """Proposes children of measured trials by the upper confidence bound; the parent is the donor.

    Args:
        space: Any; made for network graphs (`nas.spaces.graphs.space`), where a child computes what its parent did.
        metrics: The first one.
        seed: Seeds every ask together with its number.
        n_initial_points: Random points before the first child.
        n_candidates: Children looked at for one proposal, of which the most promising is proposed.
        max_steps: Operations from a parent to its child, at the most.
        beta: Standard deviations above the mean that a child is hoped to reach (the paper: 2.5).
        max_points: Trials in the model, the best half and the newest half; at least twice ``n_initial_points``.
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
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < math.inf:
            raise ConfigurationError(f"tuner.beta ({beta!r}) must be a finite number of at least 0; try 2.5")
        self.n_initial_points = n_initial_points
        self.n_candidates = n_candidates
        self.max_steps = max_steps
        self.beta = beta
        self.max_points = max_points
        self._distances = Distances(space)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while few have scores or run, else the best child; STOP if no point is left."""
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
        """Returns the best child that the tree-structured search finds; None where every one is a point of a trial."""
        start = [Variation.of(trial.point) for trial in known]
        hopes = model.hopes(start, known, self.beta)
        best_hope = max(hopes)
        ties = itertools.count()
        tree = [
            (-hope, next(ties), _Candidate(hope, trial, variation, 0))
            for hope, trial, variation in zip(hopes, known, start, strict=True)
        ]
        heapq.heapify(tree)
        seen, best, n_looked_at, temperature = set[str](), None, 0, model.spread
        while tree and n_looked_at < self.n_candidates:
            *_, node = heapq.heappop(tree)
            n_looked_at += _N_MOVES
            for child in self._children(node, model, lineage, seen, rng):
                if best is None or child.hope > best.hope:
                    best = child
                best_hope = max(best_hope, child.hope)
                if child.n_steps < self.max_steps and rng.random() < math.exp((child.hope - best_hope) / temperature):
                    heapq.heappush(tree, (-child.hope, next(ties), child))
            temperature *= _COOLING
        return best

    def _children(
        self, node: _Candidate, model: _Model, lineage: Lineage, seen: set[str], rng: random.Random
    ) -> list[_Candidate]:
        """Some random moves from a node that lead to new points."""
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
        hopes = model.hopes(variations, [node.parent] * len(variations), self.beta, generations=1)
        return [
            _Candidate(hope, node.parent, variation, node.n_steps + 1)
            for hope, variation in zip(hopes, variations, strict=True)
        ]


class _Model:
    """What points are predicted to score, as children of what was measured.

    Args:
        known: Measured, two or more.
        lineage: Whose pending trials are taken to score as predicted.
        distances: Of the space.
        metric: The score.

    Attributes:
        spread: The standard deviation of the scores.
    """

    def __init__(self, known: Sequence[Trial], lineage: Lineage, distances: Distances, metric: Metric) -> None:
        import numpy as np
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        marks = lineage.best_and_newest(metric, _N_LANDMARKS)
        self._landmarks = Landmarks([trial.point for trial in marks], distances)
        scores = np.array([metric.rank(trial.metrics[metric.name]) for trial in known], dtype=np.float64)
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (0.05, 50.0), nu=2.5) + WhiteKernel(0.1, (1e-5, 2.0))
        model = ScoreModel(self._vectors_of(known), scores, kernel)
        self.spread = model.spread
        self._model = model.believing(self._vectors_of(lineage.pending)) if lineage.pending else model

    def hopes(
        self, variations: Sequence[Variation], parents: Sequence[Trial], beta: float, *, generations: int = 0
    ) -> list[float]:
        """Returns the upper confidence bound of each variation, so many generations after its trial."""
        ages = [parent.generation + generations for parent in parents]
        means, spreads = self._model.predict(self._vectors([v.point for v in variations], ages))
        return [float(mean + beta * spread) for mean, spread in zip(means, spreads, strict=True)]

    def _vectors_of(self, trials: Sequence[Trial]) -> np.ndarray:
        return self._vectors([t.point for t in trials], [t.generation for t in trials])

    def _vectors(self, points: Sequence[dict[str, object]], ages: Sequence[int]) -> np.ndarray:
        """``(n, landmarks + 1)``."""
        import numpy as np

        column = _AGE_UNIT * np.log2(1.0 + np.array(ages, dtype=np.float64)).reshape(-1, 1)
        return np.concatenate([self._landmarks.vectors(points), column], axis=1)
