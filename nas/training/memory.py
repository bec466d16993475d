"""Memory that the C library keeps for the next step of a training."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of these parameters in glibc's ``malloc.h``."""
_KEPT_BYTES, _LARGEST_BYTES = 1 << 30, 256 << 20


@cache
def keep_freed_memory() -> bool:
    """Lets glibc keep up to 1 GiB of this process's freed memory.

    Returns whether it does.

    By default glibc returns large blocks to the system. Each step of a training on a CPU then waits for thousands of
    pages that the system clears.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )
