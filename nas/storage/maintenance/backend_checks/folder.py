"""Temporary folder of a root for backend checks."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from nas.core.errors import HeirloomError
from nas.core.names import CHECKS
from nas.storage.blobs import BlobStore

_OTHER_CHECKS_S = 20.0
"""Seconds to wait for other checks that are about to end."""


@contextmanager
def check_folder(root: BlobStore, folder: str = "") -> Iterator[str]:
    """Creates a folder of the root for a check, and removes it afterwards.

    The root is removed, too, if it did not exist before.

    Args:
        root: The root to check.
        folder: Its path below the root; by default a new one.
    """
    folder = folder or f"{CHECKS}/{secrets.token_hex(8)}"
    checks = root.local_path(CHECKS)
    created = [] if checks is None else [checks, *_missing_folders(os.path.dirname(checks))]
    try:
        yield folder
    finally:
        remove_files(root.subfolder(folder))
        deadline = time.monotonic() + (_OTHER_CHECKS_S if len(created) > 1 else 0)
        for path in created:
            while _is_used(path) and time.monotonic() < deadline:
                time.sleep(0.05)


def _is_used(folder: str) -> bool:
    """Removes a folder if it is empty; returns whether it holds files of another check."""
    try:
        os.rmdir(folder)
    except OSError as error:
        return error.errno in (errno.ENOTEMPTY, errno.EEXIST)
    return False


def remove_files(files: BlobStore, folders: Sequence[str] = ("system", "names", "race", "small", "large", "")) -> None:
    """Removes the files of a check, then its folders in a store that has folders.

    Args:
        files: The folder of the check, at least two folders below the storage.
        folders: Its subfolders, then itself, for object stores that can't remove a folder as a whole.
    """
    if (path := files.local_path("x")) is not None:
        with suppress(OSError):  # the checks have reported a lost server already
            shutil.rmtree(os.path.dirname(path))
        return
    parent = files.parent()
    above, own = parent.parent(), f"{parent.name}/{files.name}"
    for folder in (f"{own}/{folder}".rstrip("/") for folder in folders):
        for name in (*above.names(folder), "last"):  # deleting a name, also a missing one, removes an empty folder
            with suppress(HeirloomError):
                above.delete(f"{folder}/{name}")


def existing_folder(path: str) -> str:
    """Returns the nearest folder above a path that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _missing_folders(folder: str) -> list[str]:
    """Returns this folder and those above it that do not exist yet, the deepest first."""
    missing = []
    while folder != existing_folder(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing
