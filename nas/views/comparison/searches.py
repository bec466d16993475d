"""Searches that are compared, with the budgets of their sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.full_scores import PARTIAL
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.validation import first_of
from nas.storage.blobs import BlobStore
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from nas.views.snapshot import Snapshot, read_snapshot


@dataclass(frozen=True, kw_only=True)
class ComparedSearch:
    """A search beside others.

    Attributes:
        snapshot: The search.
        budget: The largest budget of its sessions, without parts that are not set.
    """

    snapshot: Snapshot
    budget: Mapping[str, float]

    @property
    def name(self) -> str:
        """The search's name."""
        return self.snapshot.name

    @property
    def hours(self) -> float:
        """Hours of all sessions."""
        return self.snapshot.hours

    @property
    def data(self) -> Mapping[str, str]:
        """Digests of its data files, by argument."""
        return self.snapshot.data

    @property
    def tuner(self) -> str:
        """The tuner's short name."""
        return Spec(self.snapshot.identity["tuner"]["target"]).name

    @property
    def problem(self) -> str:
        """The problem's short name."""
        return Spec(self.snapshot.identity["problem"]["target"]).name

    @property
    def seed(self) -> int:
        """The seed of the search."""
        return int(self.snapshot.identity["seed"])

    @property
    def validation(self) -> float | None:
        """The best validation score, which is the winner's, or None."""
        return None if self.snapshot.winner is None else self.snapshot.winner.value(self.snapshot.metric.name)

    @property
    def test(self) -> float | None:
        """The winner's test score, or None."""
        winner = self.snapshot.winner
        tested = {} if winner is None else self.snapshot.tests.get(winner.number, {}).get("metrics") or {}
        return tested.get(self.snapshot.metric.name)

    @property
    def inherited(self) -> float | None:
        """The mean share of parameters that trials with donors inherited, or None."""
        shares = [t.inherited_share for t in self.snapshot.lineage if t.inherited_share is not None]
        return fmean(shares) if shares else None

    @property
    def is_shared(self) -> bool:
        """Whether the best validation score is one of shared weights."""
        winner = self.snapshot.winner
        return winner is not None and winner.number in self.snapshot.shared_scores

    @property
    def is_partial(self) -> bool:
        """Whether the winner's score is partial: of an earlier stage, under QUICK_EVAL or DOWNSCALE."""
        winner = self.snapshot.winner
        return winner is not None and winner.stage != self.snapshot.stages[-1] and bool(winner.policies & PARTIAL)

    @property
    def counts(self) -> bool:
        """Whether means and tests include it: finished, with a full score of its own weights."""
        has_full_score = self.validation is not None and not self.is_shared and not self.is_partial
        return self.snapshot.standing == "finished" and has_full_score


def read_compared(files: BlobStore, now: float) -> ComparedSearch:
    """Reads the search whose folder is ``files``.

    Raises:
        SearchNotFoundError: there is no search.
        ConfigurationError: the records have another format.
        CorruptError: a record can't be read.
    """
    snapshot = read_snapshot(files, now)
    settings = (session.get("settings", {}) for session in past_sessions(Records(files)).values())
    budgets = (found["budget"] for found in settings if isinstance(found.get("budget"), Mapping))
    return ComparedSearch(snapshot=snapshot, budget=_largest(budgets))


def _largest(budgets: Any) -> dict[str, float]:
    """Returns the largest value of each limit of these budgets."""
    largest: dict[str, float] = {}
    for budget in budgets:
        for limit in ("trials", "hours", "gpu_hours", "jobs"):
            value = budget.get(limit)
            if isinstance(value, int | float):
                largest[limit] = max(value, largest.get(limit, value))
    return largest


def shared_metric(searches: Sequence[ComparedSearch]) -> Metric:
    """Returns the metric that ranks in every search.

    Raises:
        ConfigurationError: the searches rank by different metrics.
    """
    by_metric: dict[tuple[str, str], list[str]] = {}
    for search in searches:
        metric = search.snapshot.metric
        by_metric.setdefault((metric.name, metric.direction), []).append(search.name)
    if len(by_metric) > 1:
        each = "; ".join(f"{name} ({way}) in {first_of(names, 3)}" for (name, way), names in by_metric.items())
        raise ConfigurationError(f"the searches must rank by one metric: {each}. Choose some of them by names=A,B")
    return searches[0].snapshot.metric
