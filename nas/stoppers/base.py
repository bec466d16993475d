"""Stoppers: watch intermediate results and end hopeless trials."""

from __future__ import annotations

from abc import ABC, abstractmethod

from nas.lineage import Lineage
from nas.metric import Metric
from nas.trial import Trial


class Stopper(ABC):
    """Decides at each report whether a trial ends; a function of the lineage, as a tuner is."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self.metrics = metrics

    @abstractmethod
    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Whether this running trial should end now; ``trial.curve`` holds what it has reported, newest last."""
