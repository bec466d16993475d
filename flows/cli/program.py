"""The way in which this program was called, for the commands that it prints."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from flows.cli.job_process import job_orders
from nas.views.formatting import SECRET_HINT, masked

SCRIPT = "heirloom"


def command(name: str) -> str:
    """Returns the start of a command line: ``python -m flows.report``, or ``heirloom report``."""
    return shlex.join(_words(name))


def this_command() -> str:
    """Returns the command line of this process for a shell, with credentials masked.

    For a job that a launcher started, it is the multirun's.
    """
    if (orders := job_orders()) is not None:
        return str(orders["command"])
    given = sys.argv[1:]
    shown = [masked(text) for text in given]
    return shlex.join([*_words(_this_name()), *shown]) + (SECRET_HINT if shown != given else "")


def module_words(name: str) -> tuple[str, ...]:
    """Returns what follows the Python program in a command that is called as this one was."""
    is_script = SCRIPT in (os.path.basename(sys.argv[0]), _main_name())
    return ("-m", SCRIPT, name) if is_script else ("-m", f"flows.{name}")


def _words(name: str) -> list[str]:
    """Returns the words that start a command in the way in which this process was started."""
    if os.path.basename(sys.argv[0]) == SCRIPT:
        return [_short(SCRIPT, sys.argv[0]), name]
    python = _short("python", sys.orig_argv[0], sys.executable)
    return [python, "-m", SCRIPT, name] if _main_name() == SCRIPT else [python, "-m", f"flows.{name}"]


def _this_name() -> str:
    """Returns the name of this command."""
    if SCRIPT in (os.path.basename(sys.argv[0]), _main_name()):
        return sys.orig_argv[-len(sys.argv)]  # the script has removed it from `sys.argv`
    return _main_name().removeprefix("flows.")


def _main_name() -> str:
    """Returns the name of the module that runs as ``__main__``."""
    return getattr(sys.modules["__main__"].__spec__, "name", None) or sys.argv[0]


def _short(name: str, given: str, path: str | None = None) -> str:
    """Returns a program's bare name if the shell finds it, else as given."""
    found = shutil.which(name)
    return name if found is not None and os.path.realpath(found) == os.path.realpath(path or given) else given
