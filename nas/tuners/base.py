"""Tuners: functions from the lineage to the next proposal."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from enum import Enum

from nas.lineage import Lineage
from nas.metric import Metric
from nas.spaces.base import Space
from nas.trial import Proposal


class Answer(Enum):
    """What a tuner may say instead of a proposal."""

    WAIT = "wait"
    """Not now: ask again after the next result."""
    STOP = "stop"
    """Exhausted: nothing more will be proposed."""


WAIT = Answer.WAIT
STOP = Answer.STOP


class Tuner(ABC):
    """Proposes points; a function of the lineage, so that resuming a search is asking again.

    Keeps no state that it could not derive again (a cache is fine, answers may not depend on it), and takes its
    randomness from ``self.rng(number)``.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        self.space = space
        self.metrics = metrics
        self.seed = seed

    @abstractmethod
    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """The ``number``-th proposal of the search stage (from 0), for this job, from the search stage's lineage."""

    def rng(self, number: int) -> random.Random:
        """The randomness of one ask, the same in every process."""
        return random.Random(f"{self.seed}/{number}")
