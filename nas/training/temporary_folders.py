"""Temporary folders of trials, which the driver removes after its worker processes were killed."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

SLOT_FOLDER_VARIABLE = "HEIRLOOM_SLOT_FOLDER"
"""The variable that names the folder of a worker's slot.

Without it, the system's temporary folder is used. ``TMPDIR`` stays as it is: a longer path has no room for sockets.
"""


def temporary_folder(prefix: str) -> TemporaryDirectory[str]:
    """Returns a new temporary folder."""
    return TemporaryDirectory(prefix=prefix, dir=os.environ.get(SLOT_FOLDER_VARIABLE))
