"""Numbers that processes of a machine claim, so that each uses a free GPU."""

from __future__ import annotations

import fcntl
import itertools
from pathlib import Path


class NumberClaim:
    """The lowest number that no other claim in a folder has, until ``release``.

    The system frees the number of a killed process.

    Args:
        folder: A folder of this machine. It holds an empty file for each number.
    """

    def __init__(self, folder: Path) -> None:
        for self.number in itertools.count():
            self._lock = (folder / str(self.number)).open("wb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
            else:
                return

    def release(self) -> None:
        """Frees the number; does nothing if it is free."""
        self._lock.close()
