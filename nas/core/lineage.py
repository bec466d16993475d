"""Trials in the order learned by the tuner, and the graph of parents and donors."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import overload

from nas.core.errors import TrialNotFoundError
from nas.core.learning_order import LearningOrder
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.supernet import is_subnet
from nas.core.trial import Donor, State, Trial

Change = Callable[[Trial, Callable[[int], Trial | None]], Trial]
"""Returns a learned trial as a part of a lineage shows it.

The second argument finds trials that were learned before.
"""


class LineageLog:
    """An append-only log of finished trials in the order learned.

    A lineage is a view of its first entries.

    Args:
        trials: The finished trials to start with.
        key: Returns the key of a point (``Space.key``). Points with equal keys are the same point.
    """

    def __init__(self, trials: Iterable[Trial] = (), *, key: Callable[[Point], str] = point_key) -> None:
        self.learned: list[Trial] = []
        self.position: dict[int, int] = {}
        self.key = key
        self._proposed: list[Trial] = []
        self._keys: dict[int, str] = {}
        self._first_learned = _Firsts()
        self._first_proposed = _Firsts()
        self._scored: dict[str, tuple[int, list[int]]] = {}
        self._rankings: dict[Metric, tuple[int, list[tuple[float, int, int]]]] = {}
        self._parts: dict[tuple[Callable[[Trial], bool], Change | None], _Part] = {}
        for trial in trials:
            self.append(trial)

    def __len__(self) -> int:
        return len(self.learned)

    def add_proposed(self, trial: Trial) -> None:
        """Adds a proposed trial. Trials are added in the order of their proposals."""
        self._proposed.append(trial)

    @property
    def n_proposed(self) -> int:
        """The number of proposed trials."""
        return len(self._proposed)

    def has_point(self, point: Point, n_learned: int, n_proposed: int) -> bool:
        """Returns whether the first learned or the first proposed trials include the point."""
        key = self.key(point)
        return (
            self._first_learned.place(key, self.learned, self.key_of) < n_learned
            or self._first_proposed.place(key, self._proposed, self.key_of) < n_proposed
        )

    def append(self, trial: Trial) -> None:
        """Adds a finished trial at the end.

        Raises:
            ValueError: it is not finished, or is in the log already.
        """
        if not trial.is_finished or trial.number in self.position:
            raise ValueError(f"trial {trial.number} ({trial.state}) is not finished, or is in the log already")
        self.position[trial.number] = len(self.learned)
        self.learned.append(trial)

    def ranking(self, metric: Metric) -> list[tuple[float, int, int]]:
        """Returns (minus rank, number, position) of the scored trials, best first.

        The list never changes.
        """
        n_seen, entries = self._rankings.get(metric, (0, []))
        if n_seen == len(self.learned):
            return entries
        entries = entries.copy()  # cheaper than comparing all entries again
        for position in range(n_seen, len(self.learned)):
            trial = self.learned[position]
            if (value := trial.value(metric.name)) is not None:
                insort(entries, (-metric.rank(value), trial.number, position))
        self._rankings[metric] = (len(self.learned), entries)
        return entries

    def scored(self, metric: Metric, n_learned: int, n: int) -> list[Trial]:
        """Returns the last ``n`` scored trials among the first ``n_learned``, newest first."""
        end = self.n_scored(metric, n_learned)
        positions = self._scored[metric.name][1]
        return [self.learned[position] for position in reversed(positions[max(end - n, 0) : end])]

    def n_scored(self, metric: Metric, n_learned: int) -> int:
        """Returns the number of scored trials among the first ``n_learned``."""
        seen, positions = self._scored.get(metric.name, (0, []))
        for position in range(seen, len(self.learned)):
            if self.learned[position].value(metric.name) is not None:
                positions.append(position)
        self._scored[metric.name] = (len(self.learned), positions)
        return bisect_left(positions, n_learned)

    def delete_weights(self, number: int) -> None:
        """Marks the weights of a trial as deleted, if the trial is in the log."""
        if (position := self.position.get(number)) is not None:
            self.learned[position] = self.learned[position].delete_weights()
        for part in self._parts.values():
            part.log.delete_weights(number)

    def find(self, number: int) -> Trial | None:
        """Returns the learned trial with this number, or None."""
        position = self.position.get(number)
        return None if position is None else self.learned[position]

    def part(self, keep: Callable[[Trial], bool], change: Change | None = None) -> _Part:
        """Returns a log of the trials for which ``keep`` is true; it follows this one."""
        part = self._parts.setdefault((keep, change), _Part(LineageLog(key=self.key)))
        for trial in self.learned[part.n_learned :]:
            if keep(trial):
                part.log.append(trial if change is None else change(trial, self.find))
            part.learned_before.append(len(part.log))
        for trial in self._proposed[part.n_proposed :]:
            if keep(trial):
                part.log.add_proposed(trial)
            part.proposed_before.append(part.log.n_proposed)
        return part

    def key_of(self, trial: Trial) -> str:
        """Returns the key of a trial's point; each key is computed once."""
        if trial.number not in self._keys:
            self._keys[trial.number] = self.key(trial.point)
        return self._keys[trial.number]

    def view(self, n_learned: int | None = None, pending: Iterable[Trial] = ()) -> Lineage:
        """Returns the lineage of the first ``n_learned`` trials (default: all) and these pending trials.

        Pending trials were proposed and are not among the learned ones.
        """
        return Lineage(self, len(self.learned) if n_learned is None else n_learned, tuple(pending))


