"""Which checkpoint shares most with a new network: the table that answers, and the question as a tuner asks it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from nas.core.checkpoint import LETTERS, Checkpoint
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Donor, State, Trial
from nas.inheritance.donors.point_entries import architecture_entries
from nas.spaces.space import Space
from nas.storage.signature import Measure, Signature, common_layers, common_prefix, n_in_common

__all__ = ["BestDonor", "DonorTable", "LineageDonors", "Signature", "common_layers", "common_prefix"]

Unroll: TypeAlias = Callable[[Point], Iterable[str]]
"""Gives what of a point counts, one text after the other."""
Key: TypeAlias = tuple[str, int]
"""A trial: the name of its search (empty: this one) and its number."""
Rank: TypeAlias = tuple[float, float, Key]
"""Which of two checkpoints that share as much is the better one: score, time, key."""
_IS_MUCH = 200  # of that many rows, sorting all costs less than inserting one into its place


@dataclass(frozen=True, slots=True, kw_only=True)
class BestDonor:
    """The checkpoint that shares most with a new network.

    Attributes:
        donor: As a proposal names it: ``Proposal(point=point, donors=(found.donor,))``.
        trial: Whose checkpoint it is.
        shared: What the measure gave; by default the number of layers (of a point: entries) from the beginning that are
            the same.
    """

    donor: Donor
    trial: Trial
    shared: float


class DonorTable:
    """The trials that have weights, by the signatures of their networks and of their points.

    Args:
        unroll: Gives what of a point counts, in the order in which it counts.
    """

    def __init__(self, unroll: Unroll) -> None:
        self._unroll = unroll
        self._networks = _PrefixTable()
        self._points = _PrefixTable()
        self._waiting: list[tuple[Point, Rank]] = []  # points that no question has needed yet

    def add(self, trial: Trial, rank: Rank, *, has_point: bool = True) -> None:
        """Adds a trial where it has weights; without its point, where that means something else here."""
        if (checkpoint := to_give(trial)) is None:
            return
        if checkpoint.signature:
            self._networks.add(checkpoint.signature, rank)
        if has_point:
            self._waiting.append((trial.point, rank))

    def remove(self, keys: Collection[Key]) -> None:
        """Forgets these trials: they have lost their weights."""
        self._add_points()
        self._networks.remove(keys)
        self._points.remove(keys)

    def best(self, wanted: Signature | Point, measure: Measure) -> tuple[float, Key] | None:
        """What is shared with the trial that shares most, and its key; None where none shares anything."""
        if isinstance(wanted, Signature):
            return self._networks.best(wanted, measure)
        self._add_points()
        return self._points.best(Signature.of_entries(self._unroll(wanted)), measure)

    def _add_points(self) -> None:
        for point, rank in self._waiting:
            self._points.add(Signature.of_entries(self._unroll(point)).text, rank)
        self._waiting.clear()


class LineageDonors:
    """Answers a tuner: which trial of the lineage shares most with a new point or network.

    A function of the lineage alone, as the tuner must be: of equally good ones the highest number wins, one without a
    score comes last, and clocks have no say. Keep it as an attribute; it reads each trial once, and starts over where
    the lineage is another.

        self.donors = LineageDonors(space, metrics[0])
        ...
        found = self.donors.best_donor(lineage, point)
        return Proposal(point=point, parents=(parent.number,), donors=() if found is None else (found.donor,))

    Args:
        space: Gives the order of a point's entries.
        metric: Decides between trials that share as much.
        unroll: Gives what of a point counts, in the order in which it counts; by default all but constants and what a
            ``Float`` says, in the order of the space.
    """

    def __init__(self, space: Space, metric: Metric, *, unroll: Unroll | None = None) -> None:
        self._metric = metric
        self._unroll = unroll or unroll_by(space.describe())
        self._table = DonorTable(self._unroll)
        self._seen: list[Trial] = []

    def best_donor(
        self, lineage: Lineage, wanted: Signature | Point, *, measure: Measure = common_prefix
    ) -> BestDonor | None:
        """Returns the finished trial with weights that shares most, or None where none shares anything.

        Args:
            lineage: As the tuner was given it.
            wanted: A point, or the signature of a network.
            measure: How much two networks or points share.
        """
        finished = list(lineage.finished)
        if finished[: len(self._seen)] != self._seen:
            self._table, self._seen = DonorTable(self._unroll), []
        for trial in finished[len(self._seen) :]:
            self._table.add(trial, (score_of(trial, self._metric), 0.0, ("", trial.number)))
        self._seen = finished
        found = self._table.best(wanted, measure)
        if found is None:
            return None
        shared, (_, number) = found
        return BestDonor(donor=number, trial=lineage[number], shared=shared)


def to_give(trial: Trial) -> Checkpoint | None:
    """The weights that a question for the best donor may be answered with, if it has such; it needs no score."""
    return trial.checkpoint if trial.state in (State.COMPLETE, State.STOPPED) else None


def unroll_by(space: Mapping[str, Any]) -> Unroll:
    """Unrolls points in the order of the space that is described so (``Space.describe``)."""
    return partial(architecture_entries, space=space)


def score_of(trial: Trial, metric: Metric) -> float:
    """Returns the trial's score, greater where better; minus infinity where it has none."""
    value = trial.value(metric.name)
    return float("-inf") if value is None else metric.rank(value)


class _PrefixTable:
    """Texts of signatures, sorted: those with a common beginning are neighbors, which bisection finds."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, Rank]] = []
        self._new: list[tuple[str, Rank]] = []

    def add(self, text: str, rank: Rank) -> None:
        self._new.append((text, rank))

    def remove(self, keys: Collection[Key]) -> None:
        self._sort_in()
        self._rows = [row for row in self._rows if row[1][2] not in keys]

    def best(self, wanted: Signature, measure: Measure) -> tuple[float, Key] | None:
        self._sort_in()
        shared, rank = self._longest(wanted) if measure is common_prefix else self._greatest(wanted, measure)
        return None if rank is None else (shared, rank[2])

    def _sort_in(self) -> None:
        if _IS_MUCH * len(self._new) > len(self._rows):
            self._rows.extend(self._new)
            self._rows.sort()
        else:
            for row in self._new:
                insort(self._rows, row)
        self._new.clear()

    def _longest(self, wanted: Signature) -> tuple[float, Rank | None]:
        at = bisect_left(self._rows, (wanted.text,))
        neighbors = self._rows[max(at - 1, 0) : at + 1]
        n = max((n_in_common(wanted.text, text) for text, _ in neighbors), default=0)
        if n == 0:
            return 0.0, None
        beginning = wanted.text[: n * LETTERS]
        low = bisect_left(self._rows, (beginning,))
        high = bisect_left(self._rows, (beginning + "~",), low)  # "~" sorts behind every letter
        return common_prefix(wanted, beginning), max(map(itemgetter(1), self._rows[low:high]))

    def _greatest(self, wanted: Signature, measure: Measure) -> tuple[float, Rank | None]:
        same = groupby(self._rows, key=itemgetter(0))  # each network once, and of its trials the last is the best
        offers = ((measure(wanted, text), max(rows)[1]) for text, rows in same)
        best: tuple[float, Rank | None] = max(offers, default=(0.0, None))
        return best if best[0] > 0 else (0.0, None)
