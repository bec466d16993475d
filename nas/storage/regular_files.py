"""Regular files in a shared folder. Others may put devices, pipes and links there."""

from __future__ import annotations

import os
import stat
from io import FileIO

from nas.core.errors import CorruptError
from nas.core.validation import MAX_RECORD_BYTES


def open_regular(path: str) -> FileIO:
    """Opens a file for reading.

    Raises:
        CorruptError: the path is a device or a pipe. Reading from it could block or never end.
    """
    file = open(path, "rb", buffering=0, opener=_without_blocking)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CorruptError(f"{path} is not a file but a device or a pipe")
    return file


def read_record(path: str) -> bytes:
    """Returns the contents of a record.

    Raises:
        CorruptError: it is larger than ``MAX_RECORD_BYTES``, or not a regular file.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_RECORD_BYTES:
            raise CorruptError(f"{path} holds {size} bytes; a record has at most {MAX_RECORD_BYTES}")
        return file.readall()


def overwrite(path: str, data: bytes) -> None:
    """Overwrites a file in place; a symbolic link of that name is refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
