"""Which trials keep their weights although nothing needs them: the user's plan, and what the disk may hold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nas.core import pareto
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.trial import Trial

_KEEP = re.compile(r"all|frontier|(best|last):([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention plan and a disk budget; neither ever takes what is needed (``nas.storage.maintenance.gc.mark``).

    Attributes:
        keep: ``all``; ``frontier``: the trials from which no finished trial that published weights was given weights;
            and, of several objectives, the front of each stage (``nas.core.pareto``); ``best:K``: of each stage the K
            best by the first metric; ``last:K``: the K that finished last. Only trials that have weights are counted.
        max_gb: Gigabytes (1,000,000,000 bytes) that the search's folder may take, or None. It goes before ``keep``.
    """

    keep: str = "all"
    max_gb: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keep, str) or not _KEEP.fullmatch(self.keep):
            raise ConfigurationError(
                f"keep ({self.keep}) must be all, frontier, best:K or last:K, K a whole number of at least 1"
            )
        if self.max_gb is not None:
            gb = self.max_gb
            if isinstance(gb, bool) or not isinstance(gb, int | float) or not math.isfinite(gb) or gb <= 0:
                raise ConfigurationError(f"storage.max_gb ({gb!r}) must be a number of gigabytes greater than 0")

    @property
    def max_bytes(self) -> float | None:
        """``max_gb`` in bytes."""
        return None if self.max_gb is None else self.max_gb * 1e9

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever swept but what no record names."""
        return self.keep == "all" and self.max_gb is None

    def kept(self, trials: Sequence[Trial], metrics: Sequence[Metric]) -> frozenset[int]:
        """Returns the trials that the plan keeps, of those that have weights; the first metric ranks."""
        holders = [trial for trial in trials if trial.checkpoint is not None]
        kind, _, number = self.keep.partition(":")
        match kind:
            case "frontier":
                published = [t for t in trials if t.checkpoint is not None or t.weights_deleted]
                parents = {donor for trial in published for donor in trial.resolved_donors}
                front = pareto.numbers_on_front(trials, metrics) if len(metrics) > 1 else frozenset()
                holders = [t for t in holders if t.number not in parents or t.number in front]
            case "best":
                best_first = from_worst_to_best(holders, metrics[0])[::-1]
                scored = [trial for trial in best_first if trial.value(metrics[0].name) is not None]
                in_stage = [[t for t in scored if t.stage == stage] for stage in {t.stage for t in scored}]
                holders = [trial for stage in in_stage for trial in stage[: int(number)]]
            case "last":
                holders = sorted(holders, key=lambda t: (t.finished or 0.0, t.number))[-int(number) :]
        return frozenset(trial.number for trial in holders)


def from_worst_to_best(trials: Sequence[Trial], metric: Metric) -> list[Trial]:
    """Trials in the order in which a full disk costs them their weights.

    Without a score first, then the worst of the first stage to the best of the last: scores of stages don't compare.
    """
    stages = {stage: place for place, stage in enumerate(dict.fromkeys(t.stage for t in trials))}

    def worth(trial: Trial) -> tuple[bool, int, float, int]:
        value = trial.value(metric.name)
        rank = -math.inf if value is None else metric.rank(value)
        return (value is not None, stages[trial.stage], rank, -trial.number)

    return sorted(trials, key=worth)
