"""Backend checks and their results: tests of the guarantees that Heirloom needs from a storage root."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from nas.core.errors import HeirloomError
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.backend_checks.hints import errno_of, hint_for
from nas.storage.maintenance.damage import reason_of
from nas.storage.mounts import Mount, find_mount

N_TRIES = 50
BUDGET_S = 3.0
"""Seconds after which a check on a slow root makes no further try."""
HEARTBEAT_BYTES = 3000

_UNREACHABLE = frozenset(
    {errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)


class CheckStatus(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"
    """Passed, or harmless here, but not in every case."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one backend check.

    Attributes:
        name: The check, as a statement that should be true.
        status: Whether it is true.
        times_ms: Milliseconds of each try.
        observed: What the check found.
        hint: What to change, unless it passed.
        is_unreachable: Whether the storage no longer responds, so that further checks are useless.
    """

    name: str
    status: CheckStatus = CheckStatus.PASSED
    times_ms: tuple[float, ...] = ()
    observed: str = ""
    hint: str = ""
    is_unreachable: bool = False

    def quantile_ms(self, share: float) -> float | None:
        """Returns the time that this share of the tries did not exceed."""
        ordered = sorted(self.times_ms)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class FailedCheckError(HeirloomError):
    """The storage lacks a guarantee, without raising an error itself.

    Args:
        observed: What the check found.
        hint: What to change.
    """

    status = CheckStatus.FAILED

    def __init__(self, observed: str, hint: str) -> None:
        super().__init__(observed)
        self.observed = observed
        self.hint = hint


class CheckWarningError(FailedCheckError):
    """The storage lacks a guarantee that only some users need."""

    status = CheckStatus.WARNING


class Location(NamedTuple):
    """Local folder and mount of a storage root.

    Attributes:
        folder: The folder on this machine, or None: an object store.
        mount: Its mount, or None: unknown.
    """

    folder: str | None
    mount: Mount | None

    @classmethod
    def of(cls, files: BlobStore) -> Location:
        """Returns the location; call it before the checks, since a lost server does not respond."""
        path = files.local_path("x")
        folder = None if path is None else os.path.dirname(path)
        return cls(folder, None if folder is None else find_mount(folder))


class BackendCheck(NamedTuple):
    """One check.

    Attributes:
        name: A statement that should be true.
        attempt: Returns the milliseconds of each try and what was observed; raises if the statement is false.
    """

    name: str
    attempt: Callable[[], tuple[list[float], str]]

    def run(self, location: Location) -> CheckResult:
        """Returns the result of the check."""
        try:
            times_ms, observed = self.attempt()
        except (FailedCheckError, OSError) as error:
            return failed(self.name, error, location)
        return CheckResult(name=self.name, times_ms=tuple(times_ms), observed=observed)


def failed(name: str, error: FailedCheckError | OSError, location: Location) -> CheckResult:
    """Returns the result of a check that raised this error."""
    if isinstance(error, FailedCheckError):
        return CheckResult(name=name, status=error.status, observed=error.observed, hint=error.hint)
    return CheckResult(
        name=name,
        status=CheckStatus.FAILED,
        observed=reason_of(error),
        hint=hint_for(error, location.mount, location.folder),
        is_unreachable=errno_of(error) in _UNREACHABLE,
    )


def timed(attempt: Callable[[int], object], n: int) -> list[float]:
    """Returns the milliseconds of each of ``n`` attempts; fewer attempts if they are slow."""
    times_ms: list[float] = []
    deadline = time.monotonic() + BUDGET_S
    while len(times_ms) < n and (not times_ms or time.monotonic() < deadline):
        started = time.perf_counter()
        attempt(len(times_ms))
        times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def heartbeat(n: int) -> bytes:
    """Returns the contents of the n-th heartbeat of a check: one byte, repeated."""
    return bytes([n % 256]) * HEARTBEAT_BYTES


def check_heartbeat(data: bytes | None) -> None:
    """Raises an error unless this is a whole heartbeat.

    Raises:
        FailedCheckError: it is missing, truncated, or a mixture of two.
    """
    if data is None or len(data) != HEARTBEAT_BYTES or len(set(data)) != 1:
        found = "nothing" if data is None else f"{len(data)} bytes"
        hint = "heartbeats may be misread here. Choose another storage.root."
        raise FailedCheckError(f"{found} instead of the old or the new contents", hint)
