"""``python -m flows.search +tuner=evolution``: the flow from the first proposal to the finalists and the export."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.command import Invocation
    from flows.engine import Engine


def main() -> int:
    """Runs the command; gives its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports; then the engine takes signals in
    from flows.command import run_command
    from flows.engine import Engine

    with Engine() as engine:
        return engine.leave(run_command("search", lambda invocation: search(invocation, engine)))


def search(invocation: Invocation, engine: Engine) -> int:
    """One search: composes it from the configuration, and runs what is left to do of it."""
    from flows.settings import check_values, read_budget, read_machine, read_retention, read_search, search_name
    from nas.imported import import_founders
    from nas.program import Program
    from nas.session import check_name

    check_values(invocation)
    _check_not_driven(invocation)
    if _is_new(invocation):  # so that trials will run: the server boots while torch and the problem load
        engine.prepare(invocation.values["runner"]["kind"])
    machine = read_machine(invocation.values)
    definition = read_search(invocation, machine)
    budget = read_budget(invocation.values, definition, machine)
    built = definition.build()
    outside = built.problem.data_arguments - built.problem.content.keys()
    name = check_name(search_name(invocation, built.default_name, definition, outside))
    workplace = engine.open(invocation, machine, name)
    import_founders(workplace.records, definition.founders)
    retention = read_retention(invocation.values)
    finalists = invocation.values["finalists"]
    program = Program(built, workplace.records, budget, finalists=finalists, retention=retention)
    return engine.run(program, workplace)


def _check_not_driven(invocation: Invocation) -> None:
    """Refuses a search of this name that a command on this host drives, before torch and the problem load.

    Elsewhere than in a local root, and where the name is still unknown, that is seen later (``Engine.run``).
    """
    from flows.settings import read_limits, read_root
    from nas.session import check_free, check_name
    from nas.store.files import open_root
    from nas.store.records import Records

    root, options = read_root(invocation.values)
    name = invocation.values["name"]
    if name is None or "://" in root or options or read_limits(invocation.values).takeover:
        return
    check_free(Records(open_root(root).below(check_name(str(name)))), watch_s=0)


def _is_new(invocation: Invocation) -> bool:
    """Whether there certainly is no such search yet, which the names in a local root tell before its own is known."""
    from flows.settings import read_root
    from nas.store.files import open_root

    root, options = read_root(invocation.values)
    problem, tuner, name = invocation.spec("problem"), invocation.spec("tuner"), invocation.values["name"]
    if "://" in root or options or problem is None or tuner is None:
        return False
    prefix = f"{problem.name}-{tuner.name}-" if name is None else str(name)
    return not any(found.startswith(prefix) for found in open_root(root).names())


if __name__ == "__main__":
    sys.exit(main())
