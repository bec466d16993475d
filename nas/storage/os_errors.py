"""Errors of the operating system, and their messages."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from nas.core.errors import HeirloomError, StorageError

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Error numbers of file systems without hard links."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk and of an exhausted quota."""


def is_stale(error: OSError) -> bool:
    """Returns whether an NFS server no longer knows a cached file. Opening it again helps."""
    return error.errno == errno.ESTALE


@contextmanager
def storage_errors(action: str, path: str) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError of one line.

    Args:
        action: The verb for the message, as "read" in "can't read /data/x: Permission denied".
        path: The file or folder. A folder inside it that was taken for a file is named instead.
    """
    try:
        yield
    except HeirloomError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, IsADirectoryError) and isinstance(error.filename, str):
            path = error.filename
        if error.errno in DISK_FULL:
            reason = f"the disk is full ({reason})"
        raise StorageError(f"can't {action} {path}: {reason}") from error
