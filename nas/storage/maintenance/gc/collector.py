"""Garbage collection that knows the lineage: used by the loop between two decisions, and by flows.gc."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nas.core.errors import CorruptError, SearchBusyError
from nas.core.metric import Metric
from nas.core.reference import BLOCK, is_path, on_disk
from nas.core.trial import Trial
from nas.storage.blobs import BlobInfo
from nas.storage.maintenance.gc.mark import Ledger, Wanted, mark, named, needed, sizes_of
from nas.storage.maintenance.gc.orphans import LONG_GRACE_S, Orphans, find_orphans
from nas.storage.maintenance.gc.retention import Retention, from_worst_to_best
from nas.storage.records import Records
from nas.storage.sessions import newest_number

RETENTION_EVERY_S = 60.0
"""How often a running search applies its retention plan, where the disk does not ask for more."""
SHARE_OF_TIME = 0.05
"""Of the loop's time, that may go into looking what lies there."""
SLACK = 0.1
"""Of the disk budget, that a sweep frees beyond what is asked for, so that the next one is not due at once."""
SMALL_FILES = 5 * BLOCK
"""Bytes on disk of a trial's records and log, until they are seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep does.

    Attributes:
        swept: The trials that lose their weights, and why.
        needed: Those that keep them in any case, and what for.
        n_kept: Those that keep them because of the retention plan alone.
        garbage: The files that go.
        left: Bytes on disk that count against the budget, after.
        unmet: Why the disk budget can't be kept, in one line, or None.
    """

    weights_deleted: Mapping[int, str]
    needed: Mapping[int, str]
    n_kept: int
    orphans: tuple[Orphans, ...]
    left: int
    unmet: str | None = None

    @property
    def bytes_freed(self) -> int:
        """What the files that go take on disk."""
        return sum(on_disk(orphans.file.bytes) for orphans in self.orphans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a sweep must know of its search.

    Attributes:
        metrics: The problem's; the first ranks.
        finalists: Whose weights later stages, tests and the export need, by all trials.
        other_searches: The trials that unfinished trials of other searches name as donors.
        stands_in: Whether an ancestor stands in for a donor without weights.
        slots: How many trials may be writing.
        session: The number of the session that sweeps; 0: a dry run.
        grace_s: How old a file must be that an unknown writer may still need.
    """

    metrics: tuple[Metric, ...]
    finalists: Callable[[Sequence[Trial]], Iterable[int]]
    other_searches: Callable[[], Iterable[int]]
    stands_in: bool
    slots: int = 0
    session: int = 0
    grace_s: float = LONG_GRACE_S


class GarbageCollector:
    """Plans sweeps and carries them out; while a session lives, for its driver alone."""

    def __init__(self, records: Records, retention: Retention, scope: Scope) -> None:
        self._records = records
        self._retention = retention
        self._scope = scope
        self._bytes = 0
        """What lies in the folder, on disk: as last seen, and what results have added since."""
        self._largest = 0
        """What a trial's own checkpoint has taken at most."""
        self._largest_partial = 0
        """The same of what an unfinished trial keeps under ``resume/``."""
        self._n_since_look = self._n_since_sweep = 0
        self._looked_at: float | None = None
        self._swept_at: float | None = None
        self._look_s = self._sweep_s = 0.0
        self._is_unmet = False

    # ---- in the loop

    def add(self, trial: Trial) -> None:
        """Takes in a result, for what it adds to the disk."""
        own = _own_bytes(trial)
        self._bytes += own + SMALL_FILES
        self._largest = max(self._largest, own)
        self._n_since_look += 1
        self._n_since_sweep += 1

    def sweep(
        self, trials: Sequence[Trial], inheritable: Callable[[], Iterable[int]], now_s: float, *, at_end: bool = False
    ) -> Plan | None:
        """Sweeps where it is time to; gives what was done and is news, or None where nothing is.

        Args:
            trials: All of the search; those that run in this session are RUNNING.
            inheritable: See ``Wanted``; called only where it is time.
            now_s: Seconds on a clock that never jumps.
            at_end: A stage has ended.
        """
        began = time.perf_counter()
        stored = self._look(trials, now_s) if self._is_time_to_look(now_s, at_end=at_end) else None
        if not self._is_due(now_s, at_end=at_end):
            return None
        plan = self.plan(trials, inheritable(), self._look(trials, now_s) if stored is None else stored)
        self.carry_out(plan)
        self._bytes = plan.left
        self._swept_at, self._n_since_sweep = now_s, 0
        self._sweep_s = time.perf_counter() - began
        was_told, self._is_unmet = self._is_unmet, plan.unmet is not None
        if was_told:
            plan = replace(plan, unmet=None)
        return plan if plan.weights_deleted or plan.orphans or plan.unmet else None

    def _is_time_to_look(self, now_s: float, *, at_end: bool) -> bool:
        if self._retention.max_bytes is None:
            return False
        if at_end or self._looked_at is None:
            return True
        return self._n_since_look > 0 and now_s - self._looked_at >= self._look_s / SHARE_OF_TIME

    def _is_due(self, now_s: float, *, at_end: bool) -> bool:
        if self._swept_at is None:
            return True
        if at_end and self._retention.keep != "all":
            return True
        if self._is_over() and (at_end or self._n_since_sweep > 0):
            return not self._is_unmet or at_end or now_s - self._swept_at >= self._sweep_s / SHARE_OF_TIME
        rest_s = max(RETENTION_EVERY_S, self._sweep_s / SHARE_OF_TIME)
        return self._retention.keep != "all" and self._n_since_sweep > 0 and now_s - self._swept_at >= rest_s

    def _is_over(self) -> bool:
        limit = self._retention.max_bytes
        return limit is not None and self._bytes + self._reserve > limit

    @property
    def _reserve(self) -> int:
        """What trials may hold before the next sweep: a save is whole before the one that it replaces goes."""
        return self._scope.slots * (2 * self._largest + 3 * self._largest_partial // 2)  # of partial ones two are kept

    def _look(self, trials: Sequence[Trial], now_s: float) -> list[BlobInfo]:
        began = time.perf_counter()
        stored = self._records.files.walk()
        if self._looked_at is None:
            self._largest = max((_own_bytes(trial) for trial in trials), default=0)
        unfinished = Counter[str]()
        for file in stored:
            if file.path.startswith("resume/"):
                unfinished[file.path.rpartition("/")[0]] += on_disk(file.bytes)
        self._largest_partial = max(self._largest_partial, *unfinished.values(), 0)
        self._bytes = self._counted(stored)
        self._looked_at, self._n_since_look = now_s, 0
        self._look_s = time.perf_counter() - began
        return stored

    def _counted(self, stored: Iterable[BlobInfo]) -> int:
        """The bytes on disk that count: while trials run, partial checkpoints come and go, and are in the reserve."""
        in_reserve = "resume/" if self._scope.slots else "\0"
        return sum(on_disk(file.bytes) for file in stored if not file.path.startswith(in_reserve))

    # ---- what a sweep is

    def plan(self, trials: Sequence[Trial], inheritable: Iterable[int], stored: Sequence[BlobInfo]) -> Plan:
        """What a sweep of these trials and files does; changes nothing.

        Args:
            trials: As for ``sweep``.
            inheritable: See ``Wanted``.
            stored: What lies in the search's folder.
        """
        scope, retention = self._scope, self._retention
        wanted = Wanted(
            inheritable=frozenset(inheritable),
            finalists=frozenset(scope.finalists(trials)),
            other_searches=frozenset() if retention.keeps_all else frozenset(scope.other_searches()),
            stands_in=scope.stands_in,
        )
        needs, kept = needed(trials, wanted), retention.kept(trials, scope.metrics)
        everything = Ledger(trial.checkpoint for trial in trials if trial.checkpoint is not None)
        exports = self._exports(stored)
        orphans = [
            orphans
            for orphans in find_orphans(stored, trials, everything, before=self._now(stored) - scope.grace_s)
            if orphans.file.path not in exports
        ]
        fixed = self._counted(stored) - everything.bytes - self._counted(orphans.file for orphans in orphans)
        choose = partial(
            mark,
            trials,
            needed=needs,
            kept=kept,
            order=from_worst_to_best(trials, scope.metrics[0]),
            why=(f"keep={retention.keep} leaves it out", f"storage.max_gb={retention.max_gb}"),
        )
        marking, limit = choose(), retention.max_bytes
        if limit is not None and fixed + marking.live.bytes + self._reserve > limit:
            marking = choose(max_bytes=limit - self._reserve - SLACK * limit - fixed)
        left = fixed + marking.live.bytes
        return Plan(
            weights_deleted=marking.weights_deleted,
            needed=needs,
            n_kept=len(kept - needs.keys() - marking.weights_deleted.keys()),
            orphans=(*_files_of_swept(trials, marking.weights_deleted, marking.live, stored), *orphans),
            left=left,
            unmet=None if limit is None or left + self._reserve <= limit else self._lament(left, needs, trials),
        )

    def carry_out(self, plan: Plan) -> None:
        """Makes durable which trials lose their weights, then deletes.

        A driver that stood still (a machine that slept, a storage that hung) may have been followed by another one,
        which proposes what this one's plan does not know of. So newer sessions are looked for before the record, and
        once more when it is there: one that begins still later reads it.

        Raises:
            SearchBusyError: a newer session drives the search; nothing was deleted.
            AlreadyPublishedError: somebody else sweeps; nothing was deleted.
            StorageError: the store failed; the next sweep deletes what is left.
        """
        if plan.weights_deleted:
            self._check_newest()
            record = {
                "session": self._scope.session,
                "time": time.time(),
                "keep": self._retention.keep,
                "max_gb": self._retention.max_gb,
                "trials": {str(number): why for number, why in sorted(plan.weights_deleted.items())},
            }
            self._records.sweep(record)
        if plan.orphans:
            self._check_newest()
            self._records.files.delete_all(orphans.file.path for orphans in plan.orphans)

    def _check_newest(self) -> None:
        newest = newest_number(self._records)
        if newest is not None and newest > self._scope.session:
            raise SearchBusyError(
                f"session {newest} drives the search in {self._records.files.url} now, and session "
                f"{self._scope.session} deletes nothing any more; go on with the newer one"
            )

    def _now(self, stored: Sequence[BlobInfo]) -> float:
        """Returns the time by the clock that dates files: when this session's heartbeat was last written."""
        beat = f"sessions/{self._scope.session:04d}.beat"
        return next((f.modified for f in stored if f.path == beat and f.modified is not None), time.time())

    def _exports(self, stored: Iterable[BlobInfo]) -> frozenset[str]:
        """Returns the files that the records of winners name."""
        found: set[str] = set()
        for file in stored:
            if re.fullmatch(r"best-\d+\.json", file.path):
                record = self._records.read(file.path) or {}
                try:
                    found.update(str(reference["path"]) for reference in record["files"])
                except (KeyError, TypeError) as error:
                    raise CorruptError(f"{file.path} in {self._records.files.url} can't be read: {error!r}") from error
        return frozenset(found)

    def _lament(self, left: int, needs: Mapping[int, str], trials: Sequence[Trial]) -> str:
        weights = Ledger(c for number in needs if (c := trials[number].checkpoint) is not None).bytes
        running = f", and what runs may add {_gb(self._reserve)} GB" if self._reserve else ""
        return (
            f"storage.max_gb ({self._retention.max_gb:g}) can't be kept: {_gb(left)} GB stay, of which {_gb(weights)} "
            f"are the weights of {len(needs)} trials that are needed{running}; raise storage.max_gb"
        )


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g}"


def _own_bytes(trial: Trial) -> int:
    """What the files of a trial's own checkpoint take on disk, without those that are its donors'."""
    own = f"{trial.number:06d}-"
    sizes = {} if trial.checkpoint is None else sizes_of(trial.checkpoint)
    return sum(size for name, size in sizes.items() if name.partition("/")[2].startswith(own))


def _files_of_swept(
    trials: Sequence[Trial], weights_deleted: Mapping[int, str], live: Ledger, stored: Iterable[BlobInfo]
) -> list[Orphans]:
    """Returns the files that no checkpoint names any more."""
    owners: dict[str, int] = {}
    for number in sorted(weights_deleted):
        if (checkpoint := trials[number].checkpoint) is not None:
            for name in sizes_of(checkpoint):
                owners.setdefault(name, number)
    left = (file for file in stored if named(file.path) in owners and file.path not in live)
    going = [(owners[named(file.path)], file) for file in left if is_path(file.path, unfinished=True)]
    return [Orphans(file, weights_deleted[number], number) for number, file in sorted(going, key=lambda one: one[0])]
