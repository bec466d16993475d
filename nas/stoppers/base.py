"""Stoppers: watch intermediate results and end hopeless trials."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.stoppers.learning_curve import LearningCurve


class Stopper(ABC):
    """Decides at each report whether a trial ends; a function of the lineage, as a tuner is."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self.metrics = metrics
        self._curves: dict[int, tuple[object, LearningCurve]] = {}

    @abstractmethod
    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether this running trial should end now; ``trial.curve`` holds what it has reported, newest last.

        The lineage holds the search stage's other trials: the finished ones, and what running ones have reported so
        far (with ``deterministic``: what the trial's proposal saw, and so no running one).
        """

    def curve_of(self, trial: Trial) -> LearningCurve:
        """What the trial has reported of the first metric; made once for a trial that reports no more."""
        found = self._curves.get(trial.number)
        if found is None or found[0] is not trial.curve:
            found = self._curves[trial.number] = trial.curve, LearningCurve(trial, self.metrics[0])
        return found[1]
