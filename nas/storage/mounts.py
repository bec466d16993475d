"""Mounts of this machine: their source, type and options explain most problems of network file systems."""

from __future__ import annotations

import os
from typing import NamedTuple

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay", "tmpfs", "ramfs"})


class Mount(NamedTuple):
    """A mount as the system lists it."""

    source: str
    kind: str
    options: str

    @property
    def is_nfs(self) -> bool:
        """Whether it is an NFS mount."""
        return self.kind in ("nfs", "nfs4")

    @property
    def is_local(self) -> bool:
        """Whether its files are on this machine: a disk's file system, an overlay or memory."""
        return self.kind in _LOCAL

    def has(self, *options: str) -> bool:
        """Returns whether it is mounted with one of these options."""
        return not set(options).isdisjoint(self.options.split(","))


def find_mount(path: str) -> Mount | None:
    """Returns the mount of a path, which need not exist; None on a system without /proc."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return None
    real = os.path.realpath(path)
    longest, found = -1, None
    for source, target, kind, options, *_ in rows:
        point = target.replace("\\040", " ").rstrip("/")
        is_inside = real == point or real.startswith(f"{point}/")
        if is_inside and len(point) >= longest:
            longest, found = len(point), Mount(source, kind, options)
    return found


def mount_of(path: str) -> str:
    """Returns the mount for a message, as ``server:/export nfs4 rw,vers=4.2``; empty on a system without /proc."""
    return " ".join(find_mount(path) or ())
