"""Digests of a problem's data files.

Their content is part of a search's identity; their paths are not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError

HASHED_BYTES = 2**30
"""Larger files are identified by their size only."""
NO_FILE = "no file"
"""Instead of a digest: an optional file is not given."""


def contents(
    names: Iterable[str], arguments: Mapping[str, Any], optional: Collection[str] = frozenset()
) -> dict[str, str]:
    """Returns a digest of each file that an argument names.

    URLs, folders and files of other machines are not read.

    Args:
        names: The arguments to read.
        arguments: The arguments that a problem was built with.
        optional: Those of the names that have ``NO_FILE`` if the argument is None.

    Raises:
        ConfigurationError: a file can't be read.
    """
    digests: dict[str, str] = {}
    for name in sorted(names):
        value = arguments.get(name)
        if value is None and name in optional:
            digests[name] = NO_FILE
        elif isinstance(value, str | os.PathLike) and (path := _file_of(value)) is not None:
            try:
                status = path.stat()
                digests[name] = _digest(path.resolve(), status.st_size, status.st_mtime_ns)
            except OSError as error:
                raise ConfigurationError(f"problem.{name}={value}: can't be read: {error.strerror}") from error
    return digests


def _file_of(value: str | os.PathLike[str]) -> Path | None:
    """Returns the file that a value names, with ``~`` as its readers take it, or None."""
    try:
        path = os.path.expanduser(value)
    except ValueError:  # ``~`` before what no user is called
        return None
    return Path(path) if os.path.isfile(path) else None  # False for text that can't be a path


@lru_cache(maxsize=64)
def _digest(path: Path, n_bytes: int, changed_ns: int) -> str:
    """Returns the digest of a file.

    Size and time of change are arguments so that a changed file is read again.
    """
    if n_bytes > HASHED_BYTES:
        return f"{n_bytes} bytes"
    with path.open("rb") as file:
        return f"{n_bytes} bytes, sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
