"""A multirun by Hydra, and what its jobs return."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.job_process import JobResult
from flows.cli.options import CONF
from flows.cli.output import print_message
from flows.cli.overrides import Arguments
from nas.core.errors import ConfigurationError
from nas.views.formatting import count, masked

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that has ended: its label, its values of ``storage`` and its result."""

    label: str
    storage: Mapping[str, Any]
    result: JobResult


def run_jobs(
    config: str, arguments: Arguments, job: Callable[[DictConfig], JobResult], folder: str
) -> list[FinishedJob]:
    """Runs the jobs of a multirun by the launcher that the command line chooses.

    Unlike ``hydra.main``, it returns the results, also of jobs in other processes.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    version.setbase("1.3")
    search_path = create_config_search_path(str(CONF))
    if arguments.config_dir is not None:
        own = os.path.abspath(arguments.config_dir)
        if not os.path.isdir(own):
            raise ConfigurationError(f"--config-dir {arguments.config_dir}: must be a folder")
        search_path.prepend("command-line", f"file://{own}", SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2(config, search_path)
    overrides = [*arguments.overrides, f"hydra.sweep.dir={folder}", "hydra.mode=MULTIRUN"]
    try:
        returned = hydra.multirun(config_name=config, task_function=job, overrides=overrides)
    finally:
        GlobalHydra.instance().clear()
    return [_finished(one, arguments) for batch in returned for one in batch]


def _finished(returned: Any, arguments: Arguments) -> FinishedJob:
    from omegaconf import OmegaConf

    storage = OmegaConf.to_container(returned.cfg.storage, resolve=True) if "storage" in returned.cfg else {}
    assert isinstance(storage, dict)
    label = job_label(returned.hydra_cfg.hydra.job.num, returned.overrides, arguments)
    return FinishedJob(label, {str(key): value for key, value in storage.items()}, returned.return_value)


def job_label(number: int, overrides: Sequence[str], arguments: Arguments) -> str:
    """Returns a job's number and the values that the multirun varies: ``job 2 (tuner=evolution, seed=1)``."""
    pairs = [text.lstrip("+~") for text in overrides]
    swept = ", ".join(masked(pair) for pair in pairs if pair.partition("=")[0] in arguments.swept)
    return f"job {number} ({swept})" if swept else f"job {number}"


def tell_failures(jobs: Sequence[FinishedJob]) -> None:
    """Prints a line that names the jobs that failed, if there are several jobs."""
    failed = [job.label for job in jobs if job.result.status]
    if failed and len(jobs) > 1:
        print_message(
            f"{len(failed)} of {count(len(jobs), 'job')} failed: {', '.join(failed)}. Run again to repeat them"
        )
