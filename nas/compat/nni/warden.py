"""Runs a shell command in a session of its own, and ends all of it when whoever started the warden is gone.

A program of its own, on the standard library alone: ``python warden.py COMMAND``. The end of its standard input, which
its parent holds open, ends the command's process group; so does the end of the command itself, for what that left
running. Exit status: the command's, or 128 and the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading


def main(command: str) -> int:
    """Runs the command; gives its exit status."""
    child = os.fork()
    if child == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execv("/bin/sh", ["sh", "-c", command])

    def watch() -> None:
        while os.read(0, 4096):
            continue
        _end_group(child)

    threading.Thread(target=watch, daemon=True).start()
    _, status = os.waitpid(child, 0)
    _end_group(child)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
