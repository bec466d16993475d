"""POSIX file operations that publish files, safe against lost NFS replies."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import cast

from blake3 import blake3

from nas.core.errors import AlreadyPublishedError, StorageError
from nas.storage.background import Background
from nas.storage.file_blocks import blocks_of
from nas.storage.nfs_caches import refresh_folder, retry_missing
from nas.storage.os_errors import NO_LINKS, storage_errors
from nas.storage.regular_files import open_regular
from nas.storage.verified import Buffer, digest_of_blocks

_BLOCK = 1 << 20
"""Bytes that are hashed at once."""
_WRITE = 4 << 20
"""Bytes that one call writes: file systems take large pieces faster."""
_MAX_VIEWS = 256
"""Memory views that one call writes; the system's own limit is 1,024."""


def write_durably(fd: int, chunks: Iterable[Buffer], target: str) -> tuple[int, str]:
    """Writes the chunks to disk, fsync included, and returns their total size and digest.

    The chunks must not change before it returns.
    """
    hasher, size = blake3(), 0
    with Background() as background:
        for views in _write_groups(chunks):
            begin, size = size, size + sum(view.nbytes for view in views)
            background.run(size - begin, _hash_all, hasher, views)
            with storage_errors("write", target):
                _write(fd, views)
            if size - begin >= _WRITE:
                _start_writeback(fd, begin, size - begin)
        with storage_errors("write", target):
            os.fsync(fd)
    return size, f"blake3:{hasher.hexdigest()}"


def _hash_all(hasher: blake3, views: list[memoryview]) -> None:
    for view in views:
        hasher.update(view)


def _write_groups(chunks: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """Yields the memory of each write call: many small chunks, or some MB of large ones."""
    views: list[memoryview] = []
    n_bytes = 0
    for chunk in chunks:
        view = memoryview(chunk)
        if not view.nbytes:  # memoryview.cast refuses empty views
            continue
        view = view.cast("B")
        for start in range(0, view.nbytes, _BLOCK):
            views.append(view[start : start + _BLOCK])
            n_bytes += views[-1].nbytes
            if n_bytes >= _WRITE or len(views) == _MAX_VIEWS:
                yield views
                views, n_bytes = [], 0
    if views:
        yield views


def _write(fd: int, views: list[memoryview]) -> None:
    n = os.writev(fd, views)
    for view in views:
        if n < view.nbytes:  # writev() wrote only a part of this view
            rest = view[n:]
            while rest:
                rest = rest[os.write(fd, rest) :]
        n = max(0, n - view.nbytes)


def _start_writeback(fd: int, begin: int, n_bytes: int) -> None:
    """Starts sending a range to the disk while the next one is written.

    Only fsync makes the range durable. Without the call, or if it fails, the write takes longer.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, begin, n_bytes, 2)  # SYNC_FILE_RANGE_WRITE


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Returns Linux's sync_file_range(), which Python's ``os`` lacks; None on other systems."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int]", found)


_sync_file_range = _find_sync_file_range()


def link_new(temporary: str, target: str) -> None:
    """Gives a temporary file its final name by a hard link.

    Of several writers, on any machines, exactly one succeeds.

    Raises:
        AlreadyPublishedError: another file has the name.
        StorageError: the file system has no hard links.
    """
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        refresh_folder(os.path.dirname(target))
        # after a lost reply, NFS repeats the request, which then finds the link that it made before
        if not os.path.samestat(os.stat(temporary), os.stat(target)):
            raise AlreadyPublishedError(f"{target} is published already") from error
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        reason = f"its file system refuses hard links ({error.strerror})"
        raise StorageError(f"can't publish {target}: {reason}. Choose another storage.root.") from error
    with suppress(OSError):
        os.unlink(temporary)


def rename_new(temporary: str, target: str, digest: str) -> None:
    """Gives a temporary file its final name by a rename.

    "No such file" is success if the target has the digest: NFS answers so if its first reply was lost.
    """
    try:
        os.rename(temporary, target)
    except FileNotFoundError:
        with retry_missing(target, lambda: open_regular(target)) as file:
            if digest_of_blocks(blocks_of(file)) != digest:
                raise


def sync_folder(folder: str) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a file system whose folders need no fsync
            raise
    finally:
        os.close(fd)


def umask() -> int:
    """Returns the permissions that new files of this process do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
