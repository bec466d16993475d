"""The base class of stoppers, which end trials early by their reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.stoppers.learning_curve import LearningCurve


class Stopper(ABC):
    """Decides at each report whether a trial stops; a function of the lineage, like a tuner."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self.metrics = metrics
        self._curves: dict[int, tuple[object, LearningCurve]] = {}

    @property
    def code_files(self) -> Mapping[str, Path]:
        """Files with code besides the class's module and its imports, by name."""
        return {}

    @abstractmethod
    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether this running trial should stop now.

        Args:
            lineage: The other trials of the search stage, running ones with their reports so far. With
                ``deterministic``: the finished trials that the trial's proposal was based on.
            trial: The trial. ``trial.curve`` has its reports, newest last.
        """

    def curve_of(self, trial: Trial) -> LearningCurve:
        """Returns the reports of the first metric, cached until the trial reports again."""
        found = self._curves.get(trial.number)
        if found is None or found[0] is not trial.curve:
            found = self._curves[trial.number] = trial.curve, LearningCurve(trial, self.metrics[0])
        return found[1]
