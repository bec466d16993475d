"""The base class of tuners that wrap another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from nas.core.lineage import Lineage
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.trial import Proposal, Trial
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import Tuner
from nas.tuners.shared.inner import inner_code_files


class WrapperTuner(Tuner):
    """Passes everything but ``ask`` on to another tuner.

    Args:
        inner: The other tuner. Space, metrics and seed are its own.
    """

    def __init__(self, inner: Tuner) -> None:
        super().__init__(inner.space, inner.metrics, seed=inner.seed)
        self.inner = inner
        self.chosen = inner.chosen
        self.startup_trials = inner.startup_trials
        self.uses_durations = inner.uses_durations

    @property
    def code_files(self) -> Mapping[str, Path]:
        """The files of the inner tuner."""
        return inner_code_files(self.inner)

    @property
    def shown_name(self) -> str:
        """The name of the inner tuner."""
        return self.inner.shown_name

    def use_static_metrics(self, static_metrics: Callable[[Point], Mapping[str, float]]) -> None:
        """Passes the static metrics on."""
        self.inner.use_static_metrics(static_metrics)

    def use_policies(self, policies: frozenset[Policy]) -> None:
        """Passes the problem's policies on."""
        self.inner.use_policies(policies)

    def use_proxies(self, scores: ProxyScores) -> None:
        """Passes the proxies on."""
        self.inner.use_proxies(scores)

    def check_trials(self, n_trials: int) -> None:
        """Passes the number of trials on."""
        self.inner.check_trials(n_trials)

    def propose_given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """Returns the inner tuner's proposal of a given point."""
        return self.inner.propose_given(point, lineage, number)

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trials that the inner tuner may name."""
        return self.inner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the inner tuner's ranking."""
        return self.inner.ranked(lineage)

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the inner tuner's reason."""
        return self.inner.stop_reason(lineage)
