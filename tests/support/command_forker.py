"""Forks commands from a process that has their imports behind it.

A line of JSON on standard input is a command: module, arguments, cwd, environment, out and err. The answer is two
lines: its process, and its exit status once it has ended.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile

IMPORTS = (
    "torch",
    "pandas",
    "hydra",
    "flows.cli.command",
    "flows.engine.runner",
    "flows.cli.settings.search",
    "nas.search.pipeline",
    "nas.problems.digits",
)


def become(module: str, arguments: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    """Runs a command as ``python -m`` does; this process ends as Python ends then."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        fd = os.open(path, flags | (os.O_CREAT if number else 0), 0o600)
        os.dup2(fd, number)
        os.close(fd)
    faulthandler.enable()  # a crash shows its stack
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    sys.path.append(cwd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Forks the commands, one after the other."""
    sys.path.pop(0)  # this script's folder, which is in PYTHONPATH too
    for name in IMPORTS:
        importlib.import_module(name)
    from hydra._internal.hydra import Hydra

    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]  # compose once, as tests/conftest.py does
    gc.freeze()  # else each command's end visits, and so copies, all that was imported
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            return become(**json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
