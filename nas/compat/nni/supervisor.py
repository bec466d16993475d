"""Runs a shell command and kills its process group when the parent process ends.

Runs as a program on the standard library alone: ``python supervisor.py COMMAND``. The parent holds standard input
open. The process group is killed at the end of standard input, and when the command ends and leaves processes behind.
Exit status: that of the command, or 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading


def main(command: str) -> int:
    """Runs the command and returns its exit status."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execv("/bin/sh", ["sh", "-c", command])

    def watch() -> None:
        while os.read(0, 4096):
            continue
        _kill_group(child)

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(child, 0)
    _kill_group(child)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
