"""``python -m flows.gc name=N keep=best:4``: deletes weights that nothing needs and no retention plan keeps."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK, Invocation, run_command
from flows.cli.output import print_message, show, show_line, tell
from nas.core.errors import HeirloomError, SearchBusyError
from nas.core.validation import check_bool, check_int

if TYPE_CHECKING:
    from nas.core.metric import Metric
    from nas.core.policy import PolicyPlan
    from nas.core.ranking import Export
    from nas.core.trial import Trial
    from nas.storage.blobs import BlobInfo
    from nas.storage.maintenance.gc.collector import CollectionPlan, GarbageCollector
    from nas.storage.maintenance.gc.retention import Retention
    from nas.storage.records import Records
    from nas.tuners.base import Tuner
    from nas.views.snapshot import Header

FINALISTS = 2
"""Number of finalists if no session of the search records one."""


def main() -> int:
    """Runs the command; returns its exit status."""
    return run_command("gc", gc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A garbage collection of one search.

    Attributes:
        records: The search's records.
        retention: The retention plan and the disk budget.
        plan: The policy plan.
        metrics: The problem's metrics; the first ranks.
        tuner: The search's tuner, or None: it may still inherit from every trial.
        n_finalists: Number of the best trials that later stages may need.
        export: The trials that can become the winner.
        identity: The search's identity, by its record.
    """

    records: Records
    retention: Retention
    plan: PolicyPlan
    metrics: tuple[Metric, ...]
    tuner: Tuner | None
    n_finalists: int
    export: Export
    identity: Mapping[str, Any]

    def dry_run(self) -> None:
        """Prints what would be deleted, and why; writes nothing."""
        from nas.views.snapshot import last_session

        trials, _ = self.records.load()
        session = last_session(self.records, time.time())
        if session is not None and session.is_alive:  # any unfinished trial may be running
            trials = [trial if trial.is_finished else trial.as_running() for trial in trials]
        stored = self.records.files.walk()
        collector = self._collector(0, self._grace_s())
        self._show(collector.plan(trials, self._inheritable(trials), stored), stored, dry=True)

    def collect(self) -> None:
        """Deletes, and prints what was deleted and why.

        The collection is a session of its own, so that no search starts meanwhile.

        Raises:
            SearchBusyError: a session is active.
            StorageError: the disk has no space for the records of the collection itself.
        """
        from nas.core.errors import StorageError
        from nas.search.lease import SearchLease
        from nas.storage.os_errors import DISK_FULL

        grace_s = self._grace_s()  # before the lease, which is a session that has not ended
        settings = {"command": "gc", "keep": self.retention.keep, "max_gb": self.retention.max_gb}
        try:
            lease = SearchLease(self.records, settings=settings, notify=tell)
            try:
                trials, _ = self.records.load()
                stored = self.records.files.walk()
                collector = self._collector(lease.number, grace_s)
                plan = collector.plan(trials, self._inheritable(trials), stored)
                collector.collect(plan)
            finally:
                lease.close()
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in DISK_FULL:
                raise StorageError(
                    f"{error}. A collection first writes a few kB of records. Free 64 kB and run it again."
                ) from error
            raise
        self._show(plan, stored, dry=False)

    def _grace_s(self) -> float:
        """Returns the least age of an orphan, by whether the search may be written."""
        from nas.search.lease import have_ended
        from nas.storage.maintenance.gc.orphans import LONG_GRACE_S, SHORT_GRACE_S

        return SHORT_GRACE_S if have_ended(self.records) else LONG_GRACE_S

    def _collector(self, session: int, grace_s: float) -> GarbageCollector:
        from nas.inheritance.donors.other_searches import donors_for_other_searches
        from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector

        settings = CollectorSettings(
            metrics=self.metrics,
            finalists=self._finalists,
            other_searches=lambda: donors_for_other_searches(self.records),
            uses_ancestors=self.identity["on_missing_weights"] == "ancestor",
            session=session,
            grace_s=grace_s,
        )
        return GarbageCollector(self.records, self.retention, settings)

    def _finalists(self, trials: Sequence[Trial]) -> frozenset[int]:
        """Returns the trials whose weights later stages need.

        They are all of the search stage if the tuner can't rank them.
        """
        from nas.core.ranking import Ranking
        from nas.core.tracebacks import error_line

        ranking = Ranking(self.plan, self.metrics, self.n_finalists, export=self.export)
        if self.tuner is None:
            return ranking.weights_to_keep(trials)
        try:
            return replace(ranking, by=self.tuner.ranked).weights_to_keep(trials)
        except Exception as error:  # of the tuner's code
            print_message(
                f"no weights of the search stage are deleted, as the tuner can't rank them: {error_line(error)}"
            )
            in_stage = {trial.number for trial in trials if trial.stage == self.plan.search.name}
            return ranking.weights_to_keep(trials) | in_stage

    def _inheritable(self, trials: Sequence[Trial]) -> frozenset[int]:
        from nas.core.lineage import restore_log
        from nas.tuners.base import inheritable, least_seen

        in_stage = [t for t in trials if t.stage == self.plan.search.name and t.more_epochs is None]
        if self.tuner is None:
            return frozenset(trial.number for trial in in_stage)
        n_slots = self.identity["slots"] if self.identity["deterministic"] else None
        log = restore_log(in_stage, deterministic_slots=n_slots)
        return inheritable(self.tuner, log, least_seen(in_stage, deterministic=n_slots is not None), in_stage)

    def _show(self, plan: CollectionPlan, stored: Sequence[BlobInfo], *, dry: bool) -> None:
        from flows.views.terminal import open_console, print_table
        from nas.views.formatting import count, size

        console, freed = open_console(), sum(garbage.file.bytes for garbage in plan.garbage)
        if columns := plan_columns(plan):
            print_table(console, columns, frozenset({"files", "bytes"}))
            show()
        deleted = "nothing to delete"
        if plan.garbage:
            deleted = f"{'would free' if dry else 'freed'} {size(freed)} in {count(len(plan.garbage), 'file')}"
        left = f"{size(sum(file.bytes for file in stored) - freed)} {'would be left' if dry else 'left'}"
        show_line(f"{deleted}; {left} in {self.records.files.url}")
        reasons = [f"{n} {reason}" for reason, n in Counter(plan.marked.values()).items()]
        if plan.n_kept:
            reasons.append(f"{plan.n_kept} by keep={self.retention.keep}")
        if reasons:
            show_line(f"weights kept: {', '.join(reasons)}")
        if plan.over_budget is not None:
            print_message(plan.over_budget)


