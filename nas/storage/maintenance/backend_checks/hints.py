"""Hints: one line on how to solve a storage error."""

from __future__ import annotations

import errno
import os

from nas.core.errors import CorruptError, MissingError
from nas.storage.mounts import Mount
from nas.storage.os_errors import DISK_FULL, NO_LINKS


def hint_for(error: BaseException, mount: Mount | None, folder: str | None) -> str:
    """Returns one line on what to change.

    Args:
        error: The error, or a StorageError that the system's error caused.
        mount: The mount of the folder, or None: unknown, or an object store.
        folder: The folder, or None: an object store.
    """
    is_nfs = mount is not None and mount.is_nfs
    if isinstance(error, MissingError):
        return "this client does not see the files of another one: see stale caches in docs/reference/nfs.md"
    if isinstance(error, CorruptError):
        return "the data read differs from the data written: check disk, memory and network of client and server"
    number = errno_of(error)
    if number in NO_LINKS and "link" in str(error):
        return "choose another storage.root: hard links are needed (ext4, xfs, btrfs, zfs, NFS; not FAT, not all SMB)"
    if number in (errno.EACCES, errno.EPERM):
        return _permission_hint(folder, is_nfs=is_nfs)
    if number == errno.EROFS:
        return "export it with rw and mount it with rw" if is_nfs else "remount it with rw, or choose another folder"
    if number == errno.ESTALE:
        return "the server lost the folder (replaced, or exported again): unmount it and mount it again"
    if number in DISK_FULL:
        return "free space, raise the quota, or choose another storage.root"
    if number in (errno.EIO, errno.ETIMEDOUT):
        return "see the kernel's log (dmesg): the disk fails, or a soft mount timed out"
    if folder is None:
        return "check the URL, storage.options and the network"
    return "choose another storage.root"


def _permission_hint(folder: str | None, *, is_nfs: bool) -> str:
    if folder is None:
        return "check storage.options and the write permissions of these credentials"
    if is_nfs and os.geteuid() == 0:
        return (
            "the server maps root to nobody (root_squash): run as a user who owns the folder, "
            "and give it to that user on the server (chown)"
        )
    return f"give uid {os.geteuid()} write permission there (chown or chmod), also on the server's own folder"


def errno_of(error: BaseException) -> int | None:
    """Returns the number of a system error, or of the one that caused it."""
    for source in (error.__cause__, error):
        if isinstance(source, OSError) and source.errno is not None:
            return source.errno
    return None