class _Part:
    """A part of a log.

    Attributes:
        log: The trials of the part.
        learned_before: By number of first learned trials of the whole log: how many of them the part has.
        proposed_before: The same for proposed trials.
    """

    def __init__(self, log: LineageLog) -> None:
        self.log = log
        self.learned_before = [0]
        self.proposed_before = [0]

    @property
    def n_learned(self) -> int:
        """The number of learned trials of the whole log that were looked at."""
        return len(self.learned_before) - 1

    @property
    def n_proposed(self) -> int:
        """The number of proposed trials of the whole log that were looked at."""
        return len(self.proposed_before) - 1


class _Firsts:
    """The first position of each key in a growing list. Keys are computed on demand."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._n_known = 0

    def place(self, key: str, trials: Sequence[Trial], key_of: Callable[[Trial], str]) -> int:
        """Returns the first position of the key, or the number of trials if there is none."""
        for place in range(self._n_known, len(trials)):
            self._places.setdefault(key_of(trials[place]), place)
        self._n_known = len(trials)
        return self._places.get(key, len(trials))


def restore_log(
    in_stage: Sequence[Trial], *, deterministic_slots: int | None, key: Callable[[Point], str] = point_key
) -> LineageLog:
    """Returns the log of a stage in the order in which the tuner learned its results.

    Results recorded by proposals come first, in that order. The others follow in the order in which they finished.
    In a deterministic search the others follow in their ``LearningOrder``, up to the first unfinished trial. Results
    that a proposal recorded but that are missing now are left out (``missing_results``).

    Args:
        in_stage: The trials of one stage, by number, as ``Records.load`` has checked them.
        deterministic_slots: The slots of a deterministic search; None: the search is another one.
        key: Returns the key of a point.
    """
    in_stage = [trial for trial in in_stage if trial.more_epochs is None]
    finished = {t.number: t for t in in_stage if t.is_finished}
    listed = {number: None for trial in in_stage for number in trial.learned}
    known: Iterable[int]
    if deterministic_slots is not None:
        order = LearningOrder(deterministic_slots, (t for t in in_stage if t.number not in listed))
        n_proposed = sum(trial.is_counted for trial in in_stage)
        rest = order.numbers()[: order.n_settled(n_proposed)]
        known = itertools.takewhile(finished.__contains__, (*listed, *rest))
    else:
        rest = sorted(finished.keys() - listed, key=lambda number: (finished[number].finished or 0.0, number))
        known = filter(finished.__contains__, (*listed, *rest))
    log = LineageLog(map(finished.__getitem__, known), key=key)
    for trial in in_stage:
        log.add_proposed(trial)
    return log


def missing_results(in_stage: Sequence[Trial]) -> set[int]:
    """Returns the trials without the result that a later proposal recorded.

    They run again before the tuner is asked.
    """
    finished = {t.number for t in in_stage if t.is_finished}
    return {number for trial in in_stage for number in trial.learned} - finished


class Lineage:
    """The trials that tuners and stoppers see: finished in the order learned, then pending."""

    def __init__(self, log: LineageLog, n_finished: int, pending: tuple[Trial, ...]) -> None:
        self._log = log
        self.n_finished = n_finished
        self.pending = pending
        self._n_proposed = log.n_proposed if pending else 0
        self._is_refused: Callable[[Point], bool] | None = None
        self.allows_epochs = True
        """Whether there is time for a supernet epoch."""

    @classmethod
    def of(cls, trials: Iterable[Trial], *, key: Callable[[Point], str] = point_key) -> Lineage:
        """Returns the lineage of these trials. Finished ones were learned in the given order."""
        known = list(trials)
        log = LineageLog((t for t in known if t.is_finished), key=key)
        for trial in known:
            log.add_proposed(trial)
        return log.view(pending=[t for t in known if not t.is_finished])

    def __repr__(self) -> str:
        return f"<Lineage of {self.n_finished} finished and {len(self.pending)} pending trials>"

    def __len__(self) -> int:
        return self.n_finished + len(self.pending)

    def __iter__(self) -> Iterator[Trial]:
        yield from self._log.learned[: self.n_finished]
        yield from self.pending

    def __contains__(self, number: int) -> bool:
        return self._log.position.get(number, self.n_finished) < self.n_finished or number in self._pending_by_number

    def __getitem__(self, number: int) -> Trial:
        """Returns the trial with this number.

        Raises:
            TrialNotFoundError: there is no such trial.
        """
        position = self._log.position.get(number, self.n_finished)
        if position < self.n_finished:
            return self._log.learned[position]
        if number in self._pending_by_number:
            return self._pending_by_number[number]
        raise TrialNotFoundError(f"no trial {number} among the lineage's {len(self)} trials")

    @cached_property
    def _pending_by_number(self) -> dict[int, Trial]:
        return {trial.number: trial for trial in self.pending}

    @property
    def finished(self) -> Sequence[Trial]:
        """The finished trials in the order learned, copied; ``newest`` copies nothing."""
        return self._log.learned[: self.n_finished]

    def newest(self) -> Iterator[Trial]:
        """Yields the finished trials, newest first."""
        for position in range(self.n_finished - 1, -1, -1):
            yield self._log.learned[position]

    def newest_scored(self, metric: Metric, n: int) -> list[Trial]:
        """Returns the ``n`` newest trials that have this metric, newest first."""
        return self._log.scored(metric, self.n_finished, n)

    def n_scored(self, metric: Metric) -> int:
        """Returns the number of trials that have this metric."""
        return self._log.n_scored(metric, self.n_finished)

    def best_and_newest(self, metric: Metric, n: int) -> list[Trial]:
        """Returns at most ``n`` trials with this metric, in the order learned.

        If there are more, these are the best half and the newest half.
        """
        ranked = self.ranked(metric)
        if len(ranked) <= n:
            return self.newest_scored(metric, n)[::-1]
        newest = self.newest_scored(metric, n - n // 2)
        kept = {trial.number: trial for trial in (*ranked[: n // 2], *newest)}
        return sorted(kept.values(), key=lambda trial: self._log.position[trial.number])

    def has_point(self, point: Point) -> bool:
        """Returns whether the lineage has a trial of the point, or a constraint refuses the point.

        In a search, points with equal ``Space.key`` are the same point. By default, only equal points are.
        """
        return self._log.has_point(point, self.n_finished, self._n_proposed) or self.refuses(point)

    def refusing(self, is_refused: Callable[[Point], bool]) -> Lineage:
        """Returns a copy of the lineage that refuses points for which ``is_refused`` is true."""
        refusing = copy(self)  # not a new view: the log may have grown
        refusing._is_refused = is_refused
        return refusing

    def without_epochs(self) -> Lineage:
        """Returns a copy of the lineage that has no time for a supernet epoch."""
        lineage = copy(self)
        lineage.allows_epochs = False
        return lineage

    def only(self, keep: Callable[[Trial], bool], change: Change | None = None) -> Lineage:
        """Returns the lineage of the trials for which ``keep`` is true; it refuses the same points.

        Args:
            keep: A function of the module level, which depends only on a trial's proposal. Results are cached by it.
            change: A function of the module level that changes each finished trial; None: they stay as they are.
        """
        part = self._log.part(keep, change)
        pending = tuple(trial for trial in self.pending if keep(trial))
        lineage = Lineage(part.log, part.learned_before[self.n_finished], pending)
        lineage._n_proposed = part.proposed_before[self._n_proposed]
        lineage._is_refused = self._is_refused
        return lineage

    def refuses(self, point: Point) -> bool:
        """Returns whether the point violates a constraint and must not be proposed."""
        return self._is_refused is not None and self._is_refused(point)

    def best(self, metric: Metric, n: int = 1) -> list[Trial]:
        """Returns the ``n`` best trials by this metric; on ties, the lower number first."""
        return list(itertools.islice(self.ranked(metric), n))

    def ranked(self, metric: Metric) -> Sequence[Trial]:
        """Returns all trials with this metric, best first; on ties, the lower number first."""
        entries = self._log.ranking(metric)
        if self.n_finished < len(self._log):
            entries = [entry for entry in entries if entry[2] < self.n_finished]
        return _Ranked(self._log.learned, entries)

    def ancestors(self, number: int) -> list[Trial]:
        """Returns the first parents from this trial's parent back to the oldest ancestor."""
        line: list[Trial] = []
        trial = self[number]
        while trial.parents and trial.parents[0] in self and trial.parents[0] < trial.number:
            trial = self[trial.parents[0]]
            line.append(trial)
        return line

    def children(self, number: int) -> list[Trial]:
        """Returns the trials that name this one as a parent or donor."""
        return [t for t in self if number in t.parents or number in t.proposal.weight_donors]

    def n_in_state(self, state: State) -> int:
        """Returns the number of trials in this state."""
        return sum(t.state == state for t in self)


class _Ranked(Sequence[Trial]):
    """A view of the learned trials in another order."""

    def __init__(self, learned: Sequence[Trial], entries: Sequence[tuple[float, int, int]]) -> None:
        self._learned = learned
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        if isinstance(index, slice):
            return [self._learned[entry[2]] for entry in self._entries[index]]
        return self._learned[self._entries[index][2]]


def lost_donors(trials: Iterable[Trial]) -> set[Donor]:
    """Returns the donors whose weights a trial found missing or corrupt; later trials skip them."""
    return {donor for trial in trials for donor in trial.inheritance.get("lost", ())}


def ancestor_with_weights(trials: Sequence[Trial], number: int, lost: Container[Donor]) -> int | None:
    """Returns the nearest ancestor with weights along first parents, or None.

    A subnet has none: only its supernet epoch gives it weights.

    Args:
        trials: All trials of the search, by number.
        number: The trial whose ancestors are searched.
        lost: Donors whose weights are missing or corrupt.
    """
    if is_subnet(trials[number], trials):
        return None
    while parents := trials[number].parents:
        number = parents[0]
        if trials[number].checkpoint is not None and number not in lost:
            return number
    return None
