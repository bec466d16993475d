"""Searches under a root, by activity. Only reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.names import CHECKS, NAME
from nas.core.validation import first_of
from nas.storage.records import Records
from nas.views.snapshot import last_session

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore

_N_NAMED = 5

Warn = Callable[[str], None]
"""Receives a line about a folder that was left out."""


@dataclass(frozen=True, slots=True)
class Found:
    """A folder with a search, and the time of its last heartbeat (0: none)."""

    name: str
    files: BlobStore
    last_activity: float


def find_searches(root: BlobStore, now: float, warn: Warn) -> list[Found]:
    """Returns the searches under a root, newest activity first, without reading trials.

    Other folders, and searches that can't be read, are left out with a warning; the folder of backend checks without.

    Raises:
        ConfigurationError: the root is itself the folder of a search.
    """
    found, others = [], []
    for name in root.names():
        if name == "search.json":
            folder, _, itself = root.url.rstrip("/").rpartition("/")
            raise ConfigurationError(
                f"storage.root ({root.url}) is the folder of a search: set storage.root={folder} name={itself}"
            )
        if not NAME.fullmatch(name):
            others += [name] if name != CHECKS else []
            continue
        records = Records(root.subfolder(name))
        try:
            if records.header() is None:
                others.append(name)
                continue
            session = last_session(records, now)
        except HeirloomError as error:
            warn(f"{name} is left out: {error}")
            continue
        found.append(Found(name, records.files, 0.0 if session is None else session.heartbeat))
    if others:
        warn(f"not searches, left out: {first_of(others, _N_NAMED)}")
    return sorted(found, key=lambda search: (-search.last_activity, search.name))
