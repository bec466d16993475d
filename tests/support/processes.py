"""Other processes: whether they run, their parents, and their memory, in which a test looks for secrets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        return _fields_of(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    """Returns the parent of a process."""
    return int(_fields_of(pid)[1])


def children_of(pid: int) -> list[int]:
    """Returns all processes with this parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if parent_of(int(folder.name)) == pid:
                found.append(int(folder.name))
    return found


def _fields_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


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
