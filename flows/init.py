"""``python -m flows.init DIR``: writes a small project with a problem that runs as it is."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from flows.cli.output import show_line
from flows.cli.parser import CommandParser, run_plain
from flows.cli.program import command
from nas.core.errors import ConfigurationError, StorageError

PROJECT = Path(__file__).parent / "project"
"""Folder of the files that a new project gets."""


def main() -> int:
    """Runs the command and returns its exit status."""
    return run_plain(lambda: init(sys.argv[1:]))


def init(argv: Sequence[str]) -> int:
    """Writes the files, and prints the next commands."""
    given = _parser().parse_args(argv).folder
    folder = Path(os.path.expanduser(given))
    _check_empty(given, folder)
    for name in project_files():
        _write(folder / name, (PROJECT / name).read_bytes())
    for name in project_files():
        show_line(folder / name)
    show_line("next:")
    if folder.resolve() != Path.cwd():
        name = f"./{folder}" if str(folder).startswith("-") else str(folder)
        show_line(f"  cd {shlex.quote(name)}")
    show_line(f"  {command('search')} +tuner=evolution problem=my_problem")
    return 0


def project_files() -> list[str]:
    """Returns the paths of the project's files."""
    found = (path for path in PROJECT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(PROJECT).as_posix() for path in found)


def _check_empty(given: str, folder: Path) -> None:
    """Refuses a folder in which something is.

    Raises:
        ConfigurationError: it is no folder, is not empty, or can't be listed.
    """
    try:
        has_files = os.path.lexists(folder) and any(folder.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"DIR={given}: must be a new or an empty folder ({error.strerror}). Name another."
        ) from error
    if has_files:
        raise ConfigurationError(f"DIR={given}: must be a new or an empty folder. Name another.")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise StorageError(f"can't write {path}: {error.strerror}") from error


def _parser() -> ArgumentParser:
    parser = CommandParser(
        prog=command("init"), description="Writes a small project with a problem that runs as it is."
    )
    parser.usage = f"{command('init')} DIR"
    parser.add_argument("folder", metavar="DIR", help="a new or an empty folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
