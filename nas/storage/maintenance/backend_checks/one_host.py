"""Backend checks by one process: whether a storage root gives the guarantees that Heirloom needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

from nas.core.errors import AlreadyPublishedError
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.backend_checks.check import (
    BUDGET_S,
    N_TRIES,
    BackendCheck,
    CheckResult,
    CheckStatus,
    CheckWarningError,
    FailedCheckError,
    Location,
    check_heartbeat,
    heartbeat,
    timed,
)
from nas.storage.mounts import Mount
from nas.storage.posix import link_new, rename_new, sync_folder
from nas.storage.verified import digest_of

_Measured: TypeAlias = tuple[list[float], str]
"""Milliseconds of each try, and what was observed."""
_RECORD = b"{" + b" " * 298 + b"}"
_LARGE = 8 << 20
_NAMES = ("Modell ä (1).bin", "modell ä (1).bin", f"{'long' * 50}.bin")
_N_WRITERS = 8


def check_root(files: BlobStore, *, n: int = N_TRIES) -> Iterator[CheckResult]:
    """Yields the results of all checks.

    It ends early if the root can't be written or no longer responds.

    Args:
        files: A folder of the root that nothing else uses: see ``check_folder``.
        n: Maximum number of tries of each check.
    """
    location = Location.of(files)
    first = BackendCheck("files can be written", lambda: _write(files)).run(location)
    yield first
    if first.status == CheckStatus.FAILED:
        return
    for check in (*_system_checks(location, n), *_storage_checks(files, n), *_mount_checks(location)):
        result = check.run(location)
        yield result
        if result.is_unreachable:
            return
    if files.in_process:
        yield CheckResult(
            name="other processes see the files",
            status=CheckStatus.WARNING,
            observed="memory://: this process only",
            hint="for runner=processes, other machines, or to keep anything, choose a folder or an object store",
        )


def _storage_checks(files: BlobStore, n: int) -> Iterator[BackendCheck]:
    yield BackendCheck("records are published", lambda: _publish(files, n))
    yield BackendCheck("large files are published", lambda: _publish_large(files, n))
    yield BackendCheck("published files are read", lambda: _read(files, n))
    yield BackendCheck("new files are listed at once", lambda: _list(files, n))
    yield BackendCheck("one of many writers wins", lambda: _race(files, n))
    yield BackendCheck("replaced files are read whole", lambda: _replace(files, n))
    yield BackendCheck("deleted files are gone", lambda: _delete(files, n))
    yield BackendCheck("file names are preserved", lambda: _preserve_names(files))


def _write(files: BlobStore) -> _Measured:
    return timed(lambda _: files.publish("system/first", [_RECORD]), 1), ""


def _publish(files: BlobStore, n: int) -> _Measured:
    times = timed(lambda i: files.publish(f"small/{i}", [_RECORD], exclusive=True), n)
    return times, f"{len(_RECORD)} bytes, {_durability(files)}"


def _publish_large(files: BlobStore, n: int) -> _Measured:
    data = os.urandom(_LARGE)
    return _with_speed(timed(lambda i: files.publish(f"large/{i}", [data]), min(n, 5)), _durability(files))


def _durability(files: BlobStore) -> str:
    return "whole" if files.local_path("x") is None else "durable"  # an object store does not say when data is durable


def _read(files: BlobStore, n: int) -> _Measured:
    reference = files.publish("large/read", [os.urandom(_LARGE)])
    return _with_speed(timed(lambda _: files.check_contents(reference), min(n, 5)), "verified, not from a cache")


def _with_speed(times_ms: list[float], details: str) -> _Measured:
    return times_ms, f"{_LARGE:,} bytes, {details}, {_LARGE / 1e3 / min(times_ms):,.0f} MB/s"


def _list(files: BlobStore, n: int) -> _Measured:
    def publish_and_list(i: int) -> None:
        files.publish(f"small/listed-{i}", [_RECORD])
        if f"listed-{i}" not in files.names("small"):
            raise FailedCheckError(f"try {i}: not listed", "choose another storage.root: this one lists old contents")

    return timed(publish_and_list, min(n, 20)), ""


def _race(files: BlobStore, n: int) -> _Measured:
    """Publishes each name from several threads; all but one must get an error."""

    def publish(name: str, content: bytes) -> bool:
        try:
            files.publish(name, [content], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    def race(i: int) -> None:
        contents = [b"%d" % writer for writer in range(_N_WRITERS)]
        won = list(pool.map(lambda content: publish(f"race/{i}", content), contents))
        winners = [content for content, has_won in zip(contents, won, strict=True) if has_won]
        found = files.read_if_present(f"race/{i}")
        if [found] != winners:
            observed = f"try {i}: {len(winners)} of {_N_WRITERS} writers won, and the file holds {found!r}"
            hint = "choose another storage.root: two sessions could drive one search here"
            raise FailedCheckError(observed, hint)

    with ThreadPoolExecutor(_N_WRITERS) as pool:
        times = timed(race, min(n, 20))
    return times, f"{len(times)} names, {_N_WRITERS} writers each"


def _replace(files: BlobStore, n: int) -> _Measured:
    """Replaces a file in one thread while another reads it."""
    files.replace("beat", heartbeat(0))
    times_ms: list[float] = []
    n_reads = 0
    with ThreadPoolExecutor(1) as pool:
        while not times_ms or (len(times_ms) < 2 * n and sum(times_ms) < 1000 * BUDGET_S):
            data = heartbeat(len(times_ms))
            writing = pool.submit(timed, lambda n, data=data: files.replace("beat", data), 1)  # type: ignore[misc]
            while True:
                is_last = writing.done()
                check_heartbeat(files.read_if_present("beat"))
                n_reads += 1
                if is_last:
                    break
            times_ms += writing.result()
    return times_ms, f"{n_reads} whole reads meanwhile"


def _delete(files: BlobStore, n: int) -> _Measured:
    references = [files.publish(f"small/deleted-{i}", [_RECORD]) for i in range(min(n, 10))]

    def delete(i: int) -> None:
        files.delete(references[i].path)
        if files.read_if_present(references[i].path) is not None:
            hint = "choose another storage.root: garbage collection frees no space here"
            raise FailedCheckError(f"try {i}: still there", hint)

    return timed(delete, len(references)), ""


def _preserve_names(files: BlobStore) -> _Measured:
    """Publishes names that some file systems fold or change: problems may save files of any name."""
    for name in _NAMES:
        files.publish(f"names/{name}", [name.encode()])
    listed = files.names("names")
    if lost := [n for n in _NAMES if n not in listed or files.read_if_present(f"names/{n}") != n.encode()]:
        before, after = (", ".join(f"{name:.20}" for name in names) for names in (lost, listed))
        hint = "save no two files whose names differ only in case (run.save_dir), or choose another storage.root"
        raise CheckWarningError(f"{before} became {after}", hint)
    return [], "capitals, umlauts, 200 letters"


def _system_checks(location: Location, n: int) -> Iterator[BackendCheck]:
    if location.folder is None:
        return
    folder = f"{location.folder}/system"
    hint = "choose another storage.root"

    def new_file(i: int, kind: str) -> str:
        path = f"{folder}/{kind}-{i}"
        with open(path, "xb", buffering=0) as file:
            file.write(_RECORD)
        return path

    def create(i: int) -> None:
        path = new_file(i, "new")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            raise FailedCheckError(f"try {i}: the second O_EXCL succeeded", hint)

    def sync(i: int) -> None:
        fd = os.open(f"{folder}/sync-{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, _RECORD)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(i: int) -> None:
        path = new_file(i, "rename")
        rename_new(path, f"{path}-done", digest_of(_RECORD))
        if os.path.exists(path) or not os.path.exists(f"{path}-done"):
            raise FailedCheckError(f"try {i}: both names exist, or none", hint)

    def link(i: int) -> None:
        target = f"{folder}/linked-{i}"
        link_new(new_file(i, "link"), target)
        with suppress(AlreadyPublishedError):
            link_new(new_file(i, "link-again"), target)
            raise FailedCheckError(f"try {i}: a link replaced an existing file", hint)

    yield BackendCheck("exclusive create", lambda: (timed(create, n), "an existing name is refused"))
    yield BackendCheck("write, fsync and close", lambda: (timed(sync, n), "returned without error"))
    yield BackendCheck("fsync of a folder", lambda: (timed(lambda _: sync_folder(folder), n), "returned without error"))
    yield BackendCheck("rename", lambda: (timed(rename, n), "the old name is gone"))
    yield BackendCheck("hard link", lambda: (timed(link, n), "an existing name is refused"))


def _mount_checks(location: Location) -> Iterator[BackendCheck]:
    if location.folder is None:
        return
    yield BackendCheck("files belong to their writer", lambda: _keep_owner(f"{location.folder}/owner"))
    if (mount := location.mount) is not None:
        yield BackendCheck("files survive a restart", lambda: _survive_restart(mount))
        if mount.is_nfs:
            yield BackendCheck("writers wait for a slow server", lambda: _wait_for_server(mount))


def _keep_owner(path: str) -> _Measured:
    with open(path, "xb"):
        owner, me = os.stat(path).st_uid, os.geteuid()
    if owner != me:
        squashed = "the server maps root to another user (root_squash), or all users (all_squash)"
        mapped = "user ids or NFSv4 names are mapped: see idmap in docs/reference/nfs.md"
        hint = f"{squashed if me == 0 else mapped}; other users' processes may not be able to read or delete them"
        raise CheckWarningError(f"uid {owner} instead of {me}", hint)
    return [], f"uid {me}"


def _survive_restart(mount: Mount) -> _Measured:
    if mount.kind in ("tmpfs", "ramfs"):
        raise CheckWarningError(f"{mount.kind}: kept in memory", "choose a folder on a disk or a server")
    if mount.kind in ("overlay", "aufs"):
        hint = "mount a volume into the container, and choose a folder of it"
        raise CheckWarningError(f"{mount.kind}: deleted with its container", hint)
    server = "; on the server, check for sync in `exportfs -v`" if mount.is_nfs else ""
    return [], f"{mount.kind}, by fsync; a power failure was not tested{server}"


def _wait_for_server(mount: Mount) -> _Measured:
    if mount.has("soft", "softerr"):
        hint = "mount with hard: a soft mount fails after a timeout, and the trial that was writing is lost"
        raise CheckWarningError("mounted soft", hint)
    return [], "mounted hard"
