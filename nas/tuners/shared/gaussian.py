"""A Gaussian process of scores, for tuners that model what a point will score (Rasmussen and Williams 2006)."""

from __future__ import annotations

import warnings
from copy import copy
from typing import TYPE_CHECKING, Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int

if TYPE_CHECKING:
    import numpy as np


_DEPTH = 100.0
"""So many times as far below the best as the median, scores tell nothing more: the trial diverged."""
_GREATEST = 1e100
"""Of larger scores squares overflow."""


def check_max_points(max_points: int, n_initial_points: int) -> None:
    """Checks that a model of the best half and the newest half holds all initial points.

    The halves may have the same trials.

    Raises:
        ConfigurationError: it may not.
    """
    check_int("tuner.max_points", max_points, 2)
    if max_points < 2 * n_initial_points:
        raise ConfigurationError(
            f"tuner.max_points ({max_points}) must be at least twice tuner.n_initial_points ({n_initial_points}): "
            f"the best half may be the newest half; give {2 * n_initial_points} or more, or fewer initial points"
        )


class ScoreModel:
    """Predicts scores, normalized inside; what was measured more often is known better.

    Args:
        vectors: ``(n, d)``, a row a measurement; n at least 1.
        scores: ``(n,)``, greater where better. Those of trials that diverged count as 100 times as far below the best
            as the median is, so that one loss of a billion does not make all others equal.
        kernel: Of scikit-learn, with numbers to fit; with a ``WhiteKernel``, as scores are noisy.

    Attributes:
        spread: The standard deviation of the scores, as they count; 1 where all are equal.
    """

    def __init__(self, vectors: np.ndarray, scores: np.ndarray, kernel: Any) -> None:
        scores = _without_depths(scores)
        self._mean = float(scores.mean())
        self.spread = float(scores.std()) or 1.0
        self._process = _fitted(vectors, (scores - self._mean) / self.spread, kernel, "fmin_l_bfgs_b")

    def believing(self, vectors: np.ndarray) -> ScoreModel:
        """The same kernel and units, as if these had been measured and had scored as predicted: as sure as it will be.

        So what is far from all of them is known as little as before.
        """
        import numpy as np

        scores = np.concatenate([self._process.y_train_, self._process.predict(vectors)])
        believing = copy(self)
        vectors = np.concatenate([self._process.X_train_, vectors])
        believing._process = _fitted(vectors, scores, self._process.kernel_, None)
        return believing

    def predict(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of new measurements, each ``(m,)`` for vectors ``(m, d)``."""
        means, spreads = self._process.predict(vectors, return_std=True)
        return means * self.spread + self._mean, spreads * self.spread

    def fitted(self) -> np.ndarray:
        """What is predicted of the rows themselves, those that are believed too: ``(n,)``."""
        return self.predict(self._process.X_train_)[0]

    def doubts(self) -> np.ndarray:
        """How many standard deviations each row's score lies from what all other rows predict for it: ``(n,)``.

        In closed form (Rasmussen and Williams 2006, eq. 5.12): no model is fitted again.
        """
        import numpy as np
        from scipy.linalg import cho_solve

        precision = np.diag(cho_solve((self._process.L_, True), np.eye(len(self._process.alpha_))))
        doubts: np.ndarray = np.abs(self._process.alpha_.ravel()) / np.sqrt(precision)
        return doubts


def _without_depths(scores: np.ndarray) -> np.ndarray:
    import numpy as np

    scores = np.clip(scores, -_GREATEST, _GREATEST)
    best, median = scores.max(), np.median(scores)
    return scores if best == median else np.maximum(scores, best - _DEPTH * (best - median))


def _fitted(vectors: np.ndarray, scores: np.ndarray, kernel: Any, optimizer: str | None) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcessRegressor(kernel, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is no mistake
        return process.fit(vectors, scores)
