"""Tuners: functions from the lineage to the next proposal."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from enum import Enum
from typing import ClassVar

from nas.core.lineage import Lineage, LineageLog, missing_results
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.spaces.space import Space


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

    data_arguments: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments that only say where something lies: no part of a search's identity, kept in no record."""
    code_arguments: ClassVar[frozenset[str]] = frozenset()
    """Those that are code, or say where it lies: taken from a command line, never from a record alone."""
    chosen: Spec | None = None
    """The tuner that answers in its place, where it has chosen one: part of a search's identity."""
    n_refused: int = 0
    """How many answers to this very ask were refused (``nas.tuners.shared.constrained``): another one is wanted."""

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        self.space = space
        self.metrics = metrics
        self.seed = seed

    @property
    def shown_name(self) -> str:
        """What messages call it: the class's name, also of a tuner that others wrap."""
        return type(self).__name__

    @abstractmethod
    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """The ``number``-th proposal of the search stage (from 0), for this job, from the search stage's lineage."""

    def given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """How a point is proposed that the user gave (``init.points``), as the ``number``-th, before any ask."""
        return Proposal(point=point, reason="given initial point")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """The trials that this or any later proposal may name as parent or donor, of those in the lineage; all of them.

        What is not among them may lose its weights (``nas.storage.maintenance.gc.mark``). A trial that is left
        out once is never given again, and no answer depends on whether it still has weights.
        """
        return [trial.number for trial in lineage]

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the scored trials of the lineage, the best first: the finalists are taken from its beginning.

        By the first metric, unless the tuner knows better (a model that knows which scores were luck).
        """
        return lineage.ranked(self.metrics[0])

    def rng(self, number: int) -> random.Random:
        """Returns the randomness of one ask, the same in every process; another after a refused answer."""
        return random.Random(f"{self.seed}/{number}" + (f"/{self.n_refused}" if self.n_refused else ""))


def inheritable(tuner: Tuner, log: LineageLog, n_seen: int, in_stage: Sequence[Trial]) -> frozenset[int]:
    """Returns the trials that a later proposal may name, whichever results the tuner learns of next.

    Args:
        tuner: Of the search.
        log: The results in the order learned.
        n_seen: How many of them it had learned of at its last proposal: later views of the lineage begin there, and
            what such a view has not learned it shows as running.
        in_stage: All trials of the search stage.
    """
    if missing_results(in_stage):  # then the log is not what later asks are shown
        return frozenset(trial.number for trial in in_stage)
    found = {trial.number for trial in in_stage if trial.is_finished and trial.number not in log.position}
    for n_learned in range(n_seen, len(log) + 1):
        rest = (t for t in in_stage if log.position.get(t.number, n_learned) >= n_learned)
        pending = [trial.as_running() for trial in rest]
        found.update(tuner.may_inherit_from(log.view(n_learned, pending)))
    return frozenset(found)
