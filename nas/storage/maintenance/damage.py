"""Damages: files of a search that are missing, corrupt or unreadable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

DamageState: TypeAlias = Literal["missing", "corrupt", "unreadable"]
"""State of a damaged file; unreadable: no permission, or a disk error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is not what the records say.

    Attributes:
        kind: ``record``, ``manifest``, ``pack``, ``file`` (of a ``save_dir``), ``resume`` (a pack of a resume point) or
            ``export``.
        path: Relative to the search's folder.
        state: Missing, corrupt or unreadable.
        detail: What was found instead.
        trials: Affected trials: those whose record, weights, files or export can't be read.
    """

    kind: str
    path: str
    state: DamageState
    detail: str = ""
    trials: tuple[int, ...] = ()


def reason_of(error: BaseException) -> str:
    """Returns the system's message for an error, without path and number."""
    for source in (error.__cause__, error):
        if isinstance(source, OSError) and source.strerror:
            return source.strerror
    return str(error.__cause__ or error)
