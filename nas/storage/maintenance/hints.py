"""Remedies: what a person can do about an error of a storage."""

from __future__ import annotations

import errno
import os

from nas.core.errors import CorruptError, MissingError
from nas.storage.mounts import Mount
from nas.storage.posix import DISK_FULL, NO_LINKS


def remedy_for(error: BaseException, mount: Mount | None, folder: str | None) -> str:
    """One line on what to change.

    Args:
        error: What was raised; where a StorageError, the system's error is its cause.
        mount: The mount on which it happened, or None: unknown, or no folder.
        folder: The folder in which it happened, or None: an object store.
    """
    is_nfs = mount is not None and mount.is_nfs
    if isinstance(error, MissingError):
        return "this client does not show what another one wrote: see stale caches in docs/nfs.md"
    if isinstance(error, CorruptError):
        return "what was read is not what was written: check the disk, the memory and the network of client and server"
    number = errno_of(error)
    if number in NO_LINKS and "link" in str(error):
        return "choose another storage.root: hard links are needed (ext4, xfs, btrfs, zfs, NFS; not FAT, not all SMB)"
    if number in (errno.EACCES, errno.EPERM):
        if folder is None:
            return "check storage.options, and what these credentials may write"
        if is_nfs and os.geteuid() == 0:
            return (
                "the server maps root to nobody (root_squash): run as a user who owns the folder, "
                "and give it to that user on the server (chown)"
            )
        return f"give uid {os.geteuid()} the right to write there (chown or chmod), also on the server's own folder"
    if number == errno.EROFS:
        return "export it with rw and mount it with rw" if is_nfs else "remount it with rw, or choose another folder"
    if number == errno.ESTALE:
        return "the server lost the folder (it was replaced, or exported anew): unmount it and mount it again"
    if number in DISK_FULL:
        return "free space, raise the quota, or choose another storage.root"
    if number in (errno.EIO, errno.ETIMEDOUT):
        return "see the kernel's log (dmesg): a failing disk, or a server that a soft mount gave up on"
    if folder is None:
        return "check the URL, storage.options and the network"
    return "choose another storage.root"


def errno_of(error: BaseException) -> int | None:
    """Returns the number of the system's error that this one is, or that caused it."""
    for source in (error.__cause__, error):
        if isinstance(source, OSError) and source.errno is not None:
            return source.errno
    return None
