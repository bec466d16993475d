"""Shared part of all commands: composing the configuration with Hydra, error lines and exit statuses.

Only this module and ``flows.cli.overrides`` import Hydra. They return plain Python data.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flows.cli.options import CONF, keys_of
from flows.cli.output import complain, prepare_streams, run_printing, show, tell
from flows.cli.overrides import BUILT, Arguments, choices_of, explain, groups_of, help_text, unknown_key
from flows.cli.program import this_command
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
    """

    values: Mapping[str, Any]
    named: frozenset[str] = frozenset()
    swept: Mapping[str, str] = field(default_factory=dict)

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


def run_command(config: str, body: Callable[[Invocation], int], argv: Sequence[str] | None = None) -> int:
    """Composes ``conf/<config>.yaml``, runs ``body`` once per job and returns the exit status.

    * A user's mistake: one line on standard error, status 2.
    * A failed search or storage: one line, status 1.
    * An interruption: status 130 or 143.
    * An error in a user's code: its frames and one line, status 1.
    * Anything else is a bug and keeps its traceback.

    The error of one multirun job does not end the others.
    """
    prepare_streams()
    return run_printing(lambda: _run_jobs(config, body, argv))


def _run_jobs(config: str, body: Callable[[Invocation], int], argv: Sequence[str] | None) -> int:
    statuses = [OK]
    try:
        arguments = Arguments.read(config, sys.argv[1:] if argv is None else argv)
    except ConfigurationError as error:
        complain(str(error))
        return MISTAKE
    if arguments.wants_help:
        show(help_text(config))
        return OK

    here = os.getcwd()

    def job(configuration: DictConfig) -> None:
        os.chdir(here)  # hydra.job.chdir=true would change what relative paths mean
        statuses.append(_guarded(lambda: body(_invocation(config, configuration, arguments))))
        if statuses[-1] > 128:  # an interruption ends the other jobs too
            raise KeyboardInterrupt

    try:
        _compose(config, arguments, job)
    except KeyboardInterrupt:
        if statuses[-1] <= 128:  # else the job has told
            complain(f"interrupted (SIGINT). Run again: {this_command()}")
        statuses.append(130)
    except Exception as error:  # raised by Hydra: ``job`` catches its own errors
        complain(explain(error, config, arguments.overrides))
        statuses.append(MISTAKE)
    return max(statuses)


def _compose(config: str, arguments: Arguments, job: Callable[[DictConfig], None]) -> None:
    """Calls ``job`` with each configuration that the command line describes."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra

    argv_before = sys.argv
    sweep_folder = os.path.join(tempfile.gettempdir(), f"heirloom-multirun-{os.getpid()}")
    try:  # Hydra always writes multirun.yaml: into a folder that is deleted
        sys.argv = [argv_before[0], *arguments.flags, *arguments.overrides, f"hydra.sweep.dir={sweep_folder}"]
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(job)()
    finally:
        sys.argv = argv_before
        shutil.rmtree(sweep_folder, ignore_errors=True)


def _invocation(config: str, configuration: DictConfig, arguments: Arguments) -> Invocation:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        plain = OmegaConf.to_container(configuration, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(str(error).partition("\n")[0]) from error
    assert isinstance(plain, dict)
    values = {str(key): value for key, value in plain.items()}
    _refuse_unknown_keys(config, values)
    pairs = [text.lstrip("+~").partition("=")[::2] for text in HydraConfig.get().overrides.task]
    swept = {key: value for key, value in sorted(pairs) if key in arguments.swept}
    return Invocation(values, arguments.named, swept)


def _refuse_unknown_keys(config: str, values: Mapping[str, Any]) -> None:
    """Refuses keys added by ``+key=value`` that no code reads.

    Raises:
        ConfigurationError: ``conf/<config>.yaml`` has no such key, or the key holds other keys.
    """
    page = keys_of(config)
    known = {*page, *groups_of(config), *BUILT}
    for key, value in values.items():
        if key not in known:
            raise ConfigurationError(unknown_key(key, config))
        if not (inner := page.get(key)):
            continue
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{key}={value!r}: holds keys: set {' or '.join(f'{key}.{k}' for k in inner)}")
        for unknown in sorted(set(value) - set(inner)):
            raise ConfigurationError(unknown_key(f"{key}.{unknown}", config))


def _guarded(body: Callable[[], int]) -> int:
    try:
        return run_printing(body)
    except SearchInterruptedError as error:
        complain(str(error))
        return 128 + error.signal if error.signal else FAILED
    except ConfigurationError as error:
        complain(str(error))
        return MISTAKE
    except HeirloomError as error:
        for frames in getattr(error, "__notes__", ()):  # of a user's code in a worker
            tell(frames.rstrip())
        complain(str(error))
        return FAILED
    except BaseException as error:
        raise_ctrl_c(error)
        if is_of_users_code(error):
            tell(frames_of(error).rstrip())
            complain(error_line(error))
        elif isinstance(error, SystemExit):
            raise
        else:
            tell(traceback.format_exc().rstrip())
        return FAILED
