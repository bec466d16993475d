"""The lineage: all trials in the order in which the tuner learned of them, and the graph of parents and donors."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import overload

from nas.core.errors import CorruptError, TrialNotFoundError
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.trial import Donor, State, Trial


class LineageLog:
    """The finished trials in the order learned; grows only. Lineages are views of its beginning.

    Args:
        trials: Finished.
        key: Of a point (``Space.key``): trials with one key are of one point.
    """

    def __init__(self, trials: Iterable[Trial] = (), *, key: Callable[[Point], str] = point_key) -> None:
        self.learned: list[Trial] = []
        self.position: dict[int, int] = {}
        self.key = key
        self._noted: list[Trial] = []
        self._keys: dict[int, str] = {}
        self._first_learned = _Firsts()
        self._first_noted = _Firsts()
        self._scored: dict[str, tuple[int, list[int]]] = {}
        self._rankings: dict[Metric, tuple[int, list[tuple[float, int, int]]]] = {}
        for trial in trials:
            self.append(trial)

    def __len__(self) -> int:
        return len(self.learned)

    def note(self, trial: Trial) -> None:
        """Takes in that a trial was proposed; in order."""
        self._noted.append(trial)

    @property
    def n_noted(self) -> int:
        """How many trials were proposed."""
        return len(self._noted)

    def has_point(self, point: Point, n_learned: int, n_noted: int) -> bool:
        """Whether the point is that of one of the first trials that were learned, or of the first that were noted."""
        key = self.key(point)
        return (
            self._first_learned.place(key, self.learned, self.key_of) < n_learned
            or self._first_noted.place(key, self._noted, self.key_of) < n_noted
        )

    def append(self, trial: Trial) -> None:
        """Adds a finished trial at the end."""
        if not trial.is_finished or trial.number in self.position:
            raise ValueError(f"trial {trial.number} ({trial.state}) is not finished, or learned already")
        self.position[trial.number] = len(self.learned)
        self.learned.append(trial)

    def ranking(self, metric: Metric) -> list[tuple[float, int, int]]:
        """Returns the scored trials, the best first: (minus rank, number, position). The list is never changed."""
        n_seen, entries = self._rankings.get(metric, (0, []))
        if n_seen == len(self.learned):
            return entries
        entries = entries.copy()  # costs less than a comparison for each entry
        for position in range(n_seen, len(self.learned)):
            trial = self.learned[position]
            if (value := trial.value(metric.name)) is not None:
                insort(entries, (-metric.rank(value), trial.number, position))
        self._rankings[metric] = (len(self.learned), entries)
        return entries

    def scored(self, metric: Metric, n_learned: int, n: int) -> list[Trial]:
        """Returns the last ``n`` scored trials of the first ``n_learned``, the last learned first."""
        seen, positions = self._scored.get(metric.name, (0, []))
        for position in range(seen, len(self.learned)):
            if self.learned[position].value(metric.name) is not None:
                positions.append(position)
        self._scored[metric.name] = (len(self.learned), positions)
        end = bisect_left(positions, n_learned)
        return [self.learned[position] for position in reversed(positions[max(end - n, 0) : end])]

    def lose_weights(self, number: int) -> None:
        """Notes, where the trial is here, that its weights were swept."""
        if (position := self.position.get(number)) is not None:
            self.learned[position] = self.learned[position].delete_weights()

    def key_of(self, trial: Trial) -> str:
        """Returns the key of a trial's point, made once a trial."""
        if trial.number not in self._keys:
            self._keys[trial.number] = self.key(trial.point)
        return self._keys[trial.number]

    def view(self, n_learned: int | None = None, pending: Iterable[Trial] = ()) -> Lineage:
        """Returns the lineage after ``n_learned`` trials (all by default), with these waiting and running trials.

        Pending trials are those that were noted and are not among the learned ones.
        """
        return Lineage(self, len(self.learned) if n_learned is None else n_learned, tuple(pending))


