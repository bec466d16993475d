"""``python -m flows.verify name=N``: what of a search is lost; without a name: whether a root keeps its promises."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.command import FAILED, OK, Invocation, complain, run_command
from nas.core.errors import ConfigurationError, SearchNotFoundError

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore
    from nas.storage.maintenance.damage import Damage
    from nas.storage.maintenance.guarantees import Promise
    from nas.storage.maintenance.verification import Findings

PROGRESS_S = 10.0
_N_TRIALS = 8
"""How many of the touched trials a row names."""


def main() -> int:
    """Runs the command; gives its exit status."""
    return run_command("verify", verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for; only combinations that make sense."""

    name: str | None
    second: str | None
    machines: int
    wait_s: float

    def __post_init__(self) -> None:
        if self.machines not in (1, 2):
            raise ConfigurationError(f"machines ({self.machines}) must be 1 or 2")
        if self.wait_s <= 0:
            raise ConfigurationError(f"wait_s ({self.wait_s:g}) must be a number of seconds greater than 0")
        if self.name is not None and (self.second is not None or self.machines == 2):
            raise ConfigurationError(
                f"name={self.name} verifies a search; second and machines belong to the check of a root: leave one out"
            )
        if self.second is not None and self.machines == 2:
            raise ConfigurationError("second is another mount on this machine: leave it out, or machines=2")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Request:
        """Returns the request that a configuration makes.

        Raises:
            ConfigurationError: a value of the wrong kind, or values that do not go together.
        """
        machines, wait_s = values["machines"], values["wait_s"]
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float):
            raise ConfigurationError(f"wait_s ({wait_s!r}) must be a number of seconds greater than 0")
        if isinstance(machines, bool) or not isinstance(machines, int):
            raise ConfigurationError(f"machines ({machines!r}) must be 1 or 2")
        texts = {key: None if values[key] is None else str(values[key]) for key in ("name", "second")}
        return cls(**texts, machines=machines, wait_s=float(wait_s))


def verify(invocation: Invocation) -> int:
    """Verifies the search of a name, or checks the root."""
    from flows.cli.settings import reach_root

    request = Request.of(invocation.values)
    root = reach_root(invocation.values)
    if request.name is not None:
        return verify_one(request.name, root, invocation)
    return check(request, root, invocation)


# ---- a search


def verify_one(name: str, root: BlobStore, invocation: Invocation) -> int:
    """Prints what was read of a search and what of it is lost."""
    from flows.cli.settings import read_root
    from nas.storage.maintenance.verification import RETRY_S, verify_search
    from nas.storage.open import open_root

    name = _found_name(root, name)
    files = open_root(*read_root(invocation.values), retry_s=RETRY_S).below(name)
    began = time.monotonic()
    findings = verify_search(files, progress=_Progress())
    show_findings(name, findings, time.monotonic() - began)
    sys.stdout.flush()
    return FAILED if findings.damages else OK


def _found_name(root: BlobStore, name: str) -> str:
    """Returns the name of the search, also where its own record is lost.

    Raises:
        ConfigurationError: there is no such search, or nothing of it outlives its process.
    """
    from flows.views.searches import LAST, find_search
    from nas.core.errors import CorruptError

    if root.in_process:
        raise ConfigurationError(f"storage.root={root.url} exists in the searching process only; verify a folder")
    try:
        return find_search(root, name, time.time(), complain).url.rstrip("/").rpartition("/")[2]
    except (CorruptError, SearchNotFoundError):
        if name == LAST or not root.below(name).names("trials"):
            raise
        return name


