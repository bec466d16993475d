"""The files with code in the folder of an experiment's trials."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

MAX_FILES = 2_000
"""Maximum number of Python files; a folder of trials rarely has more than a hundred."""


def files_under(folder: Path, command: str, *, without: str = "") -> dict[str, Path]:
    """Returns the Python files under a folder and files that a command names.

    The key of a file is its path in the folder. Hidden folders, virtual environments and the output of trials are left
    out.

    Args:
        folder: The working folder of the command.
        command: A shell command.
        without: The folder of the trials' output.
    """
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_left_out(Path(root, name), without))
        paths = [Path(root, name) for name in sorted(names) if name.endswith(".py")]
        found |= {path.relative_to(folder).as_posix(): path for path in paths[: MAX_FILES - len(found)]}
    with suppress(ValueError):  # an unclosed quote: the shell will tell
        named = [word for word in shlex.split(command) if not os.path.isabs(word) and os.path.isfile(folder / word)]
        found |= {Path(os.path.normpath(word)).as_posix(): Path(folder, word) for word in named}
    return found


def _is_left_out(folder: Path, output: str) -> bool:
    is_output = bool(output) and folder.resolve() == Path(output).resolve()
    return folder.name.startswith((".", "__")) or is_output or os.path.isfile(folder / "pyvenv.cfg")
