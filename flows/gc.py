"""``python -m flows.gc name=N keep=best:4``: sweeps the weights that nothing needs and no plan keeps."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK, Invocation, complain, run_command
from nas.core.errors import ConfigurationError, HeirloomError, SearchBusyError

if TYPE_CHECKING:
    from nas.core.metric import Metric
    from nas.core.policy import PolicyPlan
    from nas.core.trial import Trial
    from nas.storage.blobs import BlobInfo
    from nas.storage.maintenance.gc.collector import GarbageCollector, Plan
    from nas.storage.maintenance.gc.retention import Retention
    from nas.storage.records import Records
    from nas.tuners.base import Tuner

FINALISTS = 2
"""Of a search whose sessions do not say."""


def main() -> int:
    """Runs the command; gives its exit status."""
    return run_command("gc", gc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """A search, and what is to be kept of it.

    Attributes:
        plan: The policy plan.
        metrics: The problem's; the first ranks.
        tuner: Of the search, or None: all of its trials count as those that it may inherit from.
        n_finalists: How many of the best stages to come may need.
    """

    records: Records
    retention: Retention
    plan: PolicyPlan
    metrics: tuple[Metric, ...]
    tuner: Tuner | None
    n_finalists: int
    identity: Mapping[str, Any]

    def dry_run(self) -> None:
        """Shows what would go, and why; writes nothing."""
        from flows.views.snapshot import last_session
        from nas.search.lease import have_ended
        from nas.storage.maintenance.gc.orphans import LONG_GRACE_S, SHORT_GRACE_S

        trials, _ = self.records.load()
        session = last_session(self.records, time.time())
        if session is not None and session.is_alive:  # from here it can't be told which of them run
            trials = [trial if trial.is_finished else trial.as_running() for trial in trials]
        grace_s = SHORT_GRACE_S if have_ended(self.records) else LONG_GRACE_S
        stored = self.records.files.walk()
        self._show(self._collector(0, grace_s).plan(trials, self._inheritable(trials), stored), stored, dry=True)

    def sweep(self) -> None:
        """Sweeps, in a session of its own, so that no search begins meanwhile; shows what went, and why.

        Raises:
            SearchBusyError: a session lives.
            StorageError: the disk has no room for the records of the sweep itself.
        """
        from nas.core.errors import StorageError
        from nas.search.lease import Session, have_ended
        from nas.storage.maintenance.gc.orphans import LONG_GRACE_S, SHORT_GRACE_S
        from nas.storage.posix import DISK_FULL

        grace_s = SHORT_GRACE_S if have_ended(self.records) else LONG_GRACE_S
        settings = {"command": "gc", "keep": self.retention.keep, "max_gb": self.retention.max_gb}
        try:
            session = Session(self.records, settings=settings, say=lambda text: print(text, file=sys.stderr))
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in DISK_FULL:
                raise StorageError(
                    f"{error}; a sweep first writes some kB of records: free 64 kB, then repeat"
                ) from error
            raise
        try:
            trials, _ = self.records.load()
            stored = self.records.files.walk()
            collector = self._collector(session.number, grace_s)
            plan = collector.plan(trials, self._inheritable(trials), stored)
            collector.carry_out(plan)
        finally:
            session.close()
        self._show(plan, stored, dry=False)

    def _collector(self, session: int, grace_s: float) -> GarbageCollector:
        from nas.core.ranking import Ranking
        from nas.inheritance.donors.other_searches import donors_for_other_searches
        from nas.storage.maintenance.gc.collector import GarbageCollector, Scope

        scope = Scope(
            metrics=self.metrics,
            finalists=Ranking(self.plan, self.metrics, self.n_finalists).needed,
            other_searches=lambda: donors_for_other_searches(self.records),
            stands_in=self.identity["on_missing_weights"] == "ancestor",
            session=session,
            grace_s=grace_s,
        )
        return GarbageCollector(self.records, self.retention, scope)

    def _inheritable(self, trials: Sequence[Trial]) -> frozenset[int]:
        from nas.core.lineage import recall
        from nas.tuners.base import inheritable

        in_stage = [trial for trial in trials if trial.stage == self.plan.search.name]
        if self.tuner is None:
            return frozenset(trial.number for trial in in_stage)
        log = recall(in_stage, deterministic=self.identity["deterministic"])
        return inheritable(self.tuner, log, sum(len(trial.learned) for trial in in_stage), in_stage)

    def _show(self, plan: Plan, stored: Sequence[BlobInfo], *, dry: bool) -> None:
        from flows.cli.formatting import clean, count, size
        from flows.views.terminal import open_console, print_table

        console, freed = open_console(), sum(orphans.file.bytes for orphans in plan.orphans)
        if columns := sweep_columns(plan):
            print_table(console, columns, frozenset({"files", "bytes"}))
            console.print()
        names = self.records.files.url
        free = f"{'would free' if dry else 'freed'} {size(freed)} in {count(len(plan.orphans), 'file')}"
        left = sum(file.bytes for file in stored) - freed
        what = free if plan.orphans else "nothing to sweep"
        console.print(clean(f"{what}; {size(left)} {'would stay' if dry else 'stay'} in {names}"), soft_wrap=True)
        reasons = [f"{n} {why}" for why, n in Counter(plan.needed.values()).items()]
        reasons += [f"{plan.n_kept} by keep={self.retention.keep}"] if plan.n_kept else []
        if reasons:
            console.print(clean(f"weights that stay: {', '.join(reasons)}"), soft_wrap=True)
        if plan.unmet is not None:
            complain(plan.unmet)


def gc(invocation: Invocation) -> int:
    """Sweeps, or shows what a sweep would do: with ``dry_run``, and while the search runs, which is told."""
    from flows.cli.settings import switch

    dry_run = switch(invocation.values, "dry_run")
    cleaning = read_cleaning(invocation)
    if dry_run:
        cleaning.dry_run()
        return OK
    try:
        cleaning.sweep()
    except SearchBusyError as error:
        cleaning.dry_run()
        sys.stdout.flush()
        who = str(error).partition(";")[0]
        raise SearchBusyError(
            f"nothing was swept, only shown: {who}, and while a search runs its own driver alone sweeps, "
            "as its storage.keep and storage.max_gb say"
        ) from error
    return OK


def read_cleaning(invocation: Invocation) -> Cleaning:
    """Returns the search that is named, and what is to be kept of it.

    Raises:
        ConfigurationError: no name, no such search, a value that can't be.
    """
    from flows.cli.settings import positive_int, reach_root, read_retention
    from flows.views.searches import find_search
    from flows.views.snapshot import read_header
    from nas.core.policy import PolicyPlan
    from nas.storage.records import Records

    values = invocation.values
    if values["name"] is None:
        raise ConfigurationError("no name: add name=N, or name=last; `python -m flows.report` lists the searches")
    retention, n_finalists = read_retention(values), positive_int("finalists", values["finalists"])
    root = reach_root(values)
    if root.in_process:
        raise ConfigurationError(f"storage.root={root.url} lives in the searching process only, and ends with it")
    records = Records(find_search(root, str(values["name"]), time.time(), complain))
    header = read_header(records, str(values["name"]))
    return Cleaning(
        records=records,
        retention=retention,
        plan=PolicyPlan.from_stages(header.identity["policy"]),
        metrics=header.metrics,
        tuner=None if retention.keeps_all else _tuner(header.identity, invocation),
        n_finalists=n_finalists or _last_finalists(records),
        identity=header.identity,
    )


def _last_finalists(records: Records) -> int:
    from nas.storage.sessions import past_sessions

    said = [session["settings"].get("finalists") for session in past_sessions(records).values()]
    return next((n for n in reversed(said) if isinstance(n, int)), FINALISTS)


def _tuner(identity: Mapping[str, Any], invocation: Invocation) -> Tuner | None:
    """The search's tuner, which knows from whom it may inherit; None, which is told, where it can't be built."""
    from flows.cli.trusted_code import trusted_spec
    from nas.tuners.base import Tuner

    try:
        problem = trusted_spec("problem", identity["problem"], invocation).build()
        tuner = trusted_spec("tuner", identity["tuner"], invocation).build(
            problem.space, problem.metrics, seed=identity["seed"]
        )
    except HeirloomError as error:
        complain(f"every trial counts as one that the tuner may inherit from, as it can't be asked: {error}")
        return None
    return tuner if isinstance(tuner, Tuner) else None


def sweep_columns(plan: Plan) -> dict[str, list[str]]:
    """What goes, one row a trial that loses its weights, then one a file that no record names; none where none goes."""
    from flows.cli.formatting import clean, size

    files_of: dict[int, list[BlobInfo]] = {}
    for orphans in plan.orphans:
        if orphans.trial is not None:
            files_of.setdefault(orphans.trial, []).append(orphans.file)
    rows: list[tuple[str, int, int, str]] = []
    for number, why in plan.weights_deleted.items():
        files = files_of.get(number, [])
        shared = "" if files else "; its files stay, as others need them"
        rows.append((f"weights of trial {number}", len(files), sum(file.bytes for file in files), why + shared))
    rows += [(g.file.path, 1, g.file.bytes, g.why) for g in plan.orphans if g.trial is None]
    if not rows:
        return {}
    return {
        "what": [clean(what) for what, *_ in rows],
        "files": [f"{n:,}" for _, n, *_ in rows],
        "bytes": [size(n_bytes) for _, _, n_bytes, _ in rows],
        "why": [why for *_, why in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
