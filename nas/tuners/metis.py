"""Metis (Li et al. 2018, USENIX ATC): Bayesian optimization with repeated measurements.

At each ask three candidates compete by the prediction of a Gaussian process:

* the point with the best prediction,
* the point with the largest uncertainty,
* the measured point with the largest leave-one-out residual.

The candidate whose upper bound exceeds the best prediction most is trained. So a lucky score is measured again, and
finalists are ranked by prediction: a mean of the measurements, shrunk towards the neighbors. If no new point is left,
measured points that may still be the best are measured again.

Differs: candidates come from draws and from steps around the best, not from a mixture model. Pending trials count with
their predicted scores.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nas.core.errors import SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int
from nas.spaces.space import Space
from nas.tuners.base import STOP, WAIT, Answer, StartupTrials
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.flat import FlatSpace
from nas.tuners.shared.gaussian import ScoreModel, check_max_points
from nas.tuners.shared.new_points import draw_new_point

_Z_SCORE = 1.96
"""Standard deviations in the upper bound, and the limit beyond which a residual is an outlier."""
_N_BEST = 5
_N_STEPS = 10


class _Row(NamedTuple):
    """One measurement: key, point and score. Greater is better; None while the trial runs."""

    key: str
    point: Point
    score: float | None


class MetisTuner(DonorTuner):
    """Proposes points by a Gaussian process, and measures outliers again.

    Args:
        space: Any space.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        n_initial_points: Random points before the first prediction.
        n_candidates: The number of random candidates, besides steps from the best measured points.
        max_repeats: The most measurements of one point; 1: no point is measured again.
        max_points: The most measurements in the model: their best half and newest half. At least twice
            ``n_initial_points``.
        donor: The donor of a trial; see ``DonorChooser``.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_initial_points: int = 10,
        n_candidates: int = 500,
        max_repeats: int = 3,
        max_points: int = 500,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        for name, value, low in (
            ("n_initial_points", n_initial_points, 2),
            ("n_candidates", n_candidates, 1),
            ("max_repeats", max_repeats, 1),
        ):
            check_int(f"tuner.{name}", value, low)
        check_max_points(max_points, n_initial_points)
        self.n_initial_points = n_initial_points
        self.startup_trials = StartupTrials(n_initial_points, "n_initial_points")
        self.n_candidates = n_candidates
        self.max_repeats = max_repeats
        self.max_points = max_points
        self._flat = FlatSpace(space)
        self._ranked: tuple[Sequence[Trial], list[int]] = ((), [])  # a cache: finished trials and their order

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while few have scores, then the best candidate."""
        rng = self.rng(number)
        rows = self._rows(lineage)
        if not self._is_enough(rows):
            initial = self.propose_new(lineage, rng, "initial point")
            if initial is not STOP:
                return initial
        if (chosen := self._chosen(rows, lineage, rng)) is not None:
            return self.propose(lineage, *chosen)
        return WAIT if lineage.pending else STOP  # a running trial may need another measurement

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the scored trials by predicted score, best first."""
        finished = lineage.finished
        if finished != self._ranked[0]:
            self._ranked = (finished, self._order(lineage, super().ranked(lineage)))
        return [lineage[number] for number in self._ranked[1]]

    def _order(self, lineage: Lineage, trials: Sequence[Trial]) -> list[int]:
        rows = self._rows(lineage)
        if not self._is_enough(rows):
            return [trial.number for trial in trials]
        model = self._model([row for row in rows if row.score is not None])
        means, _ = model.predict(self._flat.vectors(trial.point for trial in trials))
        return [trials[index].number for index in sorted(range(len(trials)), key=lambda index: -means[index])]

    def _is_enough(self, rows: Sequence[_Row]) -> bool:
        """Returns whether there are all initial points, or a repeated one, for a model."""
        keys = [row.key for row in rows if row.score is not None]
        n_points = len(set(keys))
        return bool(self._flat.domains) and (n_points >= self.n_initial_points or 1 < n_points < len(keys))

    def _rows(self, lineage: Lineage) -> list[_Row]:
        """Returns at most ``max_points`` measurements in the order learned, then the running trials."""
        metric = self.metrics[0]
        found = [
            _Row(point_key(trial.point), trial.point, metric.rank(trial.metrics[metric.name]))
            for trial in lineage.best_and_newest(metric, self.max_points)
        ]
        return found + [_Row(point_key(trial.point), trial.point, None) for trial in lineage.pending]

    def _chosen(self, rows: Sequence[_Row], lineage: Lineage, rng: random.Random) -> tuple[Point, str] | None:
        """Returns the best candidate and the reason, or None if there is none."""
        known = [row for row in rows if row.score is not None]
        running = [row for row in rows if row.score is None]
        if len(known) < 2 or not self._flat.domains:
            return None
        model = self._model(known)
        if running:
            model = model.fantasize(self._flat.vectors(row.point for row in running))
        best = float(model.fitted().max())
        repeatable = self._repeatable(known, lineage)
        gains = []
        if (outlier := self._outlier(model, known, repeatable, best)) is not None:
            gains.append(outlier)
        if points := self._candidates(known, lineage, rng):
            means, spreads = model.predict(self._flat.vectors(points))
            for index, reason in ((int(means.argmax()), "exploits"), (int(spreads.argmax()), "explores")):
                gains.append((float(means[index] + _Z_SCORE * spreads[index]) - best, points[index], reason))
        if not gains:
            gains = [gain for index in repeatable if (gain := self._gain(model, known[index], best))[0] > 0]
        if not gains:
            return None
        _, point, reason = max(gains, key=lambda gain: gain[0])
        return point, reason

    def _candidates(self, known: Sequence[_Row], lineage: Lineage, rng: random.Random) -> list[Point]:
        """Returns new points: draws, and steps from the best measured ones."""
        found = [self.space.sample(rng) for _ in range(self.n_candidates)]
        for row in sorted(known, key=lambda row: -(row.score or 0.0))[:_N_BEST]:
            try:
                found += [self.space.mutate(row.point, rng) for _ in range(_N_STEPS)]
            except SpaceExhaustedError:
                break
        found = [point for point in found if not lineage.has_point(point)]
        if not found and (left := draw_new_point(self.space, lineage, rng)) is not None:
            found.append(left)
        return found

    def _repeatable(self, known: Sequence[_Row], lineage: Lineage) -> list[int]:
        """Returns the indices of measurements whose points may be measured again."""
        n_times = Counter(point_key(trial.point) for trial in lineage)
        running = {point_key(trial.point) for trial in lineage.pending}
        few = [i for i, row in enumerate(known) if row.key not in running and n_times[row.key] < self.max_repeats]
        return [index for index in few if not lineage.refuses(known[index].point)]

    def _outlier(
        self, model: ScoreModel, known: Sequence[_Row], repeatable: Sequence[int], best: float
    ) -> tuple[float, Point, str] | None:
        """Returns the measured point with the largest residual, if it is an outlier."""
        residuals = model.loo_residuals()
        index = max(repeatable, key=lambda index: residuals[index], default=None)
        return None if index is None or residuals[index] <= _Z_SCORE else self._gain(model, known[index], best)

    def _gain(self, model: ScoreModel, row: _Row, best: float) -> tuple[float, Point, str]:
        """Returns how far another measurement may exceed the best prediction, the point and the reason."""
        means, spreads = model.predict(self._flat.vectors([row.point]))
        bound = max(row.score or 0.0, float(means[0])) + _Z_SCORE * float(spreads[0])
        return bound - best, row.point, "measures again"

    def _model(self, rows: Sequence[_Row]) -> ScoreModel:
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(math.sqrt(self._flat.n_coordinates), (0.05, 50.0), nu=2.5)
        scores = [row.score for row in rows if row.score is not None]
        vectors = self._flat.vectors(row.point for row in rows)
        return ScoreModel(vectors, scores, kernel + WhiteKernel(0.1, (1e-5, 2.0)))
