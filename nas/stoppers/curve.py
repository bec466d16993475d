"""Learning curve extrapolation (Domhan et al. 2015, IJCAI), like NNI's curve fitting assessor.

Differs: no sampling. Each family is written as "value at the target minus a share of the remaining change". This is
linear in all parameters except the shape. Shapes are taken from a grid, and each is fitted by least squares with a weak
prior. The posterior is the weighted mixture of all fits. Results are reproducible, for rising and falling metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import clip_outliers
from nas.core.trial import State, Trial
from nas.core.validation import check_int, check_number
from nas.stoppers.base import Stopper

Array = npt.NDArray[np.float64]

MIN_NOISE = 0.02
"""The smallest standard deviation of a report, as a share of the range of its curve."""
SPREAD = 1.0
"""Standard deviation of the prior of the remaining change; 1: that of a straight line."""


class CurveStopper(Stopper):
    """Stops a trial that is unlikely to beat the best finished one.

    Args:
        metrics: The stopper uses the first one.
        threshold: A trial stops if this probability is lower than ``threshold``, in (0, 1).
        start_step: No trial stops before this step.
        min_reports: No trial stops with fewer reports. At least 4, since three numbers are fitted.
        target_step: The step of a full training's last report; values are predicted for it. None: the greatest step
            of a COMPLETE trial. Until a trial is COMPLETE, no trial stops then.

    Raises:
        ConfigurationError: a number is out of range.
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
        check_number("stopper.threshold", threshold)
        if not 0 < threshold < 1:
            raise ConfigurationError(f"stopper.threshold={threshold}: must be between 0 and 1")
        check_int("stopper.start_step", start_step, 0)
        check_int("stopper.min_reports", min_reports, 4)
        if target_step is not None:
            check_int("stopper.target_step", target_step, 1)
        if target_step is not None and target_step <= start_step:
            raise ConfigurationError(
                f"stopper.target_step={target_step}: must be greater than stopper.start_step ({start_step})"
            )
        self.threshold = threshold
        self.start_step = start_step
        self.min_reports = min_reports
        self.target_step = target_step

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the trial is unlikely to beat the best finished one."""
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
        steps: At least four steps of the curve, in order.
        ranks: The values of the curve; greater is better.
        target: A step after the last one.
    """
    values = np.array(clip_outliers(ranks))  # a first report of 1e308 would make all others equal
    low, span = float(values.min()), float(np.ptp(values))
    if not span > 0.0 or not math.isfinite(span):
        return float(values[-1] > best)
    origin = min(0, steps[0] - 1)  # steps start at 1, or at the first step if that is lower
    at = np.array([step - origin for step in steps]) / (target - origin)
    if at[0] > 0.999:  # all reports are at the end: nothing to extrapolate
        return 1.0
    y = (values - low) / span
    means, deviations, weights = _posterior(at, y)
    z = (means - (best - low) / span) / deviations
    return float(sum(w * 0.5 * math.erfc(-x / math.sqrt(2)) for w, x in zip(weights, z, strict=True)))


def _posterior(at: Array, y: Array) -> tuple[Array, Array, Array]:
    """Returns mean, standard deviation and weight of each shape's prediction.

    The model is ``y = end - rest * share``. The shares, ``(shapes, reports)``, fall from 1 at the first report to 0 at
    the target. The prior and posterior of end and rest are normal; the prior is centered on the last report.
    """
    shares, log_prior = _shares(at)
    n, precision = len(y), (float(at[-1]) / SPREAD) ** 2
    prior = np.array([y[-1], y[-1] - y[0]])
    s_1, s_2, sy, s_y = shares.sum(1), (shares**2).sum(1), y.sum(), shares @ y

    def fit(noise: float) -> tuple[Array, Array, Array, Array]:
        """Returns the means of end and rest, the variance of end, and the log evidence."""
        a, b, d = n / noise + precision, -s_1 / noise, s_2 / noise + precision
        e, f = sy / noise + precision * prior[0], -s_y / noise + precision * prior[1]
        determinant = a * d - b**2
        end, rest = (d * e - b * f) / determinant, (a * f - b * e) / determinant
        return end, rest, d / determinant, (e * end + f * rest) / 2 - np.log(determinant) / 2

    end, rest, _, _ = fit(MIN_NOISE**2)
    squares = ((y - end[:, None] + rest[:, None] * shares) ** 2).sum(1)
    noise = (float(squares.min()) + 2 * MIN_NOISE**2) / (n - 1)  # 2 more reports of the least noise, 3 fitted numbers
    noise = max(noise, MIN_NOISE**2)
    end, _, variance, evidence = fit(noise)
    log_weights = evidence + log_prior
    weights = np.exp(log_weights - log_weights.max())
    return end, np.sqrt(variance + noise), weights / weights.sum()


def _shares(at: Array) -> tuple[Array, Array]:
    """Returns the remaining share of the change at each report per shape, and log prior weights.

    Args:
        at: Steps of the reports, as shares of the target step.
    """
    rows, priors = [], []
    x = np.append(at, 1.0)
    for family in _families(x):
        for decay in family:
            rows.append((decay[:-1] - decay[-1]) / (decay[0] - decay[-1]))
            priors.append(-math.log(len(family)))
    return np.array(rows), np.array(priors)


def _families(x: Array) -> Iterator[list[Array]]:
    """Yields the families of Domhan et al. (table 1) as distances from the limit."""
    yield [x**-power for power in np.linspace(0.1, 2.0, 12)]  # pow3
    yield [np.exp(-(rate * x)) for rate in np.geomspace(0.5, 30.0, 12)]  # exp4 with power 1
    yield [np.exp(-((rate * x) ** power)) for power in (0.3, 0.5, 0.7, 1.5) for rate in np.geomspace(0.5, 30.0, 8)]
    yield [1 / (1 + (x / half) ** power) for power in (0.5, 1.0, 2.0) for half in np.geomspace(0.02, 1.0, 8)]  # mmf
    yield [-np.log(x)]  # logx linear
    yield [1 / np.log1p(x / x[0])]  # ilog2
