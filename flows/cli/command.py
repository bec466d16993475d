"""Shared part of all commands: composing the configuration with Hydra, error lines and exit statuses.

Only modules of ``flows.cli`` import Hydra, inside functions. Other commands get plain Python data.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flows.cli.job_process import JobCommand, JobResult, job_orders, return_search
from flows.cli.multirun import FinishedJob, job_label, run_jobs, tell_failures
from flows.cli.only_options import OnlyOption, no_such_tuner, value_of
from flows.cli.options import CONF, keys_of, options_of
from flows.cli.output import prepare_streams, print_message, run_printing, show, tell
from flows.cli.overrides import BUILT, REQUIRED, Arguments, choices_of, explain, groups_of, help_text, unknown_key
from flows.cli.program import module_words, this_command
from nas.core.errors import ConfigurationError, HeirloomError, SearchInterruptedError
from nas.core.spec import Spec
from nas.core.tracebacks import error_line, frames_of, is_of_users_code, raise_ctrl_c

if TYPE_CHECKING:
    from omegaconf import DictConfig

OK, FAILED, MISTAKE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Invocation:
    """One composed configuration, as plain data.

    Attributes:
        values: The whole configuration, with interpolations resolved.
        named: Keys and groups set on the command line.
        swept: Keys that a multirun varies, with this job's values.
        finished: Receives the names of searches that the job has brought to their end.
    """

    values: Mapping[str, Any]
    named: frozenset[str] = frozenset()
    swept: Mapping[str, str] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    def spec(self, group: str) -> Spec | None:
        """Returns the class and arguments chosen for a group, or None."""
        chosen = self.values.get(group)
        if chosen is None:
            return None
        if not isinstance(chosen, Mapping) or not chosen.get("_target_"):
            raise ConfigurationError(
                f"{group}={chosen}: must have a _target_. Add {'+' if group == 'tuner' else ''}{group}=NAME, one of "
                f"{', '.join(choices_of(group))}, or {group}._target_=my_module.MyClass"
            )
        return Spec.from_config(chosen)


Body = Callable[[Invocation], int]
"""The work of a job; it returns the exit status."""


def run_command(
    config: str,
    body: Body,
    argv: Sequence[str] | None = None,
    *,
    after: Callable[[Sequence[FinishedJob]], None] = lambda jobs: None,
) -> int:
    """Composes ``conf/<config>.yaml``, runs ``body`` once per job and returns the exit status.

    * A user's mistake: one line on standard error, status 2.
    * A failed search or storage: one line, status 1.
    * An interruption: status 130 or 143.
    * An error in a user's code: its frames and one line, status 1.
    * Anything else is a bug and keeps its traceback.

    The error of one multirun job does not end the others.

    Args:
        config: The command's name.
        body: The work of a job. A launcher's process does not call it, but starts the command with the job's values.
        argv: The command line, or None: that of this process.
        after: Called with the jobs of a multirun that was not interrupted.
    """
    prepare_streams()
    return run_printing(lambda: _run_jobs(config, body, argv, after))


def _run_jobs(
    config: str,
    body: Body,
    argv: Sequence[str] | None,
    after: Callable[[Sequence[FinishedJob]], None],
) -> int:
    try:
        arguments = Arguments.read(config, sys.argv[1:] if argv is None else argv)
    except ConfigurationError as error:
        print_message(str(error))
        return MISTAKE
    if arguments.wants_help:
        show(help_text(config))
        return OK
    if (orders := job_orders()) is not None:
        arguments = replace(arguments, swept=frozenset(orders["swept"]))

    job = _Job(config, arguments, body, os.getcwd(), this_command())
    statuses = [OK]
    try:
        jobs = _compose(config, arguments, job)
        statuses += [finished.result.status for finished in jobs]
        _conclude(jobs, after)
    except KeyboardInterrupt:
        if job.status <= 128:  # else the job has told
            print_message(f"interrupted (SIGINT). Run again: {this_command()}")
        statuses.append(130)
    except ConfigurationError as error:
        print_message(str(error))
        statuses.append(MISTAKE)
    except Exception as error:  # raised by Hydra: ``job`` catches its own errors
        print_message(explain(error, config, arguments.overrides))
        statuses.append(MISTAKE)
    return max(*statuses, job.status)


def _conclude(jobs: Sequence[FinishedJob], after: Callable[[Sequence[FinishedJob]], None]) -> None:
    """Prints the output of jobs in other processes, and what follows a multirun."""
    for finished in jobs:
        if finished.result.text:
            show(finished.result.text.removesuffix("\n"))
    if len(jobs) > 1 and all(finished.result.status <= 128 for finished in jobs):
        after(jobs)
    tell_failures(jobs)


class _Job:
    """A job, as Hydra calls it.

    Its copy in a launcher's process starts the command with the job's values.

    Args:
        config: The command's name.
        arguments: The command line.
        body: The job's work in this process, or None in a copy.
        folder: The working folder.
        command: The command line for messages.
        words: The words that start the command, or None: as this process was started.
    """

    def __init__(
        self,
        config: str,
        arguments: Arguments,
        body: Body | None,
        folder: str,
        command: str,
        words: tuple[str, ...] | None = None,
    ) -> None:
        self._config, self._arguments, self._body = config, arguments, body
        self._folder, self._command = folder, command
        self._words = module_words(config) if words is None else words
        self._thread = threading.get_ident()
        self.status = OK
        """The greatest status of the jobs in this process."""

    def __reduce__(self) -> tuple[type[_Job], tuple[object, ...]]:
        return _Job, (self._config, self._arguments, None, self._folder, self._command, self._words)

    def __call__(self, configuration: DictConfig) -> JobResult:
        """Runs the job.

        Raises:
            KeyboardInterrupt: the job was interrupted, which ends the others too.
        """
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        label = job_label(hydra.job.num, hydra.overrides.task, self._arguments) if self._arguments.is_multirun else ""
        if self._body is None or threading.get_ident() != self._thread:
            return self._elsewhere(configuration, list(hydra.overrides.task), label).run()
        os.chdir(self._folder)  # hydra.job.chdir=true would change what relative paths mean
        result = _guarded(self._body, lambda: _invocation(self._config, configuration, self._arguments), label)
        self.status = max(self.status, result.status)
        return_search(result.search)
        if result.status > 128:
            raise KeyboardInterrupt
        return result

    def _elsewhere(self, configuration: DictConfig, overrides: Sequence[str], label: str) -> JobCommand:
        """Returns the job as a command of its own."""
        arguments = self._arguments
        own = [option.override for option in _own_options(configuration, arguments)]
        folder = [] if arguments.config_dir is None else ["--config-dir", arguments.config_dir]
        return JobCommand(
            words=(*self._words, *folder, *overrides, *own),
            folder=self._folder,
            label=label,
            orders={"command": self._command, "swept": sorted(arguments.swept)},
        )


def _compose(config: str, arguments: Arguments, job: _Job) -> list[FinishedJob]:
    """Calls ``job`` with each configuration; returns the jobs of a multirun."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra

    argv_before = sys.argv
    sweep_folder = os.path.join(tempfile.gettempdir(), f"heirloom-multirun-{os.getpid()}")
    try:  # Hydra always writes multirun.yaml: into a folder that is deleted
        if arguments.is_multirun:
            return run_jobs(config, arguments, job, sweep_folder)
        sys.argv = [argv_before[0], *arguments.flags, *arguments.overrides, f"hydra.sweep.dir={sweep_folder}"]
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(job)()
        return []
    finally:
        sys.argv = argv_before
        shutil.rmtree(sweep_folder, ignore_errors=True)