class _Firsts:
    """At which place of a list that grows a key comes first; keys are made when one is asked for."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._n_known = 0

    def place(self, key: str, trials: Sequence[Trial], key_of: Callable[[Trial], str]) -> int:
        """Returns the place, or how many trials there are."""
        for place in range(self._n_known, len(trials)):
            self._places.setdefault(key_of(trials[place]), place)
        self._n_known = len(trials)
        return self._places.get(key, len(trials))


def recall(in_stage: Sequence[Trial], *, deterministic: bool, key: Callable[[Point], str] = point_key) -> LineageLog:
    """The order in which the tuner learned of results: as the proposals recorded it, then the others as they finished.

    With ``deterministic``: in the order of index, up to the first that has not finished. A result that a proposal
    recorded and that is lost since is left out (``owed``).

    Args:
        in_stage: The trials of one stage, by index.
        deterministic: See above.
        key: Of a point, by which the log knows it again.

    Raises:
        CorruptError: a proposal does not follow from those before it and their results.
    """
    finished = {t.number: t for t in in_stage if t.is_finished}
    listed: dict[int, None] = {}
    before: dict[int, None] = {}
    for index, trial in enumerate(in_stage):
        news = dict.fromkeys(trial.learned)
        is_news = len(news) == len(trial.learned) and news.keys() <= before.keys() - listed.keys()
        if not is_news or trial.index != index:
            path = f"trials/{trial.number:06d}.proposal.json"
            raise CorruptError(f"{path} does not follow from the proposals before it and their results")
        listed |= news
        before[trial.number] = None
    if deterministic:
        log = LineageLog(itertools.takewhile(lambda t: t.is_finished, in_stage), key=key)
    else:
        rest = [t for t in finished.values() if t.number not in listed]
        rest.sort(key=lambda t: (t.finished or 0.0, t.number))
        log = LineageLog([*(finished[number] for number in listed if number in finished), *rest], key=key)
    for trial in in_stage:
        log.note(trial)
    return log


def owed(in_stage: Sequence[Trial]) -> set[int]:
    """The trials whose results a proposal recorded, and that are lost: they run again before anything is asked."""
    finished = {t.number for t in in_stage if t.is_finished}
    return {number for trial in in_stage for number in trial.learned} - finished


class Lineage:
    """What a tuner and a stopper see: finished trials in the order learned, then waiting and running ones."""

    def __init__(self, log: LineageLog, n_finished: int, pending: tuple[Trial, ...]) -> None:
        self._log = log
        self.n_finished = n_finished
        self.pending = pending
        self._n_noted = log.n_noted if pending else 0
        self._is_refused: Callable[[Point], bool] | None = None

    @classmethod
    def of(cls, trials: Iterable[Trial], *, key: Callable[[Point], str] = point_key) -> Lineage:
        """Returns the lineage of these trials, finished ones in the order given."""
        known = list(trials)
        log = LineageLog((t for t in known if t.is_finished), key=key)
        for trial in known:
            log.note(trial)
        return log.view(pending=[t for t in known if not t.is_finished])

    def __len__(self) -> int:
        return self.n_finished + len(self.pending)

    def __iter__(self) -> Iterator[Trial]:
        yield from self._log.learned[: self.n_finished]
        yield from self.pending

    def __contains__(self, number: int) -> bool:
        return self._log.position.get(number, self.n_finished) < self.n_finished or number in self._pending_by_number

    def __getitem__(self, number: int) -> Trial:
        """Returns the trial of this number.

        Raises:
            TrialNotFoundError: there is none.
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
        """The finished trials in the order learned (a copy; ``newest`` costs less for the last few)."""
        return self._log.learned[: self.n_finished]

    def newest(self) -> Iterator[Trial]:
        """Yields the finished trials, the last learned first."""
        for position in range(self.n_finished - 1, -1, -1):
            yield self._log.learned[position]

    def newest_scored(self, metric: Metric, n: int) -> list[Trial]:
        """Returns the ``n`` trials with this metric that were learned last, the last one first."""
        return self._log.scored(metric, self.n_finished, n)

    def best_and_newest(self, metric: Metric, n: int) -> list[Trial]:
        """The trials with this metric in the order learned; of more than ``n``, the best half and the newest half."""
        ranked = self.ranked(metric)
        if len(ranked) <= n:
            return self.newest_scored(metric, n)[::-1]
        newest = self.newest_scored(metric, n - n // 2)
        kept = {trial.number: trial for trial in (*ranked[: n // 2], *newest)}
        return sorted(kept.values(), key=lambda trial: self._log.position[trial.number])

    def has_point(self, point: Point) -> bool:
        """Returns whether a trial of the point is finished, running or waiting, or none may be proposed.

        In a search points of one ``Space.key`` are the same; anywhere else only equal ones, unless a key is given.
        """
        return self._log.has_point(point, self.n_finished, self._n_noted) or self.refuses(point)

    def refusing(self, is_refused: Callable[[Point], bool]) -> Lineage:
        """Returns the same lineage, which refuses these points."""
        refusing = copy(self)  # the log may have grown since
        refusing._is_refused = is_refused
        return refusing

    def refuses(self, point: Point) -> bool:
        """Returns whether the point breaks a constraint, so that no trial of it may be proposed."""
        return self._is_refused is not None and self._is_refused(point)

    def best(self, metric: Metric, n: int = 1) -> list[Trial]:
        """Returns the ``n`` best scored trials by this metric, best first; of equals, the lower number first."""
        return list(itertools.islice(self.ranked(metric), n))

    def ranked(self, metric: Metric) -> Sequence[Trial]:
        """All scored trials by this metric, best first; of equals, the lower number first. Costs little to ask for."""
        entries = self._log.ranking(metric)
        if self.n_finished < len(self._log):
            entries = [entry for entry in entries if entry[2] < self.n_finished]
        return _Ranked(self._log.learned, entries)

    def ancestors(self, number: int) -> list[Trial]:
        """Returns the line of first parents from this trial's parent back to its founder."""
        line: list[Trial] = []
        trial = self[number]
        while trial.parents and trial.parents[0] in self and trial.parents[0] < trial.number:
            trial = self[trial.parents[0]]
            line.append(trial)
        return line

    def children(self, number: int) -> list[Trial]:
        """Returns the trials that name this one as a parent or donor."""
        return [t for t in self if number in t.parents or number in t.proposal.weight_donors]

    def edges(self) -> list[tuple[int, int]]:
        """(parent or donor, child) for every edge within the search."""
        found = []
        for trial in self:
            sources = dict.fromkeys([*trial.parents, *(d for d in trial.proposal.weight_donors if isinstance(d, int))])
            found += [(source, trial.number) for source in sources]
        return found

    def n_in_state(self, state: State) -> int:
        """How many trials are in this state."""
        return sum(t.state == state for t in self)


class _Ranked(Sequence[Trial]):
    """The learned trials in another order, of which nothing is copied."""

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
    """Returns the donors whose weights a trial found missing or corrupt: they have none for those that come later."""
    return {donor for trial in trials for donor in trial.inheritance.get("lost", ())}


def ancestor_with_weights(trials: Sequence[Trial], number: int, lost: Container[Donor]) -> int | None:
    """Returns the nearest one on the line of first parents, or None."""
    while parents := trials[number].parents:
        number = parents[0]
        if trials[number].checkpoint is not None and number not in lost:
            return number
    return None
