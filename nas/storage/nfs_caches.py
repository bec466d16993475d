"""Workarounds for stale caches of NFS clients.

A client that once did not find a name may answer "no such file" for 30 s. Opening the folder makes it ask the server.
A cached handle may name a deleted file (ESTALE). Opening the file again helps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from nas.storage.os_errors import is_stale
from nas.storage.verified import waits

T = TypeVar("T")


def refresh_folder(folder: str) -> bool:
    """Opens a folder, so that NFS clients drop cached "no such file" answers.

    If it seems to be missing, the folders above are opened first.

    Returns:
        Whether the folder exists.
    """
    if _can_open(folder):
        return True
    parent = os.path.dirname(folder)
    if parent == folder or not refresh_folder(parent):
        return False
    if _can_open(folder):
        return True
    _list(parent)
    return _can_open(folder)


def retry_missing(path: str, attempt: Callable[[], T]) -> T:
    """Calls ``attempt`` again after FileNotFoundError, once the folder of ``path`` is refreshed.

    If opening the folder does not help, it is listed. Over NFSv3 a folder that changed twice within one tick of the
    server's clock (1 to 10 ms) seems unchanged.
    """
    folder = os.path.dirname(path)
    try:
        return attempt()
    except FileNotFoundError:
        if not refresh_folder(folder):
            raise
    try:
        return attempt()
    except FileNotFoundError:
        _list(folder)
    return attempt()


def retry_stale(attempt: Callable[[], T], retry_s: float) -> T:
    """Calls ``attempt`` until it ends without ESTALE, for at most ``retry_s`` seconds."""
    last: OSError | None = None
    for wait_s in waits(retry_s):
        if wait_s:  # sleep(0) would yield the processor
            time.sleep(wait_s)
        try:
            return attempt()
        except OSError as error:
            if not is_stale(error):
                raise
            last = error
    assert last is not None  # waits() gives at least one attempt
    raise last


def _list(folder: str) -> None:
    with suppress(FileNotFoundError, PermissionError):
        os.listdir(folder)


def _can_open(folder: str) -> bool:
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True
