"""``python -m flows.report name=last``: lists searches, or shows one search or one trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK, Invocation, run_command
from flows.cli.output import print_message
from flows.views.delivery import Delivery, deliver, open_page
from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool, check_int

if TYPE_CHECKING:
    from nas.core.trial import Trial
    from nas.storage.blobs import BlobStore
    from nas.views.snapshot import Snapshot

COLUMNS = ("fit", "all")


def main() -> int:
    """Runs the command and returns its exit status."""
    return run_command("report", report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A valid combination of the command's options."""

    name: str | None
    trial: int | None
    delivery: Delivery
    live: bool = False
    all_columns: bool = False

    def __post_init__(self) -> None:
        format = self.delivery.format
        if self.name is None and self.trial is not None:
            raise ConfigurationError(f"trial={self.trial} of which search? Add name=N, or name=last for the newest")
        if self.name is None and format == "html":
            raise ConfigurationError("format=html shows one search: add name=N, or name=last for the newest")
        if self.trial is not None and format == "html":
            raise ConfigurationError("format=html shows the whole search: leave trial out, or choose table or json")
        if self.live and format != "html":
            raise ConfigurationError(f"live=true keeps a page fresh: add format=html (format is {format})")
        if self.all_columns and (format == "html" or self.name is None or self.trial is not None):
            raise ConfigurationError("columns=all is for one search as table, csv or json: add name=N, leave trial out")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Returns the request of a configuration.

        Raises:
            ConfigurationError: a value is invalid or conflicts with another.
        """
        trial = values["trial"]
        check_bool("live", values["live"])
        if values["columns"] not in COLUMNS:
            raise ConfigurationError(f"columns={values['columns']}: must be {' or '.join(COLUMNS)}")
        return cls(
            name=None if values["name"] is None else str(values["name"]),
            trial=None if trial is None else check_int("trial", trial, 0),
            delivery=Delivery.of(values),
            live=values["live"],
            all_columns=values["columns"] == "all",
        )


def report(invocation: Invocation) -> int:
    """Prints or writes a report; only reads the storage."""
    from flows.cli.settings.root import reach_stored_root
    from flows.views.searches import find_search
    from nas.views.snapshot import read_snapshot

    request = Request.of(invocation.values)
    root = reach_stored_root(invocation.values)
    now = time.time()
    if request.name is None:
        _list(root, request, now)
    else:
        files = find_search(root, request.name, now, print_message)
        if request.delivery.format == "html" and request.trial is None:
            _show_page(root, lambda: read_snapshot(files, time.time()), request)
        else:
            _show(root, read_snapshot(files, now), request)
    sys.stdout.flush()
    return OK


def _list(root: BlobStore, request: Request, now: float) -> None:
    """Lists the searches under the root."""
    from flows.views.searches import read_searches, search_columns

    searches = read_searches(root, now, print_message)
    if request.delivery.format != "table":
        from nas.views.table import to_csv, to_json, to_table

        table = to_table(search_columns(searches), {"best": "Float64", "last_activity": "Float64"})
        deliver(to_csv(table) if request.delivery.format == "csv" else to_json(table), root, request.delivery.out)
    elif searches:
        from flows.views.terminal import open_console, print_searches

        print_searches(open_console(), searches)


def _show(root: BlobStore, snapshot: Snapshot, request: Request) -> None:
    """Shows one search or one trial."""
    if request.trial is not None:
        _show_trial(root, snapshot, request)
    elif request.delivery.format == "table":
        from flows.views.terminal import open_console, print_search

        if n_left_out := print_search(open_console(), snapshot, all_columns=request.all_columns):
            print_message(f"{n_left_out} columns do not fit in this terminal: use columns=all or format=csv")
    else:
        from nas.views.table import lineage_table, to_csv, to_json

        table = lineage_table(snapshot.lineage, snapshot.tests, metrics=snapshot.metrics)
        deliver(to_csv(table) if request.delivery.format == "csv" else to_json(table), root, request.delivery.out)


def _show_page(root: BlobStore, read: Callable[[], Snapshot], request: Request) -> None:
    """Writes the page of one search, with ``live`` again and again until the search ends."""
    from flows.views.live_page import PERIOD_S, keep_fresh
    from nas.views.page.document import lineage_page

    snapshot = read()
    is_live = request.live and snapshot.standing == "running"
    page = lineage_page(snapshot, live_s=PERIOD_S if is_live else None)
    path = deliver(page, root, request.delivery.out or ".", f"{snapshot.name}.html")
    if path is not None and request.delivery.opens:
        open_page(path)
    if path is not None and is_live:
        sys.stdout.flush()
        keep_fresh(path, read, snapshot)
    elif request.live:
        print_message(f"{snapshot.name} does not run now ({snapshot.standing}): its page was written once")


def _show_trial(root: BlobStore, snapshot: Snapshot, request: Request) -> None:
    from nas.storage.records import Records

    trial = _trial(snapshot, request.trial)
    if request.delivery.format == "csv":
        from nas.views.table import lineage_table, to_csv

        table = lineage_table(snapshot.lineage, snapshot.tests, metrics=snapshot.metrics)
        deliver(to_csv(table[table["trial"] == trial.number]), root, request.delivery.out)
        return
    from flows.views.terminal import print_trial, trial_record

    records = Records(root.subfolder(snapshot.name))
    logs = {"": records.log(trial.number), **records.other_logs(trial)}
    if request.delivery.format == "json":
        from nas.views.formatting import as_json

        deliver(f"{as_json(trial_record(snapshot, trial, logs), indent=1)}\n", root, request.delivery.out)
    else:
        print_trial(snapshot, trial, logs)


def _trial(snapshot: Snapshot, number: int | None) -> Trial:
    if number is None or number not in snapshot.lineage:
        n = len(snapshot.lineage)
        there = {0: "it has no trial yet", 1: "it has only trial 0"}.get(n, f"its trials are 0 to {n - 1}")
        raise ConfigurationError(f"no trial {number} in {snapshot.name}: {there}")
    return snapshot.lineage[number]


if __name__ == "__main__":
    sys.exit(main())
