"""Which mount a path lies on, for error messages: the options explain most surprises of network file systems."""

from __future__ import annotations

import os


def mount_of(path: str) -> str:
    """The mount's source, type and options, as ``server:/export nfs4 rw,vers=4.2``; empty where there is no /proc."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, found = -1, ""
    for source, target, kind, options, *_ in rows:
        place = target.replace("\\040", " ").rstrip("/")
        if (real == place or real.startswith(f"{place}/")) and len(place) >= best:
            best, found = len(place), f"{source} {kind} {options}"
    return found
