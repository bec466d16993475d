"""The trials that a page shows: all, or the most relevant of a large search."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from nas.core.lineage import Lineage
from nas.core.trial import State, Trial

if TYPE_CHECKING:
    from nas.views.snapshot import Snapshot

MAX_LISTED = 10_000
"""Rows of the table."""
MAX_DRAWN = 1_500
"""Trials with a mark of their own in the tree and with details."""
_MAX_LINE = 50
"""Ancestors that a trial brings; a line of thousands would leave no room for others."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The trials in the table, and those with a mark in the tree and with details."""

    listed: Lineage
    drawn: Lineage
    n_trials: int

    @property
    def n_unlisted(self) -> int:
        """The number of trials without a row."""
        return self.n_trials - len(self.listed)

    @property
    def n_undrawn(self) -> int:
        """The number of trials without a mark in the tree."""
        return self.n_trials - len(self.drawn)


def select(snapshot: Snapshot, *, max_listed: int = MAX_LISTED, max_drawn: int = MAX_DRAWN) -> Selection:
    """Returns the selection of a search.

    Of too many trials, the winner, later stages and running trials come first. The best, the newest and the newest
    failed trials follow in turn. Each brings its nearest ancestors.
    """
    lineage = snapshot.lineage
    listed = _most_relevant(snapshot, max_listed)
    drawn = listed if len(listed) == len(lineage) <= max_drawn else _most_relevant(snapshot, max_drawn)
    return Selection(listed, drawn, len(lineage))


def _most_relevant(snapshot: Snapshot, n: int) -> Lineage:
    lineage = snapshot.lineage
    if len(lineage) <= n:
        return lineage
    chosen: set[int] = set()
    for trial in _by_relevance(snapshot):
        limit = n // 3 if trial is snapshot.winner else _MAX_LINE
        missing = _missing_line(lineage, trial, chosen, limit)
        chosen.update(missing[: n - len(chosen)])
        if len(chosen) == n:
            break
    return Lineage.of(trial for trial in lineage if trial.number in chosen)


def _missing_line(lineage: Lineage, trial: Trial, chosen: Container[int], limit: int) -> list[int]:
    """Returns the trial and its nearest ancestors, up to the first chosen one."""
    missing: list[int] = []
    while trial.number not in chosen and len(missing) < limit:
        missing.append(trial.number)
        if not trial.parents or trial.parents[0] not in lineage or trial.parents[0] >= trial.number:
            break
        trial = lineage[trial.parents[0]]
    return missing


def _by_relevance(snapshot: Snapshot) -> Iterator[Trial]:
    """Yields the trials, the most important first; some more than once."""
    lineage = snapshot.lineage
    if snapshot.winner is not None:
        yield snapshot.winner
    first = snapshot.stages[0] if snapshot.stages else ""
    yield from (trial for trial in lineage if trial.stage != first or trial.state == State.RUNNING)
    failed = (trial for trial in lineage.newest() if trial.state == State.FAILED)
    for best, newest, failure in zip_longest(lineage.ranked(snapshot.metric), lineage.newest(), failed):
        yield from (trial for trial in (best, newest, failure) if trial is not None)
    yield from lineage.pending