def _invocation(config: str, configuration: DictConfig, arguments: Arguments) -> Invocation:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        for option in _own_options(configuration, arguments):
            OmegaConf.update(configuration, *value_of(option.override), force_add=True)
        plain = OmegaConf.to_container(configuration, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(str(error).partition("\n")[0]) from error
    assert isinstance(plain, dict)
    values = {str(key): value for key, value in plain.items()}
    _check_keys(config, values)
    pairs = [text.lstrip("+~").partition("=")[::2] for text in HydraConfig.get().overrides.task]
    swept = {key: value for key, value in sorted(pairs) if key in arguments.swept}
    return Invocation(values, arguments.named, swept)


def _own_options(configuration: DictConfig, arguments: Arguments) -> list[OnlyOption]:
    """Returns the options of the job's tuner.

    Raises:
        ConfigurationError: the job, and all others, have another tuner.
    """
    names = _tuner_names(configuration) if arguments.only else []
    own = [option for option in arguments.only if option.tuner in names]
    if arguments.swept.isdisjoint(("tuner", "tuner._target_", "experiment")):
        for option in arguments.only:
            if option not in own:
                raise no_such_tuner(option, names)
    return own


def _tuner_names(configuration: DictConfig) -> list[str]:
    """Returns the names of a job's tuner: its choice, and that of its class."""
    from hydra.core.hydra_config import HydraConfig

    choice = HydraConfig.get().runtime.choices.get("tuner")
    target = (configuration.get("tuner") or {}).get("_target_")
    found = [choice if choice != "custom" else None, None if target is None else Spec(target).name]
    return list(dict.fromkeys(filter(None, found)))


def _check_keys(config: str, values: Mapping[str, Any]) -> None:
    """Refuses keys added by ``+key=value`` that no code reads, and keys deleted by ``~key``.

    Raises:
        ConfigurationError: ``conf/<config>.yaml`` has no such key, it is missing, or it holds other keys.
    """
    for option in options_of(config):
        outer, _, key = option.key.rpartition(".")
        holder = values.get(outer, {}) if outer else values
        if isinstance(holder, Mapping) and key not in holder:
            text = f"{option.key}: can't be deleted by ~. Write {option.key}={option.default}, the default"
            raise ConfigurationError(text)
    page, groups = keys_of(config), groups_of(config)
    for group in REQUIRED:
        if group in groups and group not in values:
            choices = ", ".join(choices_of(group, config))
            raise ConfigurationError(f"{group}: can't be deleted by ~. Write {group}=NAME, one of {choices}")
    known = {*page, *groups, *BUILT}
    for key, value in values.items():
        if key not in known:
            raise ConfigurationError(unknown_key(key, config))
        if not (inner := page.get(key)):
            continue
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{key}={value!r}: holds keys: set {' or '.join(f'{key}.{k}' for k in inner)}")
        for unknown in sorted(set(value) - set(inner)):
            raise ConfigurationError(unknown_key(f"{key}.{unknown}", config))


def _guarded(body: Body, compose: Callable[[], Invocation], label: str) -> JobResult:
    """Returns the result of a job; the line of an error begins with the label."""
    finished: list[str] = []

    def run() -> int:
        invocation = compose()
        try:
            return body(invocation)
        finally:
            finished.extend(invocation.finished)

    status = _status_of(run, f"{label}: " if label else "")
    return JobResult(status, finished[0] if finished else None)


def _status_of(body: Callable[[], int], before: str) -> int:
    """Returns the status of a body, after the line of its error."""
    try:
        return run_printing(body)
    except SearchInterruptedError as error:
        print_message(f"{before}{error}")
        return 128 + error.signal if error.signal else FAILED
    except ConfigurationError as error:
        print_message(f"{before}{error}")
        return MISTAKE
    except HeirloomError as error:
        for frames in getattr(error, "__notes__", ()):  # of a user's code in a worker
            tell(frames.rstrip())
        print_message(f"{before}{error}")
        return FAILED
    except BaseException as error:
        raise_ctrl_c(error)
        if is_of_users_code(error):
            tell(frames_of(error).rstrip())
            print_message(f"{before}{error_line(error)}")
        elif isinstance(error, SystemExit):
            raise
        else:
            tell(traceback.format_exc().rstrip())
        return FAILED
