"""Memory that the C library keeps for the next step of a training."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of these parameters in glibc's ``malloc.h``."""
_KEPT_BYTES, _LARGEST_BYTES = 1 << 30, 256 << 20
_OLD_LARGEST_BYTES = 32 << 20
"""The most that older versions of glibc allow."""


@cache
def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory of this process.

    Returns whether it does. It keeps 1 GiB at the end of the heap, and all between blocks in use.

    By default glibc returns large blocks to the system. Each step of a training on a CPU then waits for thousands of
    pages that the system clears.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None or not mallopt(_TRIM_THRESHOLD, _KEPT_BYTES):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) or mallopt(_MMAP_THRESHOLD, _OLD_LARGEST_BYTES))