class _Progress:
    """Says every ten seconds how much was read."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + PROGRESS_S

    def __call__(self, findings: Findings) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_S
            complain(f"{_amount(findings)} read")


def _amount(findings: Findings) -> str:
    from flows.cli.formatting import count, size

    tallies = findings.tallies.values()
    return f"{count(sum(t.n_files for t in tallies), 'file')}, {size(sum(t.n_bytes for t in tallies))}"


def show_findings(name: str, findings: Findings, seconds: float) -> None:
    """Prints what was read, by kind, then each loss, then what follows from it."""
    from flows.cli.formatting import clean, count, duration, size
    from flows.views.terminal import open_console, print_table

    console, damages = open_console(), findings.damages
    tallies = findings.tallies
    lost = {kind: sum(damage.kind == kind for damage in damages) for kind in tallies}
    columns = {
        "kind": list(tallies),
        "read": [f"{tally.n_files:,}" for tally in tallies.values()],
        "size": [size(tally.n_bytes) for tally in tallies.values()],
        "lost": [f"{lost[kind]:,}" for kind in tallies],
    }
    print_table(console, columns, frozenset({"read", "size", "lost"}))
    print()
    if damages:
        rows = {
            "lost": [damage.kind for damage in damages],
            "path": [clean(damage.path) for damage in damages],
            "how": [clean(f"{damage.fate}: {damage.detail}" if damage.detail else damage.fate) for damage in damages],
            "trials": [_trials(damage.trials) for damage in damages],
        }
        print_table(console, rows)
        print()
    verdict = f"{count(len(damages), 'file')} lost or corrupt" if damages else "all whole"
    console.print(f"{name}: {verdict} ({_amount(findings)}, {duration(seconds)})", soft_wrap=True)
    for line in _consequences(damages, findings):
        console.print(line, soft_wrap=True)


def _trials(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    more = f" and {len(ordered) - _N_TRIALS:,} more" if len(ordered) > _N_TRIALS else ""
    return ", ".join(map(str, ordered[:_N_TRIALS])) + more


def _consequences(damages: Sequence[Damage], findings: Findings) -> Iterator[str]:
    """What the losses mean for the search, and what ends them."""
    from nas.storage.maintenance.damage import Fate

    records = {damage.path: damage.fate for damage in damages if damage.kind == "record"}
    if any(fate != Fate.MISSING or path.endswith((".proposal.json", "search.json")) for path, fate in records.items()):
        yield "The search can't go on before these records are back; where a result is deleted its trial runs again."
    if any(fate == Fate.MISSING and path.endswith(".result.json") for path, fate in records.items()):
        yield "A trial whose result is missing runs again when the search goes on."
    if any(damage.path.startswith("resume/") for damage in damages):
        yield "A trial goes on from the partial checkpoint before the one that is lost, or from the beginning."
    if findings.touched:
        yield f"No child can take all that these trials have left: {_trials(findings.touched)}."
    if findings.unfinished:
        yield f"Unfinished trials that name one of these as donor: {_trials(findings.unfinished)}."
    if damages:
        yield "Copy the files back from a backup under the same names, and verify again."


# ---- a root


def check(request: Request, root: BlobStore, invocation: Invocation) -> int:
    """Prints which promises a root keeps."""
    from flows.cli.settings import read_root
    from nas.storage.maintenance.backend_check import check_root
    from nas.storage.maintenance.guarantees import Verdict, workplace
    from nas.storage.open import open_root

    if request.second is not None:
        _, options = read_root(invocation.values)
        second = open_root(request.second, options if "://" in request.second else {})
        second.check_reachable()
    show_places(root, None if request.second is None else second)
    with workplace(root) as folder:
        promises = list(check_root(root.below(folder)))
        is_usable = promises[0].verdict != Verdict.BROKEN
        if request.second is not None and is_usable:
            from nas.storage.maintenance.two_host_check import hand_over_here

            with workplace(second, folder):
                sides = f"{folder}/sides"
                promises += hand_over_here(root.below(sides), second.below(sides))
        elif request.machines == 2 and is_usable:
            promises += _with_another_machine(root, request.wait_s)
    show_promises(promises)
    sys.stdout.flush()
    return FAILED if any(promise.verdict == Verdict.BROKEN for promise in promises) else OK


def _with_another_machine(root: BlobStore, wait_s: float) -> Iterator[Promise]:
    from nas.storage.maintenance.mailbox import meet
    from nas.storage.maintenance.two_host_check import hand_over

    complain(f"start the same command on the other machine now, with its path of this root; waiting {wait_s:g} s")
    side = meet(root, wait_s=wait_s)
    complain("the other machine is there")
    yield from hand_over(side)


def show_places(root: BlobStore, second: BlobStore | None) -> None:
    """Prints where the roots are, on which mounts, and how much is free there."""
    import shutil

    from flows.cli.formatting import size
    from nas.storage.maintenance.guarantees import existing_folder
    from nas.storage.mounts import mount_of

    for what, files in (("storage.root", root), ("second", second)):
        if files is None:
            continue
        print(f"{what:12}  {files.url}")
        if (place := files.local_path("x")) is not None:
            print(f"{'  mount':12}  {mount_of(place) or 'unknown'}")
            with suppress(OSError):  # a lost server; what is tried out next says so
                print(f"{'  free':12}  {size(shutil.disk_usage(existing_folder(place)).free)}")
    print(flush=True)


def show_promises(promises: Sequence[Promise]) -> None:
    """Prints the promises, then what to change where one is not kept."""
    from flows.cli.formatting import clean, count
    from flows.views.terminal import open_console, print_table
    from nas.storage.maintenance.guarantees import Verdict

    console = open_console()
    columns = {
        "promise": [promise.name for promise in promises],
        "verdict": [str(promise.verdict) for promise in promises],
        "ms p50": [_ms(promise.quantile_ms(0.5)) for promise in promises],
        "ms p99": [_ms(promise.quantile_ms(0.99)) for promise in promises],
        "seen": [clean(promise.seen) for promise in promises],
    }
    print_table(console, columns, frozenset({"ms p50", "ms p99"}))
    print()
    counts = {verdict: sum(promise.verdict == verdict for promise in promises) for verdict in Verdict}
    said = [f"{n} {verdict}" for verdict, n in counts.items() if n]
    console.print(f"{count(len(promises), 'promise')}: {', '.join(said)}", soft_wrap=True)
    for line in _remedies(promises):
        console.print(clean(line), soft_wrap=True)


def _remedies(promises: Sequence[Promise]) -> Iterator[str]:
    """What to change, said once for all promises that have the same cause."""
    same: dict[tuple[str, str, str], list[str]] = {}
    for promise in promises:
        if promise.remedy:
            same.setdefault((promise.verdict, promise.seen, promise.remedy), []).append(promise.name)
    for (verdict, seen, remedy), names in same.items():
        yield f"{verdict}: {', '.join(names)} ({seen}): {remedy}"


def _ms(value: float | None) -> str:
    return (
        "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
