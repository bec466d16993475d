"""A table of trials with weights, searched for the most similar network or point."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from nas.core.checkpoint import LETTERS, Checkpoint
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Donor, State, Trial
from nas.inheritance.donors.point_entries import PointEntries
from nas.inheritance.donors.similarity import common_prefix, n_common_digests
from nas.storage.signature import Signature

Key: TypeAlias = tuple[str, int]
"""A trial: the name of its search (empty: this search) and its number."""
Rank: TypeAlias = tuple[float, float, Key]
"""Score, time and key; if two trials share as much, the greater rank is better."""
_SORT_ALL_BELOW = 200  # rows for each new one: then sorting all costs less than inserting one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class BestDonor:
    """The trial that shares the most with a new network.

    Attributes:
        donor: Its name in a proposal: ``Proposal(point=point, donors=(found.donor,))``.
        trial: The trial.
        shared: The number of equal layers (of points: entries) from the first on.
    """

    donor: Donor
    trial: Trial
    shared: int


class DonorTable:
    """The trials with weights, sorted by the signatures of their networks and of their points.

    Args:
        entries_of: Returns the entries of a point, the most important first.
    """

    def __init__(self, entries_of: PointEntries) -> None:
        self._entries_of = entries_of
        self._networks = _PrefixTable()
        self._points = _PrefixTable()
        self._unread_points: list[tuple[Point, Rank]] = []
        """Points that are not in the table yet, since no question needed them."""

    def add(self, trial: Trial, rank: Rank, *, has_point: bool = True) -> None:
        """Adds a trial if it has weights; without its point, if that belongs to another problem."""
        if (checkpoint := usable_checkpoint(trial)) is None:
            return
        if checkpoint.signature:
            self._networks.add(checkpoint.signature, rank)
        if has_point:
            self._unread_points.append((trial.point, rank))

    def remove(self, keys: Collection[Key]) -> None:
        """Removes the trials with these keys."""
        self._add_points()
        self._networks.remove(keys)
        self._points.remove(keys)

    def best(self, wanted: Signature | Point) -> tuple[int, Key] | None:
        """Returns the number of shared layers and the best trial's key, or None."""
        if isinstance(wanted, Signature):
            return self._networks.best(wanted)
        self._add_points()
        return self._points.best(Signature.of_entries(self._entries_of(wanted)))

    def _add_points(self) -> None:
        for point, rank in self._unread_points:
            self._points.add(Signature.of_entries(self._entries_of(point)).text, rank)
        self._unread_points.clear()


def usable_checkpoint(trial: Trial) -> Checkpoint | None:
    """Returns the weights of a COMPLETE or STOPPED trial, if any; it needs no score."""
    return trial.checkpoint if trial.state in (State.COMPLETE, State.STOPPED) else None


def score_of(trial: Trial, metric: Metric) -> float:
    """Returns the trial's score, greater if better; minus infinity without a score."""
    value = trial.value(metric.name)
    return float("-inf") if value is None else metric.rank(value)


class _PrefixTable:
    """Texts of signatures, sorted, so that bisection finds those with a common beginning."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, Rank]] = []
        self._new: list[tuple[str, Rank]] = []

    def add(self, text: str, rank: Rank) -> None:
        self._new.append((text, rank))

    def remove(self, keys: Collection[Key]) -> None:
        self._sort_in()
        self._rows = [row for row in self._rows if row[1][2] not in keys]

    def best(self, wanted: Signature) -> tuple[int, Key] | None:
        self._sort_in()
        at = bisect_left(self._rows, (wanted.text,))
        neighbors = self._rows[max(at - 1, 0) : at + 1]
        n = max((n_common_digests(wanted.text, text) for text, _ in neighbors), default=0)
        if n == 0:
            return None
        prefix = wanted.text[: n * LETTERS]
        low = bisect_left(self._rows, (prefix,))
        high = bisect_left(self._rows, (prefix + "~",), low)  # "~" sorts after every letter of a digest
        _, _, key = max(map(itemgetter(1), self._rows[low:high]))
        return common_prefix(wanted, prefix), key

    def _sort_in(self) -> None:
        if _SORT_ALL_BELOW * len(self._new) > len(self._rows):
            self._rows.extend(self._new)
            self._rows.sort()
        else:
            for row in self._new:
                insort(self._rows, row)
        self._new.clear()
