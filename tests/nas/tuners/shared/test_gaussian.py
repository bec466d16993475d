"""The Gaussian process of scores: pending trials, diverged trials, outliers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from nas.tuners.shared.gaussian import ScoreModel

FAR = np.array([[1e6]])


def model_of(scores: list[float]) -> ScoreModel:
    """Returns a model of measurements at 0, 1, 2 and so on."""
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (0.05, 50.0), nu=2.5) + WhiteKernel(0.1, (1e-5, 2.0))
    return ScoreModel(np.arange(len(scores), dtype=float).reshape(-1, 1), np.array(scores), kernel)


def test_pending_trials_reduce_the_spread_nearby_only() -> None:
    """Far from all points the spread stays, however many pending trials count as predicted."""
    model = model_of([0.0, 1.0, 0.0, 1.0])
    pending = np.linspace(100.0, 200.0, 12).reshape(-1, 1)
    fantasized = model.fantasize(pending)

    for predicted, before in zip(fantasized.predict(FAR), model.predict(FAR), strict=True):
        assert predicted == pytest.approx(before, rel=1e-6)
    assert (fantasized.predict(pending)[1] < 0.99 * model.predict(pending)[1]).all()
    assert fantasized.predict(pending)[0] == pytest.approx(model.predict(pending)[0], rel=1e-6)
    assert len(fantasized.fitted()) == 16


@pytest.mark.parametrize("depth", [-1e9, -1e200, -1.7e308])
def test_a_diverged_score_leaves_the_others_apart(depth: float) -> None:
    """Beside one score far below all, or with an overflowing square, the others still differ."""
    scores = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    means, spreads = model_of([*scores, depth]).predict(np.array([[0.0], [5.0]]))

    assert np.isfinite(spreads).all()
    assert means[1] - means[0] > 2.5
    assert (spreads < 1000).all()


def test_ordinary_scores_count_as_they_are() -> None:
    """A bad score among good ones is no outlier, and equal scores do not give a unit of 0."""
    scores = [0.1, 0.85, 0.9, 0.91, 0.92]

    assert model_of(scores).spread == pytest.approx(np.std(scores))
    assert model_of([0.5] * 4).spread == 1.0


def test_doubts_equal_leave_one_out() -> None:
    """The closed form equals the prediction of a model without the row, in its standard deviations."""
    scores = [0.0, 0.1, 0.2, 2.0, 0.4, 0.5]
    model, rows = model_of(scores), np.arange(6.0).reshape(-1, 1)
    unit = (np.array(scores) - np.mean(scores)) / np.std(scores)
    kernel = model._process.kernel_

    for row, doubt in enumerate(model.loo_residuals()):
        others = [other for other in range(6) if other != row]
        left = GaussianProcessRegressor(kernel, optimizer=None).fit(rows[others], unit[others])
        mean, spread = left.predict(rows[[row]], return_std=True)
        assert doubt == pytest.approx(abs(unit[row] - mean[0]) / spread[0], rel=1e-4)
