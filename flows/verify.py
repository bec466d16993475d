"""``python -m flows.verify name=N``: verifies a search; without a name: checks a storage root."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.command import FAILED, OK, Invocation, run_command
from flows.cli.output import print_message, show, show_line
from nas.core.errors import ConfigurationError, SearchNotFoundError
from nas.core.validation import check_number, first_of, short_repr

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore
    from nas.storage.maintenance.backend_checks.check import CheckResult
    from nas.storage.maintenance.damage import Damage
    from nas.storage.maintenance.verification import VerificationReport

PROGRESS_S = 10.0
"""Seconds between two progress lines."""
_N_TRIALS = 8
"""Maximum number of trials in a row of the report."""


def main() -> int:
    """Runs the command; returns its exit status."""
    return run_command("verify", verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of the command, checked.

    Attributes:
        name: The search to verify, or None: check the root.
        second: Another mount of the root on this machine, or None.
        machines: Number of machines that check the root together, 1 or 2.
        wait_s: Seconds to wait for the second machine.
    """

    name: str | None
    second: str | None
    machines: int
    wait_s: float

    def __post_init__(self) -> None:
        check_number("wait_s", self.wait_s, 0, excluded=0)
        if type(self.machines) is not int or self.machines not in (1, 2):
            raise ConfigurationError(f"machines={short_repr(self.machines)}: must be 1 or 2")
        if self.name is not None and (self.second is not None or self.machines == 2):
            raise ConfigurationError(
                f"name={self.name}: can't be combined with second or machines, which check a root. Leave one out."
            )
        if self.second is not None and self.machines == 2:
            raise ConfigurationError(
                "second: can't be combined with machines=2, since it is a mount on this machine. Leave one out."
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Returns the request of a configuration.

        Raises:
            ConfigurationError: an invalid value, or an invalid combination.
        """
        texts = {key: None if values[key] is None else str(values[key]) for key in ("name", "second")}
        return cls(**texts, machines=values["machines"], wait_s=values["wait_s"])


def verify(invocation: Invocation) -> int:
    """Verifies a search, or checks the root."""
    from flows.cli.settings.root import reach_root, reach_stored_root

    request = Request.of(invocation.values)
    if request.name is not None:
        return verify_one(request.name, reach_stored_root(invocation.values))
    return check(request, reach_root(invocation.values), invocation)


def verify_one(name: str, root: BlobStore) -> int:
    """Verifies a search and prints the report."""
    from nas.storage.maintenance.verification import RETRY_S, verify_search

    name = _found_name(root, name)
    files = root.subfolder(name)
    files.retry_s = RETRY_S  # requests to a busy server are still repeated as long as before
    started = time.monotonic()
    report = verify_search(files, progress=_Progress())
    show_report(name, report, time.monotonic() - started)
    sys.stdout.flush()
    return FAILED if report.damages else OK


def _found_name(root: BlobStore, name: str) -> str:
    """Returns the name of the search, also if its own record is damaged.

    Raises:
        SearchNotFoundError: there is no such search.
    """
    from flows.views.searches import find_search
    from nas.core.errors import CorruptError
    from nas.core.names import LAST

    try:
        return find_search(root, name, time.time(), print_message).name
    except (CorruptError, SearchNotFoundError):
        if name == LAST or not root.subfolder(name).names("trials"):
            raise
        return name


class _Progress:
    """Prints every ten seconds how much was read."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + PROGRESS_S

    def __call__(self, report: VerificationReport) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_S
            print_message(f"{_amount(report)} read")


def _amount(report: VerificationReport) -> str:
    from nas.views.formatting import count, size

    counts = report.counts.values()
    n_files, n_bytes = sum(one.n_files for one in counts), sum(one.n_bytes for one in counts)
    return f"{count(n_files, 'file')}, {size(n_bytes)}"


def show_report(name: str, report: VerificationReport, seconds: float) -> None:
    """Prints the files read by kind, then each damage, then the consequences."""
    from flows.views.terminal import open_console, print_table
    from nas.views.formatting import count, duration, size

    console, damages, counts = open_console(), report.damages, report.counts
    n_damaged = {kind: sum(damage.kind == kind for damage in damages) for kind in counts}
    columns = {
        "kind": list(counts),
        "read": [f"{one.n_files:,}" for one in counts.values()],
        "size": [size(one.n_bytes) for one in counts.values()],
        "damaged": [f"{n_damaged[kind]:,}" for kind in counts],
    }
    print_table(console, columns, frozenset({"read", "size", "damaged"}))
    show()
    if damages:
        rows = {
            "kind": [damage.kind for damage in damages],
            "path": [damage.path for damage in damages],
            "damage": [": ".join(filter(None, (damage.state, damage.detail))) for damage in damages],
            "trials": [first_of(sorted(damage.trials), _N_TRIALS) for damage in damages],
        }
        print_table(console, rows)
        show()
    outcome = f"{count(len(damages), 'file')} damaged" if damages else "no damage"
    show_line(f"{name}: {outcome} ({_amount(report)}, {duration(seconds)})")
    for line in _consequences(report):
        show_line(line)


def _consequences(report: VerificationReport) -> Iterator[str]:
    """Yields what the damages mean for the search, and what to do."""
    records = [damage for damage in report.damages if damage.kind == "record"]
    if any(_stops_search(record) for record in records):
        yield "The search can't continue until these records are restored; to run a trial again, delete its result."
    if any(record.state == "missing" and record.path.endswith(".result.json") for record in records):
        yield "A trial without a result runs again when the search continues."
    if any(damage.path.startswith("resume/") for damage in report.damages):
        yield "A trial with a damaged resume point continues from the one before it, or from the beginning."
    if report.affected:
        trials = first_of(sorted(report.affected), _N_TRIALS)
        yield f"Trials with damaged weights or files, which children can't fully inherit: {trials}."
    if report.unfinished:
        yield f"Unfinished trials that name one of these as donor: {first_of(sorted(report.unfinished), _N_TRIALS)}."
    if report.damages:
        yield "Restore the files from a backup under the same names and verify again."


def _stops_search(record: Damage) -> bool:
    is_needed = record.path.endswith((".proposal.json", "search.json"))
    return record.state != "missing" or is_needed


def check(request: Request, root: BlobStore, invocation: Invocation) -> int:
    """Checks a root and prints the results."""
    from flows.cli.settings.root import read_root
    from nas.storage.maintenance.backend_checks.check import CheckStatus
    from nas.storage.maintenance.backend_checks.folder import check_folder
    from nas.storage.maintenance.backend_checks.one_host import check_root
    from nas.storage.maintenance.backend_checks.two_hosts import check_two_mounts
    from nas.storage.open import open_root

    if request.second is not None:
        _, options = read_root(invocation.values)
        second = open_root(request.second, options if "://" in request.second else {})
        second.check_reachable()
    show_mounts(root, None if request.second is None else second)
    with check_folder(root) as folder:
        results = list(check_root(root.subfolder(folder)))
        is_usable = results[0].status != CheckStatus.FAILED
        if request.second is not None and is_usable:
            with check_folder(second, folder):
                shared = f"{folder}/shared"
                results += check_two_mounts(root.subfolder(shared), second.subfolder(shared))
        elif request.machines == 2 and is_usable:
            results += _with_another_machine(root, float(request.wait_s))
    show_results(results)
    sys.stdout.flush()
    return FAILED if any(result.status == CheckStatus.FAILED for result in results) else OK


def _with_another_machine(root: BlobStore, wait_s: float) -> Iterator[CheckResult]:
    from nas.storage.maintenance.backend_checks.peer import find_peer
    from nas.storage.maintenance.backend_checks.two_hosts import check_with_peer

    print_message(f"start the same command on the other machine now, with its path of this root; waiting {wait_s:g} s")
    peer = find_peer(root, wait_s=wait_s)
    print_message("the other machine has joined")
    yield from check_with_peer(peer)


def show_mounts(root: BlobStore, second: BlobStore | None) -> None:
    """Prints the roots, their mounts and their free space."""
    import shutil

    from nas.storage.maintenance.backend_checks.folder import existing_folder
    from nas.storage.mounts import mount_of
    from nas.views.formatting import size

    for title, files in (("storage.root", root), ("second", second)):
        if files is None:
            continue
        show_line(f"{title:12}  {files.url}")
        if (path := files.local_path("x")) is not None:
            show(f"{'  mount':12}  {mount_of(path) or 'unknown'}")
            with suppress(OSError):  # a lost server: the checks report it
                show(f"{'  free':12}  {size(shutil.disk_usage(existing_folder(path)).free)}")
    show()
    sys.stdout.flush()


def show_results(results: Sequence[CheckResult]) -> None:
    """Prints the results, then the hints."""
    from flows.views.terminal import open_console, print_table
    from nas.storage.maintenance.backend_checks.check import CheckStatus
    from nas.views.formatting import count

    console = open_console()
    columns = {
        "check": [result.name for result in results],
        "status": [str(result.status) for result in results],
        "ms p50": [_ms(result.quantile_ms(0.5)) for result in results],
        "ms p99": [_ms(result.quantile_ms(0.99)) for result in results],
        "observed": [result.observed for result in results],
    }
    print_table(console, columns, frozenset({"ms p50", "ms p99"}))
    show()
    counts = {status: sum(result.status == status for result in results) for status in CheckStatus}
    summary = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    show_line(f"{count(len(results), 'check')}: {summary}")
    for line in _hints(results):
        show_line(line)


def _hints(results: Sequence[CheckResult]) -> Iterator[str]:
    """Yields the hints, one for all checks with the same cause."""
    names_of: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        if result.hint:
            names_of.setdefault((result.status, result.observed, result.hint), []).append(result.name)
    for (status, observed, hint), names in names_of.items():
        yield f"{status}: {', '.join(names)} ({observed}): {hint}"


def _ms(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 1 else f"{value:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
