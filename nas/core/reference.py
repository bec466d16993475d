"""References to published files: path, size and digest."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import lru_cache

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.validation import MAX_WHOLE, checked_fields, short_repr

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files. Published paths never have it."""
MAX_PATH_BYTES = 1024
"""The longest key of S3."""
MAX_NAME_BYTES = 255
"""The longest file name of common file systems."""

_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_ORDINARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
"""Matches nearly all valid paths, so that they need no further check."""
_NO_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def checked_path(path: str, *, unfinished: bool = False) -> str:
    """Returns the path after checking that it is relative and stays below its root.

    Args:
        path: The path.
        unfinished: Whether the name of an unfinished file is allowed.

    Raises:
        ConfigurationError: the path is absolute or too long, is not UTF-8 or names an unfinished file. Or it has an
            empty part, ``.``, ``..`` or a control character.
    """
    if len(path) <= MAX_NAME_BYTES and _ORDINARY.fullmatch(path):
        return path
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or (part.startswith(TEMPORARY) and not unfinished) for part in parts)
    if bad or _NO_NAME.search(path):
        raise ConfigurationError(
            f"path {short_repr(path)} must be relative, '/'-separated and UTF-8, without empty parts, '.', '..', "
            f"control characters or '{TEMPORARY}'"
        )
    if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ConfigurationError(
            f"path {short_repr(path)} must have at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} between two '/'"
        )
    return path


def is_path(path: str, *, unfinished: bool = False) -> bool:
    """Returns whether ``checked_path`` accepts the path. Heirloom writes no other paths."""
    try:
        checked_path(path, unfinished=unfinished)
    except ConfigurationError:
        return False
    return True


def checked_digest(digest: str) -> str:
    """Returns the digest after checking its format.

    Raises:
        CorruptError: it is not a digest as ``digest_of`` writes it.
    """
    if not _DIGEST.fullmatch(digest):
        raise CorruptError(f"digest {short_repr(digest)} must be 'blake3:' and 64 hexadecimal digits")
    return digest


@dataclass(frozen=True, slots=True)
class Reference:
    """A published file. Readers verify its size and digest.

    Attributes:
        path: The path relative to the root.
        bytes: The size.
        digest: The digest, in the format of ``digest_of``.
    """

    path: str
    bytes: int
    digest: str

    def __post_init__(self) -> None:
        checked_path(self.path)
        if not 0 <= self.bytes <= MAX_WHOLE or not _DIGEST.fullmatch(self.digest):
            raise ConfigurationError(
                f"{self.path}: size {short_repr(self.bytes)} and digest {short_repr(self.digest)} can't be a file's"
            )

    def to_json(self) -> dict[str, object]:
        """Returns the data for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Reference:
        """Returns the reference in a record.

        Raises:
            CorruptError: the data was not written by ``to_json``.
        """
        fields = checked_fields(data, _KINDS)
        try:
            return _reference(fields["path"], fields["bytes"], fields["digest"])
        except ConfigurationError as error:
            raise CorruptError(str(error)) from error


_KINDS = {"path": (str,), "bytes": (int,), "digest": (str,)}


@lru_cache(maxsize=1 << 14)
def _reference(path: str, size: int, digest: str) -> Reference:
    """Returns a reference, cached: many records of a lineage name the same packs."""
    return Reference(path, size, digest)


BLOCK = 4096
"""Block size of common file systems, in bytes."""


def references(data: list[object]) -> tuple[Reference, ...]:
    """Returns the references of a JSON array.

    Raises:
        CorruptError: an item is not a reference, or a file is listed twice.
    """
    found = tuple(Reference.from_json(item) for item in data)
    if len({reference.path for reference in found}) != len(found):
        raise CorruptError(f"a file is listed twice: {short_repr(sorted(reference.path for reference in found))}")
    return found


def on_disk(n_bytes: int) -> int:
    """Returns the bytes that a file of this size takes on disk, in blocks of ``BLOCK``."""
    return -(-n_bytes // BLOCK) * BLOCK
