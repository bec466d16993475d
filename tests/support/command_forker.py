"""Forks commands from a process that has imported what they need: most of the time of a mistake is imports.

python warm.py  # a JSON object a line on standard input: module, arguments, cwd, out, err; answers the status
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import NoReturn

IMPORTS = (
    "torch",
    "hydra",
    "flows.cli.command",
    "flows.engine.runner",
    "flows.cli.settings",
    "nas.search.pipeline",
    "nas.problems.digits",
)


def become(module: str, arguments: list[str], cwd: str, out: str, err: str) -> NoReturn:
    """Runs a command in this process, which ends with its status."""
    os.setsid()
    os.chdir(cwd)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        fd = os.open(path, flags | (os.O_CREAT if number else 0), 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.argv[1:] = arguments
    status: object = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = 0 if error.code is None else error.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status if isinstance(status, int) else 1)


def main() -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            become(**json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
