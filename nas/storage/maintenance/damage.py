"""Damages: what became of a file that should be there and whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What became of a file."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"
    """The storage refuses to read it: no permission, a disk's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that should be there and whole, and is not.

    Attributes:
        kind: ``record``, ``manifest``, ``pack``, ``file`` (of a ``save_dir``), ``partial`` (a pack of a trial without a
            result) or ``export``.
        path: Relative to the search's folder.
        fate: Missing, corrupt, unreadable.
        detail: How it shows.
        trials: Those that it touches: whose record it is, or whose weights, files or export can't be read whole.
    """

    kind: str
    path: str
    fate: Fate
    detail: str = ""
    trials: tuple[int, ...] = ()


def reason_of(error: BaseException) -> str:
    """What the system said, in a word or two."""
    for source in (error.__cause__, error):
        if isinstance(source, OSError) and source.strerror:
            return source.strerror
    return str(error.__cause__ or error)
