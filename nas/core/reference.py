"""References: the name, size and digest of a published file, and reading that believes nothing else."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import lru_cache

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.validation import MAX_WHOLE, checked_fields, shown

TEMPORARY = ".tmp-"
"""How the name of an unfinished file begins; what lies under such a name is litter, and no published path has it."""


MAX_PATH_BYTES = 1024
"""S3 takes keys no longer."""
MAX_NAME_BYTES = 255
"""File systems take names no longer."""

_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_ORDINARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
"""What nearly every path is, and what needs no closer look."""
_NO_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def checked_path(path: str, *, unfinished: bool = False) -> str:
    """Returns the path, if it is relative and can't leave its root.

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
    """Returns whether ``checked_path`` takes the path: what Heirloom writes has no other."""
    try:
        checked_path(path, unfinished=unfinished)
    except ConfigurationError:
        return False
    return True


def checked_digest(digest: str) -> str:
    """Returns the digest, if it is written as ``digest_of`` does.

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
        """Returns the reference that a record holds.

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
    """Returns the records of a lineage name the same packs again and again."""
    return Reference(path, size, digest)


BLOCK = 4096
"""Bytes of which a file takes a whole number on common disks."""


def references(data: list[object]) -> tuple[Reference, ...]:
    """Returns the references of a JSON array.

    Raises:
        CorruptError: one is none, or two name the same file.
    """
    found = tuple(Reference.from_json(item) for item in data)
    if len({reference.path for reference in found}) != len(found):
        raise CorruptError(f"a file is listed twice: {shown(sorted(reference.path for reference in found))}")
    return found


def on_disk(n_bytes: int) -> int:
    """Returns the bytes that a file of this size takes on a common disk."""
    return -(-n_bytes // BLOCK) * BLOCK
