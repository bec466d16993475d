"""Garbage collection that knows the lineage: run by the controller between two decisions, and by ``flows.gc``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nas.core.errors import CorruptError, SearchBusyError
from nas.core.metric import Metric
from nas.core.reference import BLOCK, is_path, on_disk
from nas.core.trial import Trial
from nas.storage.blobs import BlobInfo
from nas.storage.maintenance.gc.mark import ReferenceCounts, Roots, choose_deletions, counted_name, file_sizes, mark
from nas.storage.maintenance.gc.orphans import LONG_GRACE_S, GarbageFile, find_orphans
from nas.storage.maintenance.gc.retention import Retention, from_worst_to_best
from nas.storage.records import Records
from nas.storage.sessions import newest_number

RETENTION_EVERY_S = 60.0
"""Seconds between two collections of a running search, unless the disk budget requires one."""
SHARE_OF_TIME = 0.05
"""Maximum share of the controller's time for listing files."""
SLACK = 0.1
"""Share of the disk budget to free in addition, so that collections are less frequent."""
SMALL_FILES = 5 * BLOCK
"""Estimated bytes on disk of a trial's records and log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """Trials and files that a collection deletes.

    Attributes:
        weights_deleted: The trials that lose their weights, each with the reason.
        marked: The trials that keep them in any case, each with the reason.
        n_kept: Number of further trials that the retention plan keeps.
        garbage: The files to delete.
        bytes_left: Bytes on disk after the collection that count against the budget.
        over_budget: A message if the disk budget is still exceeded, else None.
    """

    weights_deleted: Mapping[int, str]
    marked: Mapping[int, str]
    n_kept: int
    garbage: tuple[GarbageFile, ...]
    bytes_left: int
    over_budget: str | None = None

    @property
    def bytes_freed(self) -> int:
        """Bytes on disk of the files to delete."""
        return sum(on_disk(garbage.file.bytes) for garbage in self.garbage)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Facts about a search that its records do not hold.

    Attributes:
        metrics: The problem's metrics; the first ranks.
        finalists: Returns the trials that later stages, tests and the export need, given all trials.
        other_searches: Returns the trials that other searches need as donors.
        uses_ancestors: Whether an ancestor replaces a donor without weights.
        slots: Number of trials that may write at the same time.
        session: Number of the session that collects; 0: a dry run.
        grace_s: Minimum age of an orphan that an unknown process may still write.
    """

    metrics: tuple[Metric, ...]
    finalists: Callable[[Sequence[Trial]], Iterable[int]]
    other_searches: Callable[[], Iterable[int]]
    uses_ancestors: bool
    slots: int = 0
    session: int = 0
    grace_s: float = LONG_GRACE_S


