"""``python -m flows.final name=N finalists=4``: trains the finalists of an existing search in full."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from flows.cli.settings.machine import Machine
    from flows.engine.runner import Engine
    from nas.search.definition import Search
    from nas.search.more_epochs import MoreEpochs


def main() -> int:
    """Runs the command and returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during imports; then the engine handles signals
    from flows.cli.command import run_command
    from flows.engine.runner import Engine

    with Engine() as engine:
        return engine.leave(run_command("final", lambda invocation: final(invocation, engine)))


def final(invocation: Invocation, engine: Engine) -> int:
    """Trains missing finalists, or one trial further, tests them and exports a better winner."""
    from flows.cli.output import print_message
    from flows.cli.settings.limits import read_limits
    from flows.cli.settings.loggers import read_callbacks, read_log_dir
    from flows.cli.settings.machine import read_machine
    from flows.cli.settings.root import reach_root, read_retention
    from flows.views.searches import find_search, read_name
    from nas.core.budget import Budget
    from nas.core.errors import ConfigurationError
    from nas.core.policy import PolicyPlan
    from nas.search.definition import check_random_state
    from nas.search.pipeline import SearchPipeline
    from nas.storage.records import Records

    callbacks, log_dir = read_callbacks(invocation.values), read_log_dir(invocation.values)
    name = read_name(invocation.values)
    files = find_search(reach_root(invocation.values), name, time.time(), print_message)
    name = files.name
    machine = read_machine(invocation.values)
    identity = (Records(files).header() or {})["identity"]
    if identity["deterministic"]:  # results depend on slots and threads
        machine = replace(machine, slots=identity["slots"], n_threads=identity["n_threads"])
    check_random_state(machine.runner, machine.slots, deterministic=identity["deterministic"])
    more_epochs = read_more_epochs(invocation.values)
    if more_epochs is None and PolicyPlan.from_stages(identity["policy"]).final is None:
        raise ConfigurationError(
            f"search {name} has no final stage: its policy plan has one stage. Start a search under another name "
            "with policy=two_stage or policy=warm_final"
        )
    prepared = stored_search(identity, invocation, machine).build()
    context = engine.open(invocation.values, machine, name)
    retention = read_retention(invocation.values)
    limits = read_limits(invocation.values)
    pipeline = SearchPipeline(
        prepared,
        context.records,
        Budget(),
        finalists=limits.finalists,
        retention=retention,
        export=limits.export,
        log_dir=log_dir,
        more_epochs=more_epochs,
    )
    return engine.run(pipeline, context, limits, only_finals=True, callbacks=callbacks)


def read_more_epochs(values: Mapping[str, Any]) -> MoreEpochs | None:
    """Returns the options ``more_epochs`` and ``trial``, or None without the first.

    Raises:
        ConfigurationError: a value is invalid, or ``trial`` is given alone.
    """
    from nas.core.errors import ConfigurationError
    from nas.search.more_epochs import MoreEpochs

    n_epochs, trial = values["more_epochs"], values["trial"]
    if n_epochs is not None:
        return MoreEpochs(n_epochs=n_epochs, trial=trial)
    if trial is not None:
        raise ConfigurationError(f"trial={trial}: must be given with more_epochs. Add more_epochs=N")
    return None


def stored_search(identity: Mapping[str, Any], invocation: Invocation, machine: Machine) -> Search:
    """Returns the search that ``search.json`` describes, with data arguments from the command line.

    Raises:
        ConfigurationError: the record names a class outside Heirloom that the command line does not name.
    """
    from flows.cli.trusted_code import trusted_spec
    from nas.core.policy import PolicyPlan
    from nas.search.definition import Search
    from nas.search.search_init import SearchInit

    stopper = identity["stopper"]
    return Search(
        problem=trusted_spec("problem", identity["problem"], invocation),
        tuner=trusted_spec("tuner", identity["tuner"], invocation),
        stopper=None if stopper is None else trusted_spec("stopper", stopper, invocation),
        plan=PolicyPlan.from_stages(identity["policy"]),
        seed=identity["seed"],
        on_missing_weights=identity["on_missing_weights"],
        constraints=identity.get("constraints", {}),
        init=SearchInit.of(identity.get("init")),
        deterministic=identity["deterministic"],
        slots=machine.slots,
        n_threads=machine.n_threads,
        trials_per_job=identity.get("trials_per_job"),
    )


if __name__ == "__main__":
    sys.exit(main())
