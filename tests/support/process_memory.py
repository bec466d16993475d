"""The memory of other processes, in which a test looks for what must not be there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def memory_of(pid: int) -> bytes:
    """Returns what a process can write of its memory."""
    found = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, access = line.split()[:2]
            first, last = (int(number, 16) for number in place.split("-"))
            if access.startswith("rw"):
                memory.seek(first)
                with suppress(OSError):  # it was given back meanwhile
                    found.append(memory.read(last - first))
    return b"".join(found)
