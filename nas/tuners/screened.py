"""Screening: of several points of another tuner, the one that proxies rank first is trained.

After the move proposals of Abdelfattah et al. 2021 (arXiv:2101.08134).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.supernet import epoch_of
from nas.core.trial import Proposal
from nas.core.validation import check_int
from nas.spaces.space import Space
from nas.training.proxy_scores import ProxyScores, check_available
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.shared.inner import build_inner, inner_startup_trials
from nas.tuners.shared.wrapper import WrapperTuner


class ScreenedTuner(WrapperTuner):
    """Asks another tuner for several points, and proposes the one that proxies rank first.

    A proxy is a metric that is known before training, of which more is better. Static metrics, such as the numbers of
    parameters and of floating-point operations, are computed here (``Problem.static_metrics``). Others need a forward
    pass and are computed on a worker (``nas.training.proxies``); the tuner answers WAIT meanwhile. The ranks by several
    proxies are added.

    Args:
        space: The inner tuner's space.
        metrics: The inner tuner's metrics.
        seed: The inner tuner's seed.
        inner: ``_target_`` and arguments of the tuner that gives the points; by default ``random``.
        n_candidates: Number of points for each proposal, repeated points included. For evolution with live
            FLOPs on NAS-Bench-201, 4 were better than 8 or 32.
        proxies: Names of static metrics, or any of naswot, jacov, snip and synflow.

    Raises:
        ConfigurationError: an argument is invalid, or the inner tuner can't be built or does not fit.
    """

    code_arguments: ClassVar[frozenset[str]] = frozenset({"inner"})

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        inner: Mapping[str, Any] | None = None,
        n_candidates: int = 32,
        proxies: Sequence[str] = ("flops",),
    ) -> None:
        super().__init__(build_inner(inner, space, metrics, seed))
        check_int("tuner.n_candidates", n_candidates, 1)
        if isinstance(proxies, str) or not proxies:
            raise ConfigurationError(f"tuner.proxies={proxies!r}: must be a list of names. Write tuner.proxies=[flops]")
        self.n_candidates = n_candidates
        self.proxies = tuple(proxies)
        self._static_metrics: Callable[[Point], Mapping[str, float]] = lambda point: {}
        self._scores = ProxyScores()
        self._computed: frozenset[str] = frozenset()
        self.startup_trials = inner_startup_trials(self.inner)

    def use_proxies(self, scores: ProxyScores) -> None:
        """Sets the scores that are computed on workers."""
        self.inner.use_proxies(scores)
        self._scores = scores

    def use_static_metrics(self, static_metrics: Callable[[Point], Mapping[str, float]]) -> None:
        """Sets the function that gives the proxies.

        Raises:
            ConfigurationError: it does not give one of them.
        """
        self.inner.use_static_metrics(static_metrics)
        self._static_metrics = static_metrics
        known = static_metrics(self.space.sample(random.Random(0))).keys()
        for name in self.proxies:
            check_available("tuner.proxies", name, self._scores.available, known)
        self._computed = frozenset(self.proxies) - known
        self._scores.need(name for name in self.proxies if name in self._computed)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the inner tuner's proposal with the best proxies, or its answer if it has none.

        WAIT: a worker must compute proxies first. A supernet epoch of the inner tuner is proposed without proxies.
        """
        proposals: dict[str, Proposal] = {}
        answer: Proposal | Answer = STOP
        refusing = lineage.refusing(lambda point: point_key(point) in proposals or lineage.refuses(point))
        try:
            for candidate in range(self.n_candidates):
                self.inner.n_refused = self.n_refused * self.n_candidates + candidate
                answer = self.inner.ask(refusing, number, job)
                if not isinstance(answer, Proposal) or epoch_of(answer.point) is not None:
                    break
                proposals.setdefault(point_key(answer.point), answer)
        finally:
            self.inner.n_refused = 0
        return self._best(list(proposals.values()), number) if proposals else answer

    def _best(self, proposals: Sequence[Proposal], number: int) -> Proposal | Answer:
        """Returns the first proposal with the largest sum of ranks; WAIT if proxies are unknown."""
        points = [proposal.point for proposal in proposals]
        computed = self._scores.find(points, number) if self._computed else []
        if computed is None:
            return WAIT
        if len(proposals) == 1:
            return proposals[0]
        known = [self._static_metrics(point) for point in points]
        rows = {name: computed if name in self._computed else known for name in self.proxies}
        columns = [_ranks([float(values[name]) for values in rows[name]]) for name in self.proxies]
        sums = [sum(ranks) for ranks in zip(*columns, strict=True)]
        return proposals[sums.index(max(sums))]


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns each value's rank from 0; equal values share the mean, not finite ones rank last."""
    keys = [value if math.isfinite(value) else -math.inf for value in values]
    return [sum(other < key for other in keys) + (keys.count(key) - 1) / 2 for key in keys]
