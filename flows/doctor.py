"""``python -m flows.doctor``: checks versions, extras, devices, ports, Prefect's server and the storage root."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flows.cli.command import FAILED, OK, Invocation, run_command
from flows.cli.output import show, show_line, tell
from nas.core.errors import HeirloomError
from nas.core.validation import check_number

if TYPE_CHECKING:
    from nas.storage.maintenance.backend_checks.check import CheckResult


def main() -> int:
    """Runs the command and returns its exit status."""
    return run_command("doctor", doctor)


def doctor(invocation: Invocation) -> int:
    """Prints a line for each finding; returns 1 if something will not work."""
    from nas.storage.maintenance.backend_checks.check import CheckStatus
    from nas.views.formatting import count

    check_number("timeout_s", invocation.values["timeout_s"], 0, excluded=0)
    counts = dict.fromkeys(CheckStatus, 0)
    for result in _results(invocation):
        counts[result.status] += 1
        show_line(f"{result.status:8} {result.name}: {result.observed or 'passed'}")
        if result.hint:
            show_line(f"{'':8} {result.hint}")
        sys.stdout.flush()
    show()
    show_line(f"{count(sum(counts.values()), 'check')}: {', '.join(f'{n} {s}' for s, n in counts.items() if n)}")
    return FAILED if counts[CheckStatus.FAILED] else OK


def _results(invocation: Invocation) -> Iterator[CheckResult]:
    from flows.engine.installation import check_devices, check_extras, check_ports, check_server, check_versions

    yield from check_versions()
    yield from check_extras()
    yield from check_devices()
    yield check_ports()
    tell("checking Prefect's server")
    yield check_server(float(invocation.values["timeout_s"]))
    tell("checking the storage root")
    yield from _check_root(invocation)


def _check_root(invocation: Invocation) -> Iterator[CheckResult]:
    """Yields the results of ``verify`` that did not pass, or one result if all passed."""
    from flows.cli.settings.root import reach_root
    from nas.storage.maintenance.backend_checks.check import CheckResult, CheckStatus
    from nas.storage.maintenance.backend_checks.folder import check_folder
    from nas.storage.maintenance.backend_checks.one_host import check_root

    try:
        root = reach_root(invocation.values)
        with check_folder(root) as folder:
            results = list(check_root(root.subfolder(folder)))
    except HeirloomError as error:
        yield CheckResult(
            name="storage root",
            status=CheckStatus.FAILED,
            observed=str(error),
            hint="choose another storage.root=FOLDER, or see docs/guides/object_stores.md",
        )
        return
    bad = [result for result in results if result.status != CheckStatus.PASSED]
    yield from bad
    if not bad:
        yield CheckResult(name="storage root", observed=f"{len(results)} checks passed in {root.url}")


if __name__ == "__main__":
    sys.exit(main())
