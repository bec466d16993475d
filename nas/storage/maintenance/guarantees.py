"""Promises: what Heirloom relies on in a root; how one that was tried out there turned out, and where to try."""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from nas.core.errors import HeirloomError
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.damage import reason_of
from nas.storage.maintenance.hints import errno_of, remedy_for
from nas.storage.mounts import Mount, find_mount

CHECKS = "_check"
"""The folder of a root in which checks work, each in one of its own; no search can have this name."""
N_TRIES = 50
BUDGET_S = 3.0
"""After which a promise on a slow root has been tried often enough."""


_OTHERS_S = 2.0
_GONE = frozenset({errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH})


class Verdict(StrEnum):
    """What came of trying out a promise."""

    KEPT = "kept"
    RISK = "at risk"
    """It held, but not in every case that may come."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise of a root, as it was found.

    Attributes:
        name: What is promised.
        verdict: Whether it holds.
        times_ms: How long each try took.
        seen: What was seen.
        remedy: What to change where it is not kept.
        is_lost: Whether the storage is gone, so that nothing more can be tried.
    """

    name: str
    verdict: Verdict = Verdict.KEPT
    times_ms: tuple[float, ...] = ()
    seen: str = ""
    remedy: str = ""
    is_lost: bool = False

    def quantile_ms(self, share: float) -> float | None:
        """Returns the time that this share of the tries did not exceed."""
        ordered = sorted(self.times_ms)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class BrokenPromiseError(HeirloomError):
    """The root did something else than was promised, without an error; the arguments: what was seen, the remedy."""


class RiskyPromiseError(BrokenPromiseError):
    """The same, where it harms some users only."""


@contextmanager
def workplace(root: BlobStore, folder: str = "") -> Iterator[str]:
    """A folder of the root for a check, a new one by default; it is removed, and so is the root where it is new."""
    folder = folder or f"{CHECKS}/{secrets.token_hex(8)}"
    checks = root.local_path(CHECKS)
    created = [] if checks is None else [checks, *_missing_folders(os.path.dirname(checks))]
    try:
        yield folder
    finally:
        clear(root.below(folder))
        until = time.monotonic() + (_OTHERS_S if len(created) > 1 else 0)
        for place in created:  # as far as no other check is at work there; one that is about to end is waited for
            while not _is_removed(place) and time.monotonic() < until:
                time.sleep(0.05)


def _is_removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError as error:
        return error.errno not in (errno.ENOTEMPTY, errno.EEXIST)
    return True


def clear(files: BlobStore, folders: Sequence[str] = ("", "system", "names", "race", "small", "large")) -> None:
    """Removes what a check has left in its folder."""
    if (inside := files.local_path("x")) is not None:
        with suppress(OSError):  # of a lost server, one error is enough
            shutil.rmtree(os.path.dirname(inside))
        return
    for folder in folders:
        for name in files.names(folder):
            with suppress(HeirloomError):
                files.delete(f"{folder}/{name}" if folder else name)


class Place(NamedTuple):
    """Where promises are tried out.

    Attributes:
        folder: On this machine, or None: an object store.
        mount: On which it lies, as far as the system says.
    """

    folder: str | None
    mount: Mount | None

    @classmethod
    def of(cls, files: BlobStore) -> Place:
        """Returns the place of these files; asked for in good times, as a lost server would not answer."""
        inside = files.local_path("x")
        folder = None if inside is None else os.path.dirname(inside)
        return cls(folder, None if folder is None else find_mount(folder))


def tried(name: str, attempt: Callable[[], tuple[list[float], str]], place: Place) -> Promise:
    """Returns the promise, kept where the attempt gives its times and what it saw."""
    try:
        times_ms, seen = attempt()
    except (BrokenPromiseError, OSError) as error:
        return broken(name, error, place)
    return Promise(name=name, times_ms=tuple(times_ms), seen=seen)


def broken(name: str, error: Exception, place: Place) -> Promise:
    """Returns the promise that this error breaks."""
    if isinstance(error, BrokenPromiseError):
        verdict = Verdict.RISK if isinstance(error, RiskyPromiseError) else Verdict.BROKEN
        seen, remedy = error.args
        return Promise(name=name, verdict=verdict, seen=seen, remedy=remedy)
    remedy = remedy_for(error, place.mount, place.folder)
    is_lost = errno_of(error) in _GONE
    return Promise(name=name, verdict=Verdict.BROKEN, seen=reason_of(error), remedy=remedy, is_lost=is_lost)


def timed(attempt: Callable[[int], object], n: int) -> list[float]:
    """Returns the milliseconds that each of ``n`` attempts took; fewer where they take long."""
    times_ms: list[float] = []
    until = time.monotonic() + BUDGET_S
    while len(times_ms) < n and (not times_ms or time.monotonic() < until):
        began = time.perf_counter()
        attempt(len(times_ms))
        times_ms.append((time.perf_counter() - began) * 1000)
    return times_ms


def check_whole(beat: bytes | None) -> None:
    """Refuses what is no whole heartbeat of a check: 3,000 bytes of one kind.

    Raises:
        BrokenPromiseError: it is none.
    """
    if beat is None or len(beat) != 3000 or len(set(beat)) != 1:
        found = "nothing" if beat is None else f"{len(beat)} bytes"
        remedy = "a heartbeat may be misread here; choose another storage.root"
        raise BrokenPromiseError(f"{found} instead of the old or the new contents", remedy)


def existing_folder(place: str) -> str:
    """Returns the nearest folder on the way to a place that is there."""
    while not os.path.isdir(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return place


def _missing_folders(folder: str) -> list[str]:
    """Returns the folders on the way to this one, itself too, that do not exist yet, the deepest first."""
    missing = []
    while folder != existing_folder(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing
