"""Retention plans and disk budgets: weights that the user keeps although nothing needs them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nas.core import pareto
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.supernet import shared_epoch, shared_epochs
from nas.core.trial import Trial
from nas.core.validation import check_number

_KEEP = re.compile(r"all|frontier|(best|last):([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention plan and a disk budget; neither deletes needed weights (``nas.storage.maintenance.gc.mark``).

    Attributes:
        keep: One of these plans, which count only trials that have weights. ``all``: every trial. ``frontier``: trials
            that gave no weights to a finished trial with weights of its own; with several objectives also the front of
            each stage (``nas.core.pareto``). ``best:K``: the K best of each stage by the first metric. ``last:K``: the
            K that finished last.
        max_gb: Gigabytes (1,000,000,000 bytes) that the search's folder may take, or None. It overrides ``keep``.
    """

    keep: str = "all"
    max_gb: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keep, str) or not _KEEP.fullmatch(self.keep):
            raise ConfigurationError(
                f"keep={self.keep}: must be all, frontier, best:K or last:K, with a whole number K of at least 1"
            )
        if self.max_gb is not None:
            check_number("storage.max_gb", self.max_gb, 0, excluded=0)

    @property
    def max_bytes(self) -> float | None:
        """``max_gb`` in bytes."""
        return None if self.max_gb is None else self.max_gb * 1e9

    @property
    def keeps_all(self) -> bool:
        """Whether only orphans are deleted."""
        return self.keep == "all" and self.max_gb is None

    def kept(self, trials: Sequence[Trial], metrics: Sequence[Metric]) -> frozenset[int]:
        """Returns the trials with weights that the plan keeps; the first metric ranks."""
        holders = [trial for trial in trials if trial.checkpoint is not None]
        kind, _, number = self.keep.partition(":")
        match kind:
            case "frontier":
                published = [trial for trial in trials if trial.checkpoint is not None or trial.weights_deleted]
                donors = {donor for trial in published for donor in trial.resolved_donors}
                front = pareto.numbers_on_front(trials, metrics) if len(metrics) > 1 else frozenset()
                holders = [trial for trial in holders if trial.number not in donors or trial.number in front]
            case "best":
                best_first = from_worst_to_best(holders, metrics[0])[::-1]
                scored = [trial for trial in best_first if trial.value(metrics[0].name) is not None]
                by_stage: dict[str, list[Trial]] = {}
                for trial in scored:
                    by_stage.setdefault(trial.stage, []).append(trial)
                holders = [trial for in_stage in by_stage.values() for trial in in_stage[: int(number)]]
            case "last":
                holders.sort(key=lambda trial: (trial.finished or 0.0, trial.number))
                holders = holders[-int(number) :]
        return frozenset(trial.number for trial in holders)


def from_worst_to_best(trials: Sequence[Trial], metric: Metric) -> list[Trial]:
    """Returns the trials in the order in which the disk budget deletes their weights.

    Trials without a score come first. The others follow stage by stage, since scores of different stages don't compare.
    Within a stage the oldest supernet epoch and its subnets come first.
    """
    epochs = shared_epochs(trials)
    names = dict.fromkeys(trial.stage for trial in trials)
    stages = {stage: position for position, stage in enumerate(names)}

    def rank_of(trial: Trial) -> tuple[bool, int, int, float, int]:
        value = trial.value(metric.name)
        rank = -math.inf if value is None else metric.rank(value)
        return (value is not None, stages[trial.stage], shared_epoch(trial, epochs), rank, -trial.number)

    return sorted(trials, key=rank_of)
