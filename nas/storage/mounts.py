"""Which mount a path lies on: source, type and options explain most surprises of network file systems."""

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
        """Whether a server keeps the files, and speaks NFS."""
        return self.kind in ("nfs", "nfs4")

    @property
    def is_local(self) -> bool:
        """Whether it is known to keep the files on this machine: a disk's file system, an overlay or memory."""
        return self.kind in _LOCAL

    def has(self, *options: str) -> bool:
        """Returns whether it is mounted with one of these options."""
        return not set(options).isdisjoint(self.options.split(","))


def find_mount(path: str) -> Mount | None:
    """Returns the mount on which a path lies, or would lie; None where there is no /proc."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return None
    real = os.path.realpath(path)
    best, found = -1, None
    for source, target, kind, options, *_ in rows:
        place = target.replace("\\040", " ").rstrip("/")
        if (real == place or real.startswith(f"{place}/")) and len(place) >= best:
            best, found = len(place), Mount(source, kind, options)
    return found


def mount_of(path: str) -> str:
    """Returns the mount for a message, as ``server:/export nfs4 rw,vers=4.2``; empty where there is no /proc."""
    return " ".join(find_mount(path) or ())
