"""What lies in the data files of a problem: where they lie is no part of a search, what they hold is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError
from nas.training.problem import Problem

HASHED_BYTES = 2**30
"""Of larger files only the size counts."""


def contents(problem: Problem, arguments: Mapping[str, Any]) -> dict[str, str]:
    """What each of ``Problem.data_files`` holds that lies on this machine, as a digest; URLs and folders are not read.

    Args:
        problem: Built of these arguments.
        arguments: Those that it was given.

    Raises:
        ConfigurationError: a file can't be read.
    """
    found: dict[str, str] = {}
    for name in sorted(problem.data_files):
        value = arguments.get(name)
        if isinstance(value, str) and (path := Path(value)).is_file():
            try:
                known = path.stat()
                found[name] = _digest(path.resolve(), known.st_size, known.st_mtime_ns)
            except OSError as error:
                raise ConfigurationError(f"problem.{name} ({value}) can't be read: {error.strerror}") from error
    return found


@lru_cache(maxsize=64)
def _digest(path: Path, n_bytes: int, changed_ns: int) -> str:
    """Of the file as it was when it had this size and was changed then."""
    if n_bytes > HASHED_BYTES:
        return f"{n_bytes} bytes"
    with path.open("rb") as file:
        return f"{n_bytes} bytes, sha256 {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
