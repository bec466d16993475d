"""The check of a root: what one process sees of the promises on which Heirloom relies, tried out one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from nas.errors import AlreadyPublishedError
from nas.store.files import Files
from nas.store.mounts import Mount, find_mount
from nas.store.posix import link_new, rename_new, sync_folder
from nas.store.promises import (
    BUDGET_S,
    N_TRIES,
    BrokenPromiseError,
    Promise,
    Verdict,
    check_whole,
    timed,
    tried,
)
from nas.store.reference import digest_of

_RECORD = b"{" + b" " * 298 + b"}"
_LARGE = 8 << 20
_NAMES = ("Ä model (1).bin", "ä model (1).bin", f"{'long' * 50}.bin", "-", "a\\b:c*?")


def check_root(files: Files) -> Iterator[Promise]:
    """Tries out, one by one, what one process sees of a root; ends early where nothing can be written.

    Args:
        files: A folder of the root that nobody else uses: see ``workplace``.
    """
    folder = files.local_path("system")
    first = tried("records are published", lambda: _publish(files, "small", _RECORD), folder)
    yield first
    if first.verdict == Verdict.BROKEN:
        return
    if folder is not None:
        os.makedirs(folder)
        yield from _check_system(folder)
    yield tried("large files are published", lambda: _publish(files, "large", os.urandom(_LARGE)), folder)
    yield tried("what was published is read", lambda: _read(files), folder)
    yield tried("a new name is listed at once", lambda: _list(files), folder)
    yield tried("one of many writers wins", lambda: _race(files), folder)
    yield tried("a replaced file is never torn", lambda: _replace(files), folder)
    yield tried("a deleted file is gone", lambda: _delete(files), folder)
    yield tried("names are kept as given", lambda: _keep_names(files), folder)
    if folder is not None:
        yield from conditions(folder)
    elif files.in_process:
        seen = "memory://: this process only"
        remedy = "for runner=processes, other machines, or to keep anything, choose a folder or an object store"
        yield Promise(name="others see it", verdict=Verdict.RISK, seen=seen, remedy=remedy)


# ---- by Heirloom's own protocol


def _publish(files: Files, folder: str, data: bytes) -> tuple[list[float], str]:
    small = len(data) < _LARGE
    times = timed(lambda n: files.publish(f"{folder}/{n}", [data], exclusive=small), N_TRIES if small else 5)
    speed = "" if small else f", {len(data) / 1e3 / min(times):,.0f} MB/s"
    return times, f"{len(data):,} bytes, durable{speed}"


def _read(files: Files) -> tuple[list[float], str]:
    data = os.urandom(_LARGE)
    reference = files.publish("large/read", [data])
    times = timed(lambda n: files.check_contents(reference), 5)
    return times, f"{len(data):,} bytes, verified, not from a cache, {len(data) / 1e3 / min(times):,.0f} MB/s"


def _list(files: Files) -> tuple[list[float], str]:
    def look(n: int) -> None:
        files.publish(f"small/listed-{n}", [_RECORD])
        if f"listed-{n}" not in files.names("small"):
            raise BrokenPromiseError(
                f"try {n}: not listed", "choose another storage.root: this one lists what was before"
            )

    return timed(look, 20), ""


def _race(files: Files) -> tuple[list[float], str]:
    """Eight threads want each name; every one of the others must be told that it is taken."""

    def want(name: str, who: bytes) -> bool:
        try:
            files.publish(name, [who], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    def race(n: int) -> None:
        winners = [b"%d" % i for i, won in enumerate(pool.map(lambda i: want(f"race/{n}", b"%d" % i), range(8))) if won]
        found = files.read_if_present(f"race/{n}")
        if [found] != winners:
            lines = f"try {n}: of 8 writers {len(winners)} won, and {found!r} is there"
            raise BrokenPromiseError(lines, "choose another storage.root: two sessions could both drive a search here")

    with ThreadPoolExecutor(8) as pool:
        times = timed(race, 20)
    return times, f"{len(times)} names, 8 writers each"


def _replace(files: Files) -> tuple[list[float], str]:
    """One thread replaces a file all the while, another reads it."""
    files.replace("beat", bytes(3000))
    times_ms: list[float] = []
    n_reads = 0
    with ThreadPoolExecutor(1) as pool:
        while not times_ms or (len(times_ms) < 2 * N_TRIES and sum(times_ms) < 1000 * BUDGET_S):
            data = bytes([len(times_ms) % 256]) * 3000
            writing = pool.submit(timed, lambda n, data=data: files.replace("beat", data), 1)  # type: ignore[misc]
            while True:
                is_last = writing.done()
                check_whole(files.read_if_present("beat"))
                n_reads += 1
                if is_last:
                    break
            times_ms += writing.result()
    return times_ms, f"{n_reads} whole reads meanwhile"


def _delete(files: Files) -> tuple[list[float], str]:
    references = [files.publish(f"small/deleted-{n}", [_RECORD]) for n in range(10)]

    def delete(n: int) -> None:
        files.delete(references[n].path)
        if files.read_if_present(references[n].path) is not None:
            raise BrokenPromiseError(
                f"try {n}: still there", "choose another storage.root: sweeping frees no space here"
            )

    return timed(delete, len(references)), ""


def _keep_names(files: Files) -> tuple[list[float], str]:
    """What problems save may have any name; folders that fold capitals or change letters mix files up."""
    for name in _NAMES:
        files.publish(f"names/{name}", [name.encode()])
    listed = files.names("names")
    if lost := [n for n in _NAMES if n not in listed or files.read_if_present(f"names/{n}") != n.encode()]:
        remedy = "give saved files (run.save_dir) plain names that differ in more than capitals, or choose another root"
        raise BrokenPromiseError(f"{', '.join(lost)} became {', '.join(listed)}", remedy)
    return [], "capitals, umlauts, 200 letters"


# ---- by the system's calls, as the protocol uses them


def _check_system(folder: str) -> Iterator[Promise]:
    def new(n: int, kind: str) -> str:
        path = f"{folder}/{kind}-{n}"
        with open(path, "xb", buffering=0) as file:
            file.write(_RECORD)
        return path

    def create(n: int) -> None:
        path = new(n, "new")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            raise BrokenPromiseError(f"try {n}: the second O_EXCL succeeded", "choose another storage.root")

    def sync(n: int) -> None:
        fd = os.open(f"{folder}/sync-{n}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, _RECORD)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(n: int) -> None:
        path = new(n, "rename")
        rename_new(path, f"{path}-done", digest_of(_RECORD))
        if os.path.exists(path) or not os.path.exists(f"{path}-done"):
            raise BrokenPromiseError(f"try {n}: both names, or none", "choose another storage.root")

    def link(n: int) -> None:
        target = f"{folder}/linked-{n}"
        link_new(new(n, "link"), target)
        with suppress(AlreadyPublishedError):
            link_new(new(n, "link-again"), target)
            raise BrokenPromiseError(f"try {n}: a link replaced a taken name", "choose another storage.root")

    calls: Sequence[tuple[str, Callable[[int], None], str]] = (
        ("exclusive create", create, "a taken name is refused"),
        ("write, fsync and close", sync, "returned without error"),
        ("fsync of a folder", lambda n: sync_folder(folder), "returned without error"),
        ("rename", rename, "the old name is gone"),
        ("hard link", link, "a taken name is refused"),
    )
    for name, call, seen in calls:
        yield tried(name, lambda call=call, seen=seen: (timed(call), seen), folder)  # type: ignore[misc]


# ---- by what the system says of the mount


def conditions(folder: str) -> Iterator[Promise]:
    """What the mount's type and options, and the owner of a new file, make of the promises."""
    path = f"{folder}/owner"
    with open(path, "xb"):
        owner, me = os.stat(path).st_uid, os.geteuid()
    if owner == me:
        yield Promise(name="files belong to their writer", seen=f"uid {me}")
    else:
        squashed = "the server maps root to another user (root_squash), or all users (all_squash)"
        mapped = "user ids or NFSv4 names are mapped: see idmap in docs/nfs.md"
        remedy = f"{squashed if me == 0 else mapped}; other users' processes may not be able to read or delete them"
        seen = f"uid {owner} instead of {me}"
        yield Promise(name="files belong to their writer", verdict=Verdict.RISK, seen=seen, remedy=remedy)
    if (mount := find_mount(folder)) is not None:
        yield _outlives(mount)
        if mount.is_nfs:
            yield _waits(mount)


def _outlives(mount: Mount) -> Promise:
    name = "what is kept outlives a restart"
    if mount.kind in ("tmpfs", "ramfs"):
        remedy = "choose a folder on a disk or a server"
        return Promise(name=name, verdict=Verdict.RISK, seen=f"{mount.kind}: kept in memory", remedy=remedy)
    if mount.kind in ("overlay", "aufs"):
        remedy = "mount a volume into the container, and choose a folder of it"
        return Promise(name=name, verdict=Verdict.RISK, seen=f"{mount.kind}: ends with its container", remedy=remedy)
    server = "; on the server, check for sync in `exportfs -v`" if mount.is_nfs else ""
    return Promise(name=name, seen=f"{mount.kind}, by fsync; only a power cut proves it{server}")


def _waits(mount: Mount) -> Promise:
    name = "a slow server is waited for"
    if mount.has("soft", "softerr"):
        remedy = "mount with hard: a soft mount gives up after a while, and the trial that was writing is lost"
        return Promise(name=name, verdict=Verdict.RISK, seen="mounted soft", remedy=remedy)
    return Promise(name=name, seen="mounted hard")
