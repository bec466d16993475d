"""A Gaussian process that predicts scores (Rasmussen and Williams 2006)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from nas.core.errors import ConfigurationError
from nas.core.outliers import clip_outliers
from nas.core.validation import check_int

if TYPE_CHECKING:
    import numpy as np


def check_max_points(max_points: int, n_initial_points: int, option: str = "n_initial_points") -> None:
    """Checks that a model of ``max_points`` trials holds all initial points.

    It takes the best half and the newest half, which may be the same trials.

    Raises:
        ConfigurationError: it is too small.
    """
    check_int("tuner.max_points", max_points, 2)
    if max_points < 2 * n_initial_points:
        raise ConfigurationError(
            f"tuner.max_points={max_points}: must be at least twice tuner.{option} ({n_initial_points}): "
            f"the best half may be the newest half. Give {2 * n_initial_points} or more, or fewer initial points."
        )


class ScoreModel:
    """Predicts scores. Repeated measurements of a point make its prediction more certain.

    Args:
        vectors: ``(n, d)``, one row per measurement; n at least 1.
        scores: Of length n, greater is better. Low ones are clipped (``clip_outliers``).
        kernel: A scikit-learn kernel with a ``WhiteKernel``, since scores are noisy.

    Attributes:
        spread: The standard deviation of the clipped scores; 1 if all are equal.
    """

    def __init__(self, vectors: np.ndarray, scores: Sequence[float], kernel: Any) -> None:
        import numpy as np

        clipped = np.array(clip_outliers(scores), dtype=np.float64)
        self._mean = float(clipped.mean())
        self.spread = float(clipped.std()) or 1.0
        self._process = _fitted(vectors, (clipped - self._mean) / self.spread, kernel, "fmin_l_bfgs_b")

    def fantasize(self, vectors: np.ndarray) -> ScoreModel:
        """Returns a model in which these points have their predicted scores, as pending trials do.

        Predictions far from them stay as uncertain as before. The kernel is not fitted again.
        """
        import numpy as np

        scores = np.concatenate([self._process.y_train_, self._process.predict(vectors)])
        model = copy(self)
        vectors = np.concatenate([self._process.X_train_, vectors])
        model._process = _fitted(vectors, scores, self._process.kernel_, None)
        return model

    def predict(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns means and standard deviations of scores, each ``(m,)``, for vectors ``(m, d)``."""
        means, spreads = self._process.predict(vectors, return_std=True)
        return means * self.spread + self._mean, spreads * self.spread

    def fitted(self) -> np.ndarray:
        """Returns the predictions for the model's own rows, fantasized ones included: ``(n,)``."""
        return self.predict(self._process.X_train_)[0]

    def loo_residuals(self) -> np.ndarray:
        """Returns each row's leave-one-out residual in standard deviations: ``(n,)``.

        They have a closed form (Rasmussen and Williams 2006, eq. 5.12): no model is fitted again.
        """
        import numpy as np
        from scipy.linalg import cho_solve

        precision = np.diag(cho_solve((self._process.L_, True), np.eye(len(self._process.alpha_))))
        residuals: np.ndarray = np.abs(self._process.alpha_.ravel()) / np.sqrt(precision)
        return residuals


def _fitted(vectors: np.ndarray, scores: np.ndarray, kernel: Any, optimizer: str | None) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcessRegressor(kernel, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound is not an error
        return process.fit(vectors, scores)
