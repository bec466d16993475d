"""``python -m flows.search +tuner=evolution``: search, final training, test and export."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from flows.cli.multirun import FinishedJob
    from flows.engine.runner import Engine
    from nas.storage.records import Records


MAX_CANDIDATES = 20
"""Searches of the same problem and tuner that are checked for a running driver."""


def main() -> int:
    """Runs the command and returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during imports; then the engine handles signals
    from flows.cli.command import run_command
    from flows.engine.runner import Engine

    with Engine() as engine:
        return engine.leave(run_command("search", lambda i: search(i, engine), after=compare_jobs))


def search(invocation: Invocation, engine: Engine) -> int:
    """Composes a search from the configuration and runs its remaining work."""
    from flows.cli.settings.limits import read_budget, read_limits
    from flows.cli.settings.loggers import read_callbacks, read_log_dir
    from flows.cli.settings.machine import read_machine
    from flows.cli.settings.root import read_retention
    from flows.cli.settings.search import check_values, read_search, search_name
    from nas.core.names import check_new_name
    from nas.core.validation import check_bool
    from nas.search.pipeline import SearchPipeline

    check_values(invocation)
    callbacks, log_dir = read_callbacks(invocation.values), read_log_dir(invocation.values)
    candidates = _candidates(invocation)
    if candidates and not check_bool("takeover", invocation.values["takeover"]):
        _check_not_driven(candidates, is_named=invocation.values["name"] is not None)
    if candidates == {}:  # trials will run: start the server while torch and the problem load
        engine.prepare(invocation.values["runner"]["kind"])
    machine = read_machine(invocation.values)
    definition = read_search(invocation, machine)
    budget = read_budget(invocation.values, definition, machine)
    prepared = definition.build()
    prepared.check_budget(budget)
    prepared.problem.check_runner(machine.runner, machine.slots, prepared.plan.search.policies)
    outside = (prepared.problem.data_arguments - prepared.problem.data_files) | prepared.problem.speed_arguments
    name = search_name(invocation, prepared.default_name, definition, outside)
    check_new_name(name)
    context = engine.open(invocation.values, machine, name)
    retention = read_retention(invocation.values)
    limits = read_limits(invocation.values)
    pipeline = SearchPipeline(
        prepared,
        context.records,
        budget,
        finalists=limits.finalists,
        retention=retention,
        gpus_per_trial=machine.gpus_per_trial,
        threads_help=machine.runner == "processes" and machine.device == "cpu",
        export=limits.export,
        log_dir=log_dir,
    )
    status = engine.run(pipeline, context, limits, callbacks=callbacks)
    invocation.finished.append(name)
    return status


def compare_jobs(jobs: Sequence[FinishedJob]) -> None:
    """Prints the comparison of the searches of a multirun."""
    from flows.views.compared import print_searches

    print_searches([(job.storage, job.result.search) for job in jobs if job.result.search is not None])


def _candidates(invocation: Invocation) -> dict[str, Records] | None:
    """Returns existing searches that this one may resume, by name; None if unknown."""
    from flows.cli.settings.root import read_root
    from nas.storage.open import open_root
    from nas.storage.records import Records

    root, options = read_root(invocation.values)
    problem, tuner, name = invocation.spec("problem"), invocation.spec("tuner"), invocation.values["name"]
    if "://" in root or options or problem is None or tuner is None:
        return None
    files, prefix = open_root(root), f"{problem.name}-{tuner.name}-"
    may_be = (found for found in files.names() if (found.startswith(prefix) if name is None else found == str(name)))
    return {found: Records(files.subfolder(found)) for found in may_be}


def _check_not_driven(candidates: dict[str, Records], *, is_named: bool) -> None:
    """Refuses a search that a command on this host drives, before torch and the problem load."""
    from flows.cli.output import tell
    from nas.core.errors import HeirloomError, SearchBusyError
    from nas.search.lease import check_free

    for name, records in candidates.items() if is_named or len(candidates) <= MAX_CANDIDATES else ():
        try:
            records.header()  # first, as records of another format can't be read
            check_free(records, timeout_s=0)
        except HeirloomError as error:
            if is_named:
                raise
            if isinstance(error, SearchBusyError):  # other errors matter only if this is the search
                tell(f"search {name} is running on this host; checking whether it is this one")


if __name__ == "__main__":
    sys.exit(main())
