"""The calls by which a local or network file system keeps its promises, and by which its lies are seen through."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import chain, repeat
from typing import TypeVar

from blake3 import blake3

from nas.errors import AlreadyPublishedError, HeirloomError, StoreError
from nas.store.files import Buffer
from nas.store.reference import Found, digest_of, is_stale, waits

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""How file systems refuse hard links."""

_BLOCK = 1 << 20
"""Bytes that are hashed, and then written while they are still in the processor's cache."""

T = TypeVar("T")


def write_chunks(fd: int, chunks: Iterable[Buffer], target: str) -> tuple[int, str]:
    """Writes the chunks; their total size and digest."""
    hasher, size = blake3(), 0
    for chunk in chunks:
        view = memoryview(chunk)
        if not view.nbytes:  # which memoryview.cast refuses
            continue
        view = view.cast("B")
        size += view.nbytes
        for start in range(0, view.nbytes, _BLOCK):
            block = view[start : start + _BLOCK]
            hasher.update(block)
            with refused("write", target):
                while block:
                    block = block[os.write(fd, block) :]
    return size, f"blake3:{hasher.hexdigest()}"


def link_new(temporary: str, target: str) -> None:
    """Gives the file its name unless that is taken; of several who try, on any machine, one succeeds."""
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        look(os.path.dirname(target))
        # a request that NFS repeated, because the first reply was lost, finds its own work
        if not os.path.samestat(os.stat(temporary), os.stat(target)):
            raise AlreadyPublishedError(f"{target} is published already") from error
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        reason = f"its file system refuses hard links ({error.strerror})"
        raise StoreError(f"can't publish {target}: {reason}; choose another storage.root") from error
    with suppress(OSError):
        os.unlink(temporary)


def rename_new(temporary: str, target: str, digest: str) -> None:
    """Gives the file its name; "no such file" is success where NFS lost the reply to a rename that happened."""
    try:
        os.rename(temporary, target)
    except FileNotFoundError:
        if ask_again(target, lambda: find(target)).digest != digest:
            raise


def sync_folder(folder: str) -> None:
    """Makes names that were added to the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system on which folders need no fsync
            raise
    finally:
        os.close(fd)


def content(target: str) -> bytes:
    """The contents of a file."""
    with open(target, "rb", buffering=0) as file:
        return file.readall()


def find(target: str, *, around_cache: bool = False) -> Found[bytes]:
    """The contents of a file with their digest; from the disk or the server where the cached ones were wrong."""
    with open(target, "rb", buffering=0) as file:
        if around_cache:
            _forget(file)
        data = file.readall()
    return Found(len(data), digest_of(data), data)


def fill(target: str, size: int, buffers: Callable[[], Iterable[memoryview]], *, around_cache: bool) -> Found[None]:
    """Reads a file of this size into the buffers, hashing on the way; of one of another size only the hash is made."""
    hasher, total = blake3(), 0
    with open(target, "rb", buffering=0) as file:
        if around_cache:
            _forget(file)
        views = buffers() if os.fstat(file.fileno()).st_size == size else ()
        for view in chain(views, repeat(memoryview(bytearray(_BLOCK)))):
            for begin in range(0, view.nbytes, _BLOCK):
                block = view[begin : begin + _BLOCK]
                while block:
                    n = file.readinto(block)
                    if not n:
                        return Found(total, f"blake3:{hasher.hexdigest()}", None)
                    hasher.update(block[:n])
                    total, block = total + n, block[n:]
    raise AssertionError("repeat() ends only with the file")


def ask_again(target: str, attempt: Callable[[], T]) -> T:
    """What the attempt gives; a client that believes that there is no such file is made to ask the server."""
    for remedy in (look, _list):
        try:
            return attempt()
        except FileNotFoundError:
            if not remedy(os.path.dirname(target)):
                raise
    return attempt()


def _forget(file: FileIO) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def look(folder: str) -> bool:
    """Whether the folder exists now; opening it makes an NFS client forget which names it did not have."""
    parent = os.path.dirname(folder)
    return _opens(folder) or (
        parent != folder and look(parent) and (_opens(folder) or (_list(parent) and _opens(folder)))
    )


def _list(folder: str) -> bool:
    """Lists the folder (if that is allowed), for clients that opening it did not convince.

    Over NFSv3 a folder that changed twice within one tick of the server's clock (1 to 10 ms) seems unchanged.
    """
    with suppress(FileNotFoundError, PermissionError):
        os.listdir(folder)
    return True


def _opens(folder: str) -> bool:
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True


def despite_stale_handles(attempt: Callable[[], T], patience_s: float) -> T:
    """What the attempt gives, made again while an NFS server has lost the file behind a name (ESTALE)."""
    last: OSError | None = None
    for wait_s in waits(patience_s):
        if wait_s:  # sleep(0) would give the processor away
            time.sleep(wait_s)
        try:
            return attempt()
        except OSError as error:
            if not is_stale(error):
                raise
            last = error
    assert last is not None  # waits() gives at least one attempt
    raise last


@contextmanager
def refused(doing: str, path: str) -> Iterator[None]:
    """Turns an error of the operating system into one clear line."""
    try:
        yield
    except HeirloomError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full ({reason})"
        raise StoreError(f"can't {doing} {path}: {reason}") from error
