"""A Gaussian process of scores, for tuners that model what a point will score (Rasmussen and Williams 2006)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class ScoreModel:
    """Predicts scores, normalised inside; what was measured more often is known better.

    Args:
        vectors: ``(n, d)``, a row a measurement; n at least 1.
        scores: ``(n,)``, greater where better.
        kernel: Of scikit-learn; with a ``WhiteKernel``, as scores are noisy.
        seed: Fits the kernel's numbers, by a search that it seeds; None: the kernel is taken as it is.
    """

    def __init__(self, vectors: np.ndarray, scores: np.ndarray, kernel: Any, seed: int | None) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor

        self._vectors = vectors
        self._scores = scores
        self._mean = float(scores.mean())
        self._scale = float(scores.std()) or 1.0
        optimizer = None if seed is None else "fmin_l_bfgs_b"
        self._process = GaussianProcessRegressor(kernel, optimizer=optimizer, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is no mistake
            self._process.fit(vectors, (scores - self._mean) / self._scale)

    def believing(self, vectors: np.ndarray) -> ScoreModel:
        """The same kernel, as if these had been measured and had scored as predicted: as sure there as it will be."""
        import numpy as np

        scores = np.concatenate([self._scores, self.predict(vectors)[0]])
        return ScoreModel(np.concatenate([self._vectors, vectors]), scores, self._process.kernel_, None)

    def predict(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of new measurements, each ``(m,)`` for vectors ``(m, d)``."""
        means, spreads = self._process.predict(vectors, return_std=True)
        return means * self._scale + self._mean, spreads * self._scale

    def fitted(self) -> np.ndarray:
        """What is predicted of the rows themselves, those that are believed too: ``(n,)``."""
        return self.predict(self._vectors)[0]

    def doubts(self) -> np.ndarray:
        """How many standard deviations each row's score lies from what all other rows predict for it: ``(n,)``.

        In closed form (Rasmussen and Williams 2006, eq. 5.12): no model is fitted again.
        """
        import numpy as np
        from scipy.linalg import cho_solve

        precision = np.diag(cho_solve((self._process.L_, True), np.eye(len(self._scores))))
        doubts: np.ndarray = np.abs(self._process.alpha_.ravel()) / np.sqrt(precision)
        return doubts
