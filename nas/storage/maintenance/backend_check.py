"""The check of a root: what one process sees of the promises on which Heirloom relies, tried out one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

from nas.core.errors import AlreadyPublishedError
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.guarantees import (
    BUDGET_S,
    N_TRIES,
    BrokenPromiseError,
    Place,
    Promise,
    RiskyPromiseError,
    Verdict,
    check_whole,
    timed,
    tried,
)
from nas.storage.mounts import Mount
from nas.storage.posix import link_new, rename_new, sync_folder
from nas.storage.verified import digest_of

_Tried: TypeAlias = tuple[list[float], str]
"""Milliseconds of each try, and what was seen."""
_Named: TypeAlias = tuple[str, Callable[[], _Tried]]
"""What is promised, and how to try it out."""
_RECORD = b"{" + b" " * 298 + b"}"
_LARGE = 8 << 20
_NAMES = ("Modell ä (1).bin", "modell ä (1).bin", f"{'long' * 50}.bin")


def check_root(files: BlobStore, *, n: int = N_TRIES) -> Iterator[Promise]:
    """Tries out, one by one, what one process sees of a root; ends early where nothing can be written any more.

    Args:
        files: A folder of the root that nobody else uses: see ``workplace``.
        n: How often a promise is tried at the most.
    """
    place = Place.of(files)
    first = tried("files can be written", lambda: _write(files), place)
    yield first
    if first.verdict == Verdict.BROKEN:
        return
    for name, attempt in (*_system_calls(place, n), *_protocol(files, n), *_conditions(place)):
        promise = tried(name, attempt, place)
        yield promise
        if promise.is_lost:
            return
    if files.in_process:
        seen = "memory://: this process only"
        remedy = "for runner=processes, other machines, or to keep anything, choose a folder or an object store"
        yield Promise(name="others see it", verdict=Verdict.RISK, seen=seen, remedy=remedy)


# ---- by Heirloom's own protocol


def _protocol(files: BlobStore, n: int) -> Iterator[_Named]:
    yield "records are published", lambda: _publish(files, n)
    yield "large files are published", lambda: _publish_large(files, n)
    yield "what was published is read", lambda: _read(files, n)
    yield "a new name is listed at once", lambda: _list(files, n)
    yield "one of many writers wins", lambda: _race(files, n)
    yield "a replaced file is never torn", lambda: _replace(files, n)
    yield "a deleted file is gone", lambda: _delete(files, n)
    yield "names are kept as given", lambda: _keep_names(files)


def _write(files: BlobStore) -> _Tried:
    return timed(lambda _: files.publish("system/first", [_RECORD]), 1), ""


def _publish(files: BlobStore, n: int) -> _Tried:
    times = timed(lambda i: files.publish(f"small/{i}", [_RECORD], exclusive=True), n)
    return times, f"{len(_RECORD)} bytes, {_how(files)}"


def _publish_large(files: BlobStore, n: int) -> _Tried:
    data = os.urandom(_LARGE)
    return _with_speed(timed(lambda i: files.publish(f"large/{i}", [data]), min(n, 5)), _how(files))


def _how(files: BlobStore) -> str:
    return "whole" if files.local_path("x") is None else "durable"  # what an object store does is its own affair


def _read(files: BlobStore, n: int) -> _Tried:
    reference = files.publish("large/read", [os.urandom(_LARGE)])
    return _with_speed(timed(lambda _: files.check_contents(reference), min(n, 5)), "verified, not from a cache")


def _with_speed(times_ms: list[float], how: str) -> _Tried:
    return times_ms, f"{_LARGE:,} bytes, {how}, {_LARGE / 1e3 / min(times_ms):,.0f} MB/s"


def _list(files: BlobStore, n: int) -> _Tried:
    def look(i: int) -> None:
        files.publish(f"small/listed-{i}", [_RECORD])
        if f"listed-{i}" not in files.names("small"):
            remedy = "choose another storage.root: this one lists what was before"
            raise BrokenPromiseError(f"try {i}: not listed", remedy)

    return timed(look, min(n, 20)), ""


def _race(files: BlobStore, n: int) -> _Tried:
    """Eight threads want each name; every one of the others must be told that it is taken."""

    def want(name: str, who: bytes) -> bool:
        try:
            files.publish(name, [who], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    def race(i: int) -> None:
        names = [b"%d" % who for who in range(8)]
        winners = [
            who for who, won in zip(names, pool.map(lambda who: want(f"race/{i}", who), names), strict=True) if won
        ]
        found = files.read_if_present(f"race/{i}")
        if [found] != winners:
            lines = f"try {i}: of 8 writers {len(winners)} won, and {found!r} is there"
            raise BrokenPromiseError(lines, "choose another storage.root: two sessions could both drive a search here")

    with ThreadPoolExecutor(8) as pool:
        times = timed(race, min(n, 20))
    return times, f"{len(times)} names, 8 writers each"


def _replace(files: BlobStore, n: int) -> _Tried:
    """One thread replaces a file all the while, another reads it."""
    files.replace("beat", bytes(3000))
    times_ms: list[float] = []
    n_reads = 0
    with ThreadPoolExecutor(1) as pool:
        while not times_ms or (len(times_ms) < 2 * n and sum(times_ms) < 1000 * BUDGET_S):
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


def _delete(files: BlobStore, n: int) -> _Tried:
    references = [files.publish(f"small/deleted-{i}", [_RECORD]) for i in range(min(n, 10))]

    def delete(i: int) -> None:
        files.delete(references[i].path)
        if files.read_if_present(references[i].path) is not None:
            remedy = "choose another storage.root: sweeping frees no space here"
            raise BrokenPromiseError(f"try {i}: still there", remedy)

    return timed(delete, len(references)), ""


def _keep_names(files: BlobStore) -> _Tried:
    """What problems save may have any name; a folder that folds capitals or changes letters mixes files up."""
    for name in _NAMES:
        files.publish(f"names/{name}", [name.encode()])
    listed = files.names("names")
    if lost := [n for n in _NAMES if n not in listed or files.read_if_present(f"names/{n}") != n.encode()]:
        remedy = "save no two files whose names differ in capitals only (run.save_dir), or choose another storage.root"
        before, after = (", ".join(f"{name:.20}" for name in names) for names in (lost, listed))
        raise RiskyPromiseError(f"{before} became {after}", remedy)
    return [], "capitals, umlauts, 200 letters"


# ---- by the system's calls, as the protocol uses them


def _system_calls(place: Place, n: int) -> Iterator[_Named]:
    folder = f"{place.folder}/system"
    if place.folder is None:
        return

    def new(i: int, kind: str) -> str:
        path = f"{folder}/{kind}-{i}"
        with open(path, "xb", buffering=0) as file:
            file.write(_RECORD)
        return path

    def create(i: int) -> None:
        path = new(i, "new")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            raise BrokenPromiseError(f"try {i}: the second O_EXCL succeeded", "choose another storage.root")

    def sync(i: int) -> None:
        fd = os.open(f"{folder}/sync-{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, _RECORD)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(i: int) -> None:
        path = new(i, "rename")
        rename_new(path, f"{path}-done", digest_of(_RECORD))
        if os.path.exists(path) or not os.path.exists(f"{path}-done"):
            raise BrokenPromiseError(f"try {i}: both names, or none", "choose another storage.root")

    def link(i: int) -> None:
        target = f"{folder}/linked-{i}"
        link_new(new(i, "link"), target)
        with suppress(AlreadyPublishedError):
            link_new(new(i, "link-again"), target)
            raise BrokenPromiseError(f"try {i}: a link replaced a taken name", "choose another storage.root")

    yield "exclusive create", lambda: (timed(create, n), "a taken name is refused")
    yield "write, fsync and close", lambda: (timed(sync, n), "returned without error")
    yield "fsync of a folder", lambda: (timed(lambda _: sync_folder(folder), n), "returned without error")
    yield "rename", lambda: (timed(rename, n), "the old name is gone")
    yield "hard link", lambda: (timed(link, n), "a taken name is refused")


# ---- by what the system says of the mount


def _conditions(place: Place) -> Iterator[_Named]:
    if place.folder is None:
        return
    yield "files belong to their writer", lambda: _keep_owner(f"{place.folder}/owner")
    if (mount := place.mount) is not None:
        yield "what is kept outlives a restart", lambda: _outlive(mount)
        if mount.is_nfs:
            yield "a slow server is waited for", lambda: _wait(mount)


def _keep_owner(path: str) -> _Tried:
    with open(path, "xb"):
        owner, me = os.stat(path).st_uid, os.geteuid()
    if owner != me:
        squashed = "the server maps root to another user (root_squash), or all users (all_squash)"
        mapped = "user ids or NFSv4 names are mapped: see idmap in docs/nfs.md"
        remedy = f"{squashed if me == 0 else mapped}; other users' processes may not be able to read or delete them"
        raise RiskyPromiseError(f"uid {owner} instead of {me}", remedy)
    return [], f"uid {me}"


def _outlive(mount: Mount) -> _Tried:
    if mount.kind in ("tmpfs", "ramfs"):
        raise RiskyPromiseError(f"{mount.kind}: kept in memory", "choose a folder on a disk or a server")
    if mount.kind in ("overlay", "aufs"):
        remedy = "mount a volume into the container, and choose a folder of it"
        raise RiskyPromiseError(f"{mount.kind}: ends with its container", remedy)
    server = "; on the server, check for sync in `exportfs -v`" if mount.is_nfs else ""
    return [], f"{mount.kind}, by fsync; only a power cut proves it{server}"


def _wait(mount: Mount) -> _Tried:
    if mount.has("soft", "softerr"):
        remedy = "mount with hard: a soft mount gives up after a while, and the trial that was writing is lost"
        raise RiskyPromiseError("mounted soft", remedy)
    return [], "mounted hard"