def gc(invocation: Invocation) -> int:
    """Collects garbage; with ``dry_run``, or while the search runs, only prints what would be deleted."""
    dry_run = check_bool("dry_run", invocation.values["dry_run"])
    collection = read_collection(invocation)
    if dry_run:
        collection.dry_run()
        return OK
    try:
        collection.collect()
    except SearchBusyError as error:
        collection.dry_run()
        sys.stdout.flush()
        driver = str(error).rpartition(". ")[0]
        raise SearchBusyError(
            f"nothing was deleted: {driver}. While a search runs, only its driver deletes weights. "
            "It uses the options storage.keep and storage.max_gb."
        ) from error
    return OK


def read_collection(invocation: Invocation) -> Collection:
    """Returns the garbage collection that the options describe.

    Raises:
        ConfigurationError: no name, no such search, or an invalid value.
    """
    from flows.cli.settings.root import reach_stored_root, read_retention
    from flows.views.searches import find_search, read_name
    from nas.core.policy import PolicyPlan
    from nas.storage.records import Records
    from nas.storage.sessions import last_export
    from nas.views.snapshot import read_header

    values, name = invocation.values, read_name(invocation.values)
    retention, n_finalists = read_retention(values), values["finalists"]
    if n_finalists is not None:
        check_int("finalists", n_finalists, 1)
    root = reach_stored_root(values)
    records = Records(find_search(root, name, time.time(), print_message))
    header = read_header(records, name)
    return Collection(
        records=records,
        retention=retention,
        plan=PolicyPlan.from_stages(header.identity["policy"]),
        metrics=header.metrics,
        tuner=None if retention.keeps_all else _tuner(header, invocation),
        n_finalists=n_finalists or _last_finalists(records),
        export=last_export(records),
        identity=header.identity,
    )


def _last_finalists(records: Records) -> int:
    from nas.storage.sessions import last_with_setting

    found = last_with_setting(records, "finalists")
    return found[1] if found is not None and type(found[1]) is int and found[1] > 0 else FINALISTS


def _tuner(header: Header, invocation: Invocation) -> Tuner | None:
    """Returns the search's tuner; None, with a message, if it can't be built.

    The problem is built only for a tuner outside Heirloom, and for one whose constructor draws points.
    """
    from flows.cli.trusted_code import trusted_spec
    from nas.search.definition import Search
    from nas.spaces.recorded import PointsNeededError, RecordedSpace
    from nas.tuners.base import Tuner

    identity, seed = header.identity, header.identity["seed"]
    try:
        spec = trusted_spec("tuner", identity["tuner"], invocation)
        space, metrics = RecordedSpace(identity["space"]), header.metrics
        try:
            tuner = spec.build(space, metrics, seed=seed) if spec.target.startswith("nas.") else None
        except PointsNeededError:
            tuner = None
        if tuner is None:
            stored = trusted_spec("problem", identity["problem"], invocation)
            problem = Search(problem=stored, tuner=spec).build_problem()
            tuner = spec.build(problem.space, problem.metrics, seed=seed)
    except HeirloomError as error:
        print_message(f"no weights that the tuner may inherit are deleted, since it can't be built: {error}")
        return None
    return tuner if isinstance(tuner, Tuner) else None


def plan_columns(plan: CollectionPlan) -> dict[str, list[str]]:
    """Returns a table of the trials that lose their weights, then of the orphans."""
    from nas.views.formatting import size

    files_of: dict[int, list[BlobInfo]] = {}
    for garbage in plan.garbage:
        if garbage.trial is not None:
            files_of.setdefault(garbage.trial, []).append(garbage.file)
    rows: list[tuple[str, int, int, str]] = []
    for number, reason in plan.weights_deleted.items():
        files = files_of.get(number, [])
        shared = "" if files else "; its files stay, since other trials need them"
        rows.append((f"weights of trial {number}", len(files), sum(file.bytes for file in files), reason + shared))
    orphans = [garbage for garbage in plan.garbage if garbage.trial is None]
    rows += [(orphan.file.path, 1, orphan.file.bytes, orphan.reason) for orphan in orphans]
    if not rows:
        return {}
    return {
        "what": [what for what, *_ in rows],
        "files": [f"{n:,}" for _, n, *_ in rows],
        "bytes": [size(n_bytes) for _, _, n_bytes, _ in rows],
        "why": [reason for *_, reason in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
