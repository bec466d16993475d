"""The temporary folder of a driver, for logs, claims and its workers' folders.

Folders of killed drivers are removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "heirloom-logs-"


class DriverFolder:
    """A temporary folder that is locked as long as this process lives.

    The system frees the lock of a killed process, and the next driver removes its folder.

    Args:
        parent: Where it goes; None: the system's temporary folder.
    """

    def __init__(self, parent: str | None = None) -> None:
        for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_stale(folder)
        self.path, lock = _locked_folder(parent)
        self._lock: int | None = lock

    def remove(self) -> None:
        """Deletes the folder, once."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _locked_folder(parent: str | None) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # another driver removed it before it was locked
            lock = os.open(path, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():
                return path, lock
            os.close(lock)


def _remove_if_stale(folder: Path) -> None:
    """Deletes a folder of this user that no process holds."""
    with suppress(OSError):  # removed meanwhile, another user's, or locked by its driver
        lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
