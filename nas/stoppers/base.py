"""Stoppers: watch intermediate results and end hopeless trials."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nas.lineage import Lineage
from nas.metric import Metric, is_finite
from nas.trial import Trial


class Stopper(ABC):
    """Decides at each report whether a trial ends; a function of the lineage, as a tuner is."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self.metrics = metrics

    @abstractmethod
    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Whether this running trial should end now; ``trial.curve`` holds what it has reported, newest last.

        The lineage holds the search stage's other trials: the finished ones, and what running ones have reported so
        far (with ``deterministic``: what the trial's proposal saw, and so no running one).
        """


def learning_curve(trial: Trial, metric: Metric) -> list[tuple[int, float]]:
    """What the trial has reported of a metric, as (step, rank), greater ranks being better, in the order of steps.

    A step that was reported again (by an attempt that went on from an earlier save) counts as it was reported last;
    reports without the metric, or where it is not finite, are left out.
    """
    last = {step: metrics[metric.name] for step, metrics in trial.curve if metric.name in metrics}
    return [(step, float(metric.rank(value))) for step, value in sorted(last.items()) if is_finite(value)]
