"""References: the name, size and digest of a published file, and reading that believes nothing else."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from blake3 import blake3

from nas.core.errors import ConfigurationError, CorruptError, MissingError, StoreError
from nas.core.validation import MAX_WHOLE, checked_fields, shown

TEMPORARY = ".tmp-"
"""How the name of an unfinished file begins; what lies under such a name is litter, and no published path has it."""

T = TypeVar("T")

MAX_PATH_BYTES = 1024
"""S3 takes keys no longer."""
MAX_NAME_BYTES = 255
"""File systems take names no longer."""

_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_ORDINARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
"""What nearly every path is, and what needs no closer look."""
_NO_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The digest as every record writes it: ``blake3:`` and 64 hexadecimal digits."""
    return f"blake3:{blake3(data).hexdigest()}"


def checked_path(path: str, *, unfinished: bool = False) -> str:
    """The path, if it is relative and can't leave its root.

    Args:
        path: What to check.
        unfinished: Whether it may be the name of an unfinished file.

    Raises:
        ConfigurationError: an absolute path, an empty part, ``.`` or ``..``, a control character, no UTF-8, the name
            of an unfinished file, or more than file systems and object stores take.
    """
    if len(path) <= MAX_NAME_BYTES and _ORDINARY.fullmatch(path):
        return path
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or (part.startswith(TEMPORARY) and not unfinished) for part in parts)
    if bad or _NO_NAME.search(path):
        raise ConfigurationError(
            f"path {shown(path)} must be relative, '/'-separated and UTF-8, without empty parts, '.', '..', "
            f"control characters or '{TEMPORARY}'"
        )
    if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ConfigurationError(
            f"path {shown(path)} must have at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} between two '/'"
        )
    return path


def is_path(path: str, *, unfinished: bool = False) -> bool:
    """Whether ``checked_path`` takes the path: what Heirloom writes has no other."""
    try:
        checked_path(path, unfinished=unfinished)
    except ConfigurationError:
        return False
    return True


def checked_digest(digest: str) -> str:
    """The digest, if it is written as ``digest_of`` does.

    Raises:
        CorruptError: it is not.
    """
    if not _DIGEST.fullmatch(digest):
        raise CorruptError(f"digest {shown(digest)} must be 'blake3:' and 64 hexadecimal digits")
    return digest


@dataclass(frozen=True, slots=True)
class Reference:
    """A published file: the only way to its contents is by size and digest.

    Attributes:
        path: Relative to the root that published it.
        bytes: Size.
        digest: As ``digest_of`` writes it.
    """

    path: str
    bytes: int
    digest: str

    def __post_init__(self) -> None:
        checked_path(self.path)
        if not 0 <= self.bytes <= MAX_WHOLE or not _DIGEST.fullmatch(self.digest):
            raise ConfigurationError(
                f"{self.path}: size {shown(self.bytes)} and digest {shown(self.digest)} can't be a file's"
            )

    def to_json(self) -> dict[str, object]:
        """Plain data for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Reference:
        """The reference that a record holds.

        Raises:
            CorruptError: anything but what ``to_json`` writes.
        """
        fields = checked_fields(data, _KINDS)
        try:
            return _reference(fields["path"], fields["bytes"], fields["digest"])
        except ConfigurationError as error:
            raise CorruptError(str(error)) from error


_KINDS = {"path": (str,), "bytes": (int,), "digest": (str,)}


@lru_cache(maxsize=1 << 14)
def _reference(path: str, size: int, digest: str) -> Reference:
    """The records of a lineage name the same packs again and again."""
    return Reference(path, size, digest)


def is_stale(error: OSError) -> bool:
    """Whether a network file system's server has lost the file behind a cached name: opening it again helps."""
    return error.errno == errno.ESTALE


