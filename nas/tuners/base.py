"""Tuners: functions from the lineage to the next proposal."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple

from nas.core.arguments import RecordsArguments
from nas.core.lineage import Lineage, LineageLog, missing_results
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.supernet import comparable, shared_epochs
from nas.core.trial import DONOR_RULES, Proposal, Trial
from nas.spaces.space import Space
from nas.training.proxy_scores import ProxyScores


class Answer(Enum):
    """The answers of a tuner that has no proposal."""

    WAIT = "wait"
    """No proposal now: ask again after the next result."""
    STOP = "stop"
    """No further proposals."""


WAIT = Answer.WAIT
STOP = Answer.STOP


class StartupTrials(NamedTuple):
    """The first trials of a tuner, which no result influences.

    Attributes:
        number: The number of trials; with several slots there may be more.
        option: The tuner's option that sets it, or None.
    """

    number: int
    option: str | None = None

    def note(self, n_trials: int) -> str | None:
        """Returns a line if ``n_trials`` are a random search, else None."""
        if n_trials > self.number:
            return None
        lower = "" if self.option is None else f", or lower tuner.{self.option}"
        return (
            f"budget.trials={n_trials}: this is a random search, because the tuner's first {self.number} trials do not "
            f"depend on results. Raise budget.trials above {self.number}{lower}"
        )


class Tuner(RecordsArguments, ABC):
    """Proposes points, as a function of the lineage.

    A resumed search asks again and gets the same answers. A tuner keeps no state that it could not compute again.
    Caches are allowed if answers do not depend on them. Randomness comes from ``self.rng(number)``.
    """

    data_arguments: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments that are paths of data: neither part of the identity nor recorded."""
    code_arguments: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments that are code or paths of code: never taken from a record alone."""
    may_be_inner: ClassVar[bool] = True
    """Whether another tuner may leave out or change its proposals, and add some (``tuner.inner``)."""
    foreign_arguments: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments for other code: no text in them comes from a record alone."""
    chosen: Spec | None = None
    """The tuner that this one delegates to, if it chose one; part of the search's identity."""
    startup_trials: StartupTrials | None = None
    """The first trials, which no result influences. None: each may depend on results, or none does."""
    uses_durations: bool = False
    """Whether its answers depend on how long trials took, so that a deterministic search refuses it."""
    n_refused: int = 0
    """The number of refused answers to the same ask (``nas.tuners.shared.constrained``)."""

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        self.space = space
        self.metrics = metrics
        self.seed = seed

    @property
    def code_files(self) -> Mapping[str, Path]:
        """Files with code besides the class's module and its imports, by name."""
        return {}

    @property
    def shown_name(self) -> str:
        """The tuner's name in messages; that of the wrapped tuner if it wraps one."""
        return type(self).__name__

    def use_static_metrics(self, static_metrics: Callable[[Point], Mapping[str, float]]) -> None:
        """Gets ``Problem.static_metrics``: metrics of a point that are known before training. Called before any ask."""

    def use_policies(self, policies: frozenset[Policy]) -> None:
        """Gets the policies that the problem implements. Called before any ask."""

    def check_trials(self, n_trials: int) -> None:
        """Checks the number of trials of the search stage.

        Raises:
            ConfigurationError: no trial that can win would get a score.
        """

    def use_proxies(self, scores: ProxyScores) -> None:
        """Gets the proxies that the problem can give, computed on workers. Called before ``use_static_metrics``."""

    @abstractmethod
    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next proposal of the search stage, or why there is none.

        Args:
            lineage: The search stage's trials.
            number: The index of the proposal in the stage, from 0.
            job: The job that will run the trial.
        """

    def propose_given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """Returns the proposal of a point from ``init.points``, as number ``number``."""
        return Proposal(point=point, reason="given initial point")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trials that a proposal, now or later, may name as donors; all by default.

        Parents are donors unless a proposal names others.

        The weights of other trials may be deleted (``nas.storage.maintenance.gc.mark``). A trial that was left out once
        must stay left out. No answer may depend on whether a trial has weights.
        """
        return [trial.number for trial in lineage]

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the scored trials, best first; the first ones become finalists.

        They are sorted by the first metric, unless a tuner has a better estimate of the true scores. Subnets come
        without their supernet epochs, those of the newest first.
        """
        groups = comparable(lineage.ranked(self.metrics[0]), shared_epochs(lineage))
        return [trial for group in groups for trial in group]

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the reason of the answer STOP, for the user, or an empty text."""
        return ""

    def rng(self, number: int) -> random.Random:
        """Returns the generator of one ask, seeded by seed, number and ``n_refused``."""
        return random.Random(f"{self.seed}/{number}" + (f"/{self.n_refused}" if self.n_refused else ""))


def least_seen(in_stage: Sequence[Trial], *, deterministic: bool) -> int:
    """Returns how many results later proposals and donor rules of unfinished trials see at least.

    Args:
        in_stage: All trials of the search stage.
        deterministic: Whether a donor rule chooses among the results that the trial's proposal saw.
    """
    seen = list(itertools.accumulate((len(trial.learned) for trial in in_stage if trial.is_counted), initial=0))
    by_rule = [t for t in in_stage if not (t.is_finished or DONOR_RULES.isdisjoint(t.proposal.weight_donors))]
    return min((seen[trial.index + 1] for trial in by_rule), default=seen[-1]) if deterministic else seen[-1]


def inheritable(tuner: Tuner, log: LineageLog, n_seen: int, in_stage: Sequence[Trial]) -> frozenset[int]:
    """Returns the trials that later proposals, and donor rules of unfinished trials, may name as donors.

    Args:
        tuner: The search's tuner.
        log: The results in the order learned.
        n_seen: The number of results that all of these see (``least_seen``). The others may appear as running.
        in_stage: All trials of the search stage.
    """
    if missing_results(in_stage):  # then later asks are shown another log
        return frozenset(trial.number for trial in in_stage)
    found = {trial.number for trial in in_stage if trial.is_finished and trial.number not in log.position}
    for n_learned in range(n_seen, len(log) + 1):
        rest = (t for t in in_stage if log.position.get(t.number, n_learned) >= n_learned)
        pending = [trial.as_running() for trial in rest]
        found.update(tuner.may_inherit_from(log.view(n_learned, pending)))
    return frozenset(found)