class GarbageCollector:
    """Plans and performs collections; while a session is active, only its driver may collect."""

    def __init__(self, records: Records, retention: Retention, settings: CollectorSettings) -> None:
        self._records = records
        self._retention = retention
        self._settings = settings
        self._bytes = 0
        """Bytes on disk of the search: as last listed, and what results have added since."""
        self._largest_checkpoint = 0
        """Most bytes on disk of one trial's own checkpoint."""
        self._largest_resume = 0
        """Most bytes on disk of one unfinished trial's resume points."""
        self._n_since_listing = self._n_since_collection = 0
        self._listed_at: float | None = None
        self._collected_at: float | None = None
        self._listing_s = self._collection_s = 0.0
        self._is_over_budget = False

    def add(self, trial: Trial) -> None:
        """Counts the bytes that a trial's result has added."""
        own = _own_bytes(trial)
        self._bytes += own + SMALL_FILES
        self._largest_checkpoint = max(self._largest_checkpoint, own)
        self._n_since_listing += 1
        self._n_since_collection += 1

    def collect_if_due(
        self, trials: Sequence[Trial], inheritable: Callable[[], Iterable[int]], now_s: float, *, at_end: bool = False
    ) -> CollectionPlan | None:
        """Collects if due; returns the plan, or None if there is nothing to report.

        Args:
            trials: All trials of the search; those that run in this session are RUNNING.
            inheritable: Returns the trials that the tuner may still name; called only if a collection is due.
            now_s: Seconds of a monotonic clock.
            at_end: Whether a stage has ended.
        """
        started = time.perf_counter()
        stored = self._list_files(trials, now_s) if self._should_list(now_s, at_end=at_end) else None
        if not self._is_due(now_s, at_end=at_end):
            return None
        plan = self.plan(trials, inheritable(), self._list_files(trials, now_s) if stored is None else stored)
        self.collect(plan)
        self._bytes = plan.bytes_left
        self._collected_at, self._n_since_collection = now_s, 0
        self._collection_s = time.perf_counter() - started
        was_reported, self._is_over_budget = self._is_over_budget, plan.over_budget is not None
        if was_reported:
            plan = replace(plan, over_budget=None)
        return plan if plan.weights_deleted or plan.garbage or plan.over_budget else None

    def _should_list(self, now_s: float, *, at_end: bool) -> bool:
        if self._retention.max_bytes is None:
            return False
        if at_end or self._listed_at is None:
            return True
        return self._n_since_listing > 0 and now_s - self._listed_at >= self._listing_s / SHARE_OF_TIME

    def _is_due(self, now_s: float, *, at_end: bool) -> bool:
        if self._collected_at is None:
            return True
        if at_end and self._retention.keep != "all":
            return True
        since_s, min_wait_s = now_s - self._collected_at, self._collection_s / SHARE_OF_TIME
        if self._exceeds_budget() and (at_end or self._n_since_collection > 0):
            return not self._is_over_budget or at_end or since_s >= min_wait_s
        has_results = self._retention.keep != "all" and self._n_since_collection > 0
        return has_results and since_s >= max(RETENTION_EVERY_S, min_wait_s)

    def _exceeds_budget(self) -> bool:
        limit = self._retention.max_bytes
        return limit is not None and self._bytes + self._reserve > limit

    @property
    def _reserve(self) -> int:
        """Bytes that trials may add before the next collection.

        A save is complete before the one that it replaces is deleted, and two resume points are kept.
        """
        return self._settings.slots * (2 * self._largest_checkpoint + 3 * self._largest_resume // 2)

    def _list_files(self, trials: Sequence[Trial], now_s: float) -> list[BlobInfo]:
        started = time.perf_counter()
        stored = self._records.files.walk()
        if self._listed_at is None:
            self._largest_checkpoint = max((_own_bytes(trial) for trial in trials), default=0)
        resume_bytes = Counter[str]()
        for file in stored:
            if file.path.startswith("resume/"):
                resume_bytes[file.path.rpartition("/")[0]] += on_disk(file.bytes)
        self._largest_resume = max(self._largest_resume, *resume_bytes.values(), 0)
        self._bytes = self._counted_bytes(stored)
        self._listed_at, self._n_since_listing = now_s, 0
        self._listing_s = time.perf_counter() - started
        return stored

    def _counted_bytes(self, stored: Iterable[BlobInfo]) -> int:
        """Returns the bytes on disk; while trials run without their resume points, which the reserve covers."""
        uncounted = "resume/" if self._settings.slots else "\0"
        return sum(on_disk(file.bytes) for file in stored if not file.path.startswith(uncounted))

    def plan(self, trials: Sequence[Trial], inheritable: Iterable[int], stored: Sequence[BlobInfo]) -> CollectionPlan:
        """Returns what a collection would delete; changes nothing.

        Args:
            trials: All trials of the search; those that run in this session are RUNNING.
            inheritable: The trials that the tuner may still name.
            stored: All files in the search's folder.
        """
        settings, retention = self._settings, self._retention
        roots = Roots(
            inheritable=frozenset(inheritable),
            finalists=frozenset(settings.finalists(trials)),
            other_searches=frozenset() if retention.keeps_all else frozenset(settings.other_searches()),
            uses_ancestors=settings.uses_ancestors,
        )
        marked, kept = mark(trials, roots), retention.kept(trials, settings.metrics)
        all_references = ReferenceCounts(trial.checkpoint for trial in trials if trial.checkpoint is not None)
        orphans = self._find_orphans(trials, all_references, stored)
        other_bytes = self._counted_bytes(stored) - all_references.bytes
        other_bytes -= self._counted_bytes(orphan.file for orphan in orphans)
        limit = retention.max_bytes
        deletions = choose_deletions(
            trials,
            marked=marked,
            kept=kept,
            order=from_worst_to_best(trials, settings.metrics[0]),
            max_bytes=None if limit is None else limit - self._reserve - other_bytes,
            slack=0.0 if limit is None else SLACK * limit,
        )
        weights_deleted = {
            **dict.fromkeys(deletions.not_kept, f"not kept by keep={retention.keep}"),
            **dict.fromkeys(deletions.for_space, f"storage.max_gb={retention.max_gb}"),
        }
        bytes_left = other_bytes + deletions.remaining.bytes
        is_over_budget = limit is not None and bytes_left + self._reserve > limit
        return CollectionPlan(
            weights_deleted=weights_deleted,
            marked=marked,
            n_kept=len(kept - marked.keys() - weights_deleted.keys()),
            garbage=(*_files_of_deleted(trials, weights_deleted, deletions.remaining, stored), *orphans),
            bytes_left=bytes_left,
            over_budget=self._over_budget_message(bytes_left, marked, trials) if is_over_budget else None,
        )

    def collect(self, plan: CollectionPlan) -> None:
        """Records which trials lose their weights, then deletes the files.

        Another driver may have taken over from one that was suspended or whose storage did not respond. Its proposals
        are not in the plan. So newer sessions are checked before the record is written and again after it. A session
        that starts later reads the record.

        Raises:
            SearchBusyError: a newer session drives the search; nothing was deleted.
            AlreadyPublishedError: another process collects; nothing was deleted.
            StorageError: the storage failed; the next collection deletes the rest.
        """
        if plan.weights_deleted:
            self._check_newest()
            record = {
                "session": self._settings.session,
                "time": time.time(),
                "keep": self._retention.keep,
                "max_gb": self._retention.max_gb,
                "trials": {str(number): reason for number, reason in sorted(plan.weights_deleted.items())},
            }
            self._records.publish_collection(record)
        if plan.garbage:
            self._check_newest()
            self._records.files.delete_all(garbage.file.path for garbage in plan.garbage)

    def _check_newest(self) -> None:
        newest = newest_number(self._records)
        if newest is not None and newest > self._settings.session:
            raise SearchBusyError(
                f"session {newest} drives the search in {self._records.files.url} now. Session "
                f"{self._settings.session} deletes nothing more. Continue with the newer session."
            )

    def _find_orphans(
        self, trials: Sequence[Trial], references: ReferenceCounts, stored: Sequence[BlobInfo]
    ) -> list[GarbageFile]:
        exports = self._exports(stored)
        before = self._now(stored) - self._settings.grace_s
        found = find_orphans(stored, trials, references, before=before)
        return [orphan for orphan in found if orphan.file.path not in exports]

    def _now(self, stored: Sequence[BlobInfo]) -> float:
        """Returns the time by the storage's clock: when this session's heartbeat was last written."""
        heartbeat = f"sessions/{self._settings.session:04d}.beat"
        times = (file.modified for file in stored if file.path == heartbeat and file.modified is not None)
        return next(times, time.time())

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

    def _over_budget_message(self, bytes_left: int, marked: Mapping[int, str], trials: Sequence[Trial]) -> str:
        checkpoints = (trials[number].checkpoint for number in marked)
        needed = ReferenceCounts(checkpoint for checkpoint in checkpoints if checkpoint is not None).bytes
        running = f"; running trials may add {_gb(self._reserve)} GB" if self._reserve else ""
        return (
            f"storage.max_gb={self._retention.max_gb:g} is exceeded: {_gb(bytes_left)} GB are left, "
            f"{_gb(needed)} GB of them weights of {len(marked)} trials that are needed{running}. Raise storage.max_gb."
        )


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g}"


def _own_bytes(trial: Trial) -> int:
    """Returns the bytes on disk of a trial's checkpoint, without files that belong to its donors."""
    own = f"{trial.number:06d}-"
    sizes = {} if trial.checkpoint is None else file_sizes(trial.checkpoint)
    return sum(size for name, size in sizes.items() if name.partition("/")[2].startswith(own))


def _files_of_deleted(
    trials: Sequence[Trial], weights_deleted: Mapping[int, str], remaining: ReferenceCounts, stored: Iterable[BlobInfo]
) -> list[GarbageFile]:
    """Returns the files of deleted weights that no remaining checkpoint names, by trial."""
    owners: dict[str, int] = {}
    for number in sorted(weights_deleted):
        if (checkpoint := trials[number].checkpoint) is not None:
            for name in file_sizes(checkpoint):
                owners.setdefault(name, number)
    found: list[GarbageFile] = []
    for file in stored:
        number = owners.get(counted_name(file.path), -1)
        if number >= 0 and file.path not in remaining and is_path(file.path, unfinished=True):
            found.append(GarbageFile(file, weights_deleted[number], number))
    return sorted(found, key=lambda garbage: owners[counted_name(garbage.file.path)])