def waits(patience_s: float, *, first_s: float = 0.005, longest_s: float = 0.25) -> Iterator[float]:
    """The seconds to wait before each attempt: none before the first, then longer and longer until the bound."""
    give_up_s = time.monotonic() + patience_s
    yield 0.0
    wait_s = first_s
    while (left_s := give_up_s - time.monotonic()) > 0:
        yield min(wait_s, left_s)
        wait_s = min(2 * wait_s, longest_s)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a published file, and the memory that takes it.

    Attributes:
        offset: Where the part begins, in bytes.
        digest: What it holds, as ``digest_of`` writes it.
        memory: Writable bytes, as many as the part has.
    """

    offset: int
    digest: str
    memory: memoryview

    @property
    def end(self) -> int:
        """Where the part ends."""
        return self.offset + self.memory.nbytes


def checked_spans(reference: Reference, spans: Sequence[Span]) -> list[Span]:
    """The parts in the order of their offsets.

    Raises:
        CorruptError: two overlap, or one lies outside the file.
    """
    ordered = sorted(spans, key=lambda span: (span.offset, span.end))
    for one, other in pairwise(ordered):
        if other.offset < one.end:
            raise CorruptError(f"{reference.path}: two parts can't share bytes, at {other.offset}")
    if ordered and (ordered[0].offset < 0 or ordered[-1].end > reference.bytes):
        raise CorruptError(f"{reference.path}: a part lies outside of its {reference.bytes} bytes")
    return ordered


class WrongContentsError(Exception):
    """An attempt to read a file found other contents than were promised; the message says what it found."""


def expect(reference: Reference, data: bytes | bytearray | memoryview) -> None:
    """Compares contents with the reference.

    Raises:
        WrongContentsError: they are others.
    """
    if len(data) != reference.bytes or digest_of(data) != reference.digest:
        raise WrongContentsError(f"{len(data)} bytes {digest_of(data)}")


def expect_span(reference: Reference, span: Span, digest: str) -> None:
    """Compares the digest of a part with the promised one.

    Raises:
        WrongContentsError: it is another.
    """
    if digest != span.digest:
        raise WrongContentsError(
            f"{reference.bytes} bytes, of which those from {span.offset} to {span.end} are {digest} "
            f"instead of {span.digest}"
        )


def read_verified(reference: Reference, attempt: Callable[[bool], T], where: Callable[[], str], patience_s: float) -> T:
    """What the first attempt gives that finds what was promised; they go on while a cache may be at fault.

    Args:
        reference: What to read.
        attempt: Reads the file; raises ``WrongContentsError`` where it holds something else. Told whether to go around
            the caches, because the last contents were wrong.
        where: Names the file and its mount for the error.
        patience_s: The bound; at least one attempt is made.

    Raises:
        MissingError: not found within the bound.
        CorruptError: other contents than promised, still at the bound.
    """
    kind: type[StoreError] = MissingError
    reason, cause = "", None
    for wait_s in waits(patience_s):
        if wait_s:  # sleep(0) would give the processor away
            time.sleep(wait_s)
        try:
            return attempt(kind is CorruptError)
        except WrongContentsError as error:
            kind, reason, cause = CorruptError, str(error), None
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_stale(error)):
                raise
            kind, reason, cause = MissingError, error.strerror or "no such file", error
    raise kind(
        f"{where()} on host {socket.gethostname()} is {'missing' if kind is MissingError else 'corrupt'}: expected "
        f"{reference.bytes} bytes {reference.digest}, found {reason}, looked for {patience_s:g} s"
    ) from cause


BLOCK = 4096
"""Bytes of which a file takes a whole number on common disks."""


def references(data: list[object]) -> tuple[Reference, ...]:
    """The references of a JSON array.

    Raises:
        CorruptError: one is none, or two name the same file.
    """
    found = tuple(Reference.from_json(item) for item in data)
    if len({reference.path for reference in found}) != len(found):
        raise CorruptError(f"a file is listed twice: {shown(sorted(reference.path for reference in found))}")
    return found


def on_disk(n_bytes: int) -> int:
    """The bytes that a file of this size takes on a common disk."""
    return -(-n_bytes // BLOCK) * BLOCK
