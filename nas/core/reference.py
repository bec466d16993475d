"""References to published files: path, size and digest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.validation import MAX_WHOLE, short_repr

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files. Published paths never have it."""
MAX_PATH_BYTES = 1024
"""The longest key of S3."""
MAX_NAME_BYTES = 255
"""The longest file name of common file systems."""

DIGEST = "blake3:[0-9a-f]{64}"
"""Pattern of the digests that ``digest_of`` writes."""
_DIGEST = re.compile(DIGEST)
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


BLOCK = 4096
"""Block size of common file systems, in bytes."""


def check_distinct(references: Iterable[Reference]) -> None:
    """Checks that each file is listed once.

    Raises:
        CorruptError: it is not.
    """
    paths = [reference.path for reference in references]
    if len(set(paths)) != len(paths):
        raise CorruptError(f"a file is listed twice: {short_repr(sorted(paths))}")


def on_disk(n_bytes: int) -> int:
    """Returns the bytes that a file of this size takes on disk, in blocks of ``BLOCK``."""
    return -(-n_bytes // BLOCK) * BLOCK
