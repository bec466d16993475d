"""Curve extrapolation (Domhan et al. 2015, IJCAI; NNI's curve fitting): ends a trial that won't beat the best one.

Differs: each family is brought to the form "value at the target, minus a share of what is still to come", which is
linear but for its shape. The shapes lie on a grid, each is fitted by least squares with a weak prior, and the posterior
is the weighted mixture of all: the same on every machine, without sampling, for rising and falling metrics alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nas.core.errors import ConfigurationError, check_number, check_whole
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.stoppers.base import Stopper

Array = npt.NDArray[np.float64]

MIN_NOISE = 0.02
"""The least standard deviation of a report, as a share of the range of its curve."""
SPREAD = 1.0
"""Standard deviation of the prior of what is still to come; 1: as much as a straight line would bring."""


class CurveStopper(Stopper):
    """Ends a trial whose chance to end better than the best finished one is below ``threshold``.

    Args:
        metrics: The first one is watched.
        threshold: The chance, in (0, 1).
        start_step: No trial ends before this step.
        min_reports: No trial ends with fewer reports; at least 4, as three numbers are fitted.
        target_step: The step of a full training's last report, at which values are predicted. None: the greatest that
            a COMPLETE trial has reported; while there is none, no trial ends.

    Raises:
        ConfigurationError: a number that can't be.
    """

    def __init__(
        self,
        metrics: tuple[Metric, ...],
        *,
        threshold: float = 0.05,
        start_step: int = 1,
        min_reports: int = 4,
        target_step: int | None = None,
    ) -> None:
        super().__init__(metrics)
        check_number("threshold", threshold)
        if not 0 < threshold < 1:
            raise ConfigurationError(f"threshold ({threshold}) must lie between 0 and 1")
        check_whole("start_step", start_step, 0)
        check_whole("min_reports", min_reports, 4)
        if target_step is not None:
            check_whole("target_step", target_step, 1)
        if target_step is not None and target_step <= start_step:
            raise ConfigurationError(f"target_step ({target_step}) must be greater than start_step ({start_step})")
        self.threshold = threshold
        self.start_step = start_step
        self.min_reports = min_reports
        self.target_step = target_step

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the chance that it ends better than the best finished one is too small."""
        metric, own = self.metrics[0], self.curve_of(trial)
        if len(own.steps) < self.min_reports or own.steps[-1] < self.start_step:
            return False
        finished = [t for t in lineage if t.number != trial.number and t.is_finished]
        best = max((metric.rank(v) for t in finished if (v := t.value(metric.name)) is not None), default=None)
        curves = (self.curve_of(t).steps for t in finished if t.state == State.COMPLETE)
        target = max((steps[-1] for steps in curves if steps), default=None)
        if self.target_step is not None:
            target = self.target_step
        if best is None or target is None or target <= own.steps[-1]:
            return False
        return chance_to_beat(best, own.steps, own.ranks, target) < self.threshold


def chance_to_beat(best: float, steps: Sequence[int], ranks: Sequence[float], target: int) -> float:
    """Returns the probability that a curve's value at step ``target`` is greater than ``best``.

    Args:
        best: The value to beat.
        steps: Of the curve, in order, at least four.
        ranks: Its values; greater ones are better.
        target: A step beyond the last.
    """
    values = np.array(ranks)
    low, span = float(values.min()), float(np.ptp(values))
    if not span > 0.0 or not math.isfinite(span):
        return float(values[-1] > best)
    origin = min(0, steps[0] - 1)  # steps count from 1, or from wherever they begin below
    at = np.array([step - origin for step in steps]) / (target - origin)
    if at[0] > 0.999:  # all reports are from the very end: there is nothing to extrapolate from
        return 1.0
    y = (values - low) / span
    means, deviations, weights = _posterior(at, y)
    z = (means - (best - low) / span) / deviations
    return float(sum(w * 0.5 * math.erfc(-x / math.sqrt(2)) for w, x in zip(weights, z, strict=True)))


def _posterior(at: Array, y: Array) -> tuple[Array, Array, Array]:
    """What each shape of curve predicts for the target: means, standard deviations and weights, ``(shapes,)`` each.

    ``y = end - rest * share`` with the shares ``(shapes, reports)`` given, which fall from 1 at the first report to 0
    at the target; end and rest are normal, before (around the last report) and after.
    """
    shares, log_prior = _shares(at)
    n, precision = len(y), (float(at[-1]) / SPREAD) ** 2
    prior = np.array([y[-1], y[-1] - y[0]])
    s_1, s_2, sy, s_y = shares.sum(1), (shares**2).sum(1), y.sum(), shares @ y

    def fit(noise: float) -> tuple[Array, Array, Array, Array]:
        """Returns the means of end and rest, the variance of end, and the logarithm of the evidence."""
        a, b, d = n / noise + precision, -s_1 / noise, s_2 / noise + precision
        e, f = sy / noise + precision * prior[0], -s_y / noise + precision * prior[1]
        determinant = a * d - b**2
        end, rest = (d * e - b * f) / determinant, (a * f - b * e) / determinant
        return end, rest, d / determinant, (e * end + f * rest) / 2 - np.log(determinant) / 2

    end, rest, _, _ = fit(MIN_NOISE**2)
    squares = ((y - end[:, None] + rest[:, None] * shares) ** 2).sum(1)
    noise = (float(squares.min()) + 2 * MIN_NOISE**2) / (n - 1)  # two reports of the least noise, less three fitted
    noise = max(noise, MIN_NOISE**2)
    end, _, variance, evidence = fit(noise)
    log_weights = evidence + log_prior
    weights = np.exp(log_weights - log_weights.max())
    return end, np.sqrt(variance + noise), weights / weights.sum()


def _shares(at: Array) -> tuple[Array, Array]:
    """The share of what is still to come at each report, for each shape; and the logarithms of their prior weights.

    Args:
        at: When the reports were made, as shares of the way to the target.
    """
    rows, priors = [], []
    x = np.append(at, 1.0)
    for family in _families(x):
        for decay in family:
            rows.append((decay[:-1] - decay[-1]) / (decay[0] - decay[-1]))
            priors.append(-math.log(len(family)))
    return np.array(rows), np.array(priors)


def _families(x: Array) -> Iterator[list[Array]]:
    """Domhan et al.'s families, table 1: how the distance from the limit falls, for each shape on a grid."""
    yield [x**-power for power in np.linspace(0.1, 2.0, 12)]  # pow3
    yield [np.exp(-(rate * x)) for rate in np.geomspace(0.5, 30.0, 12)]  # exp4 with power 1
    yield [np.exp(-((rate * x) ** power)) for power in (0.3, 0.5, 0.7, 1.5) for rate in np.geomspace(0.5, 30.0, 8)]
    yield [1 / (1 + (x / half) ** power) for power in (0.5, 1.0, 2.0) for half in np.geomspace(0.02, 1.0, 8)]  # mmf
    yield [-np.log(x)]  # logx linear
    yield [1 / np.log1p(x / x[0])]  # ilog2
