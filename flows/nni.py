"""``python -m flows.nni --config config.yml``: runs an NNI experiment unchanged."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from flows.cli.settings.machine import Machine
    from flows.engine.runner import Engine
    from nas.compat.nni.config import Experiment

FROM_FILE = (
    "problem", "tuner", "stopper", "policy", "budget", "job", "constraints", "init", "deterministic", "finalists",
    "gpus_per_trial",
)  # fmt: skip
"""Keys that the experiment's own file sets."""
RUNNERS = ("threads", "processes", "dask", "ray", "debug")
BUDGET_NAMES = {"trials": "maxTrialNum", "jobs": "maxTrialNum", "hours": "maxExecDuration"}


def main() -> int:
    """Runs the command and returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during imports; then the engine handles signals
    from flows.cli.command import MISTAKE, run_command
    from flows.cli.output import prepare_streams, print_message
    from flows.engine.runner import Engine
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.parent_rule import ParentRule
    from nas.core.errors import ConfigurationError

    prepare_streams()
    try:
        arguments = _parser().parse_args()
        experiment = read_experiment(arguments.config)
        ParentRule.parse(arguments.parents)
    except ConfigurationError as error:
        print_message(str(error))
        return MISTAKE
    overrides = _overrides(experiment, arguments.root, arguments.overrides)
    with Engine() as engine:
        return engine.leave(run_command("search", lambda i: run(i, experiment, engine, arguments), overrides))


def run(invocation: Invocation, experiment: Experiment, engine: Engine, arguments: argparse.Namespace) -> int:
    """Runs the remaining work of the experiment."""
    from flows.cli.output import tell
    from flows.cli.settings.limits import read_limits
    from flows.cli.settings.loggers import read_callbacks, read_log_dir
    from flows.cli.settings.machine import read_machine
    from flows.cli.settings.root import read_retention
    from nas.compat.nni.builtins import notes_on_builtins
    from nas.compat.nni.path_links import link_path
    from nas.compat.nni.search_definition import nni_budget, nni_search
    from nas.compat.nni.trial_process import private_folder
    from nas.core.errors import ConfigurationError
    from nas.core.names import check_new_name
    from nas.search.pipeline import SearchPipeline

    if named := [key for key in FROM_FILE if any(key == name.partition(".")[0] for name in invocation.named)]:
        raise ConfigurationError(f"{named[0]} is set by the experiment's configuration file: change it there")
    if (kind := invocation.values["runner"].get("kind")) not in RUNNERS:
        raise ConfigurationError(f"runner={kind}: must be {' or '.join(RUNNERS)}: NNI trials can't be simulated")
    callbacks, log_dir = read_callbacks(invocation.values), read_log_dir(invocation.values)
    engine.prepare(invocation.values["runner"]["kind"])
    machine = read_machine(invocation.values)
    private_folder().cleanup()
    for note in (*experiment.notes, *notes_on_builtins(experiment)):
        tell(note)
    gpus = gpus_of_trials(invocation.values, machine)
    if machine.runner != "processes":  # whose workers see the GPUs of their slots only
        experiment = limit_gpus(experiment, invocation.values, gpus)
    name, search = nni_search(
        experiment,
        name=invocation.values["name"],
        seed=invocation.values["seed"],
        gpus=gpus,
        parents=arguments.parents,
        wait_timeout_s=arguments.patience,
    )
    for made in filter(None, map(link_path, arguments.map)):
        tell(made)
    tell(f"output of trials (NNI_OUTPUT_DIR): {search.problem.arguments['output_dir']}")
    context = engine.open(invocation.values, limit_slots(machine, experiment, gpus), check_new_name(name))
    retention = read_retention(invocation.values)
    budget = nni_budget(experiment)
    pipeline = SearchPipeline(search.build(), context.records, budget, retention=retention, log_dir=log_dir)
    return engine.run(pipeline, context, read_limits(invocation.values), budget_names=BUDGET_NAMES, callbacks=callbacks)


def gpus_of_trials(values: Mapping[str, Any], machine: Machine) -> tuple[int, ...] | None:
    """Returns the GPUs for the slots; None: a cluster gives each trial its own.

    Trials are processes of their own, so they have their slots' GPUs with each runner of this machine.
    """
    from flows.cli.settings.runners import read_device

    return None if machine.runner in ("dask", "ray") else read_device(values["device"], values["gpus"])[1]


def limit_gpus(experiment: Experiment, values: Mapping[str, Any], gpus: tuple[int, ...] | None) -> Experiment:
    """Returns the experiment with the GPUs of the option ``gpus`` if its file names none.

    Args:
        experiment: The configuration.
        values: The settings.
        gpus: As of ``gpus_of_trials``.
    """
    if values["gpus"] == "all" or experiment.gpus is not None or not gpus:
        return experiment
    return replace(experiment, gpus=gpus)


def limit_slots(machine: Machine, experiment: Experiment, gpus: Sequence[int] | None) -> Machine:
    """Returns the machine with only the slots that there are GPUs for, and says so.

    Args:
        machine: The machine.
        experiment: The configuration.
        gpus: As of ``nni_search``.
    """
    from flows.cli.output import tell
    from nas.compat.nni.search_definition import slots_with_gpus

    if gpus is None and experiment.jobs_per_gpu > 1:
        tell("localConfig.maxTrialNumPerGpu has no effect: each worker gives its trial the GPU that it sees")
    elif experiment.jobs_per_gpu > 1 and not (gpus and experiment.gpus_per_trial):
        tell("localConfig.maxTrialNumPerGpu has no effect: trials have no gpuNum GPUs of their own")
    slots = slots_with_gpus(machine.slots, experiment, gpus)
    if slots < machine.slots:
        tell(f"{slots} of {machine.slots} jobs run at a time: the others wait for gpuNum GPUs of their own")
    return replace(machine, slots=slots)


def _overrides(experiment: Experiment, root: str | None, given: Sequence[str]) -> list[str]:
    """Returns the overrides of the search command, with threads, because trials have their own processes."""
    found = [] if any(text.startswith("runner=") for text in given) else ["runner=threads"]
    if not any(text.startswith("slots=") or text == "runner=debug" for text in given):
        found.append(f"slots={experiment.concurrency}")
    if root is not None:
        escaped = root.replace("'", "\\'")
        found.append(f"storage.root='{escaped}'")
    return [*found, *given]


def _parser() -> argparse.ArgumentParser:
    from flows.cli.parser import CommandParser
    from flows.cli.program import command
    from nas.compat.nni.tuner import WAIT_TIMEOUT_S

    parser = CommandParser(prog=command("nni"), description="Runs an NNI experiment unchanged.")
    parser.add_argument("--config", required=True, metavar="FILE", help="the experiment's config.yml")
    parser.add_argument("--root", metavar="URL", help="storage.root for the records; default: heirloom")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="FROM=TO",
        help="create FROM, a path that the trials use, as a link to TO",
    )
    parser.add_argument(
        "--parents", metavar="NAMES", help="parameters that name a parent: prev_id,restore_dir/ or none"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=WAIT_TIMEOUT_S,
        metavar="S",
        help="seconds that a tuner may wait for a result that can't come",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings of the session: name=N seed=1 max_failures=20 ...",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
