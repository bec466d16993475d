"""Files that are files: whoever may write to a shared folder may put devices, pipes and links there as well."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from nas.core.errors import CorruptError
from nas.core.validation import MAX_RECORD_BYTES


@contextmanager
def opened(path: str) -> Iterator[FileIO]:
    """The file, open for reading.

    Raises:
        CorruptError: it is a device or a pipe, which make a reader wait, or never end.
    """
    with open(path, "rb", buffering=0, opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CorruptError(f"{path} is no file, but a device or a pipe")
        yield file


def content(path: str) -> bytes:
    """Returns the contents of a record.

    Raises:
        CorruptError: it is larger than any record, or no file.
    """
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_RECORD_BYTES:
            raise CorruptError(f"{path} holds {size} bytes; a record has at most {MAX_RECORD_BYTES}")
        return file.readall()


def overwrite(path: str, data: bytes) -> None:
    """Writes over a file, but not over what a link of that name points to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
