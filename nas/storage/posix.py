"""The calls by which a local or network file system keeps its promises, and by which its lies are seen through."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from typing import TypeVar, cast

from blake3 import blake3

from nas.core.errors import AlreadyPublishedError, HeirloomError, StorageError
from nas.core.reference import Reference
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.background import Background, share
from nas.storage.regular_files import opened
from nas.storage.verified import (
    Buffer,
    OnBlock,
    Span,
    WrongContentsError,
    digest_of,
    expect,
    expect_span,
    is_stale,
    waits,
)

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""How file systems refuse hard links."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""How a disk, or a quota on it, refuses what has no room."""

_BLOCK = 1 << 20
"""Bytes that one call reads, and that are hashed at a time."""
_WRITE = 4 << 20
"""Bytes that one call writes: file systems take large pieces faster."""
_GAP = 1 << 16
"""Unwanted bytes between two parts that cost less to read than another call."""
_VIEWS = 256
"""How many pieces of memory one call may fill; the system's own bound is 1,024."""

T = TypeVar("T")


def write_durably(fd: int, chunks: Iterable[Buffer], target: str) -> tuple[int, str]:
    """Writes the chunks to the disk; their total size and digest. They must not change meanwhile."""
    hasher, size = blake3(), 0
    with Background() as background:
        for views in _write_groups(chunks):
            begin, size = size, size + sum(view.nbytes for view in views)
            background.run(size - begin, _hash_all, hasher, views)
            with refused("write", target):
                _write(fd, views)
            if size - begin >= _WRITE:
                _begin_writing_back(fd, begin, size - begin)
        with refused("write", target):
            os.fsync(fd)
    return size, f"blake3:{hasher.hexdigest()}"


def _hash_all(hasher: blake3, views: list[memoryview]) -> None:
    for view in views:
        hasher.update(view)


def _write_groups(chunks: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """What one call writes: many small chunks, or some MB of large ones."""
    views: list[memoryview] = []
    n_bytes = 0
    for chunk in chunks:
        view = memoryview(chunk)
        if not view.nbytes:  # which memoryview.cast refuses
            continue
        view = view.cast("B")
        for start in range(0, view.nbytes, _BLOCK):
            views.append(view[start : start + _BLOCK])
            n_bytes += views[-1].nbytes
            if n_bytes >= _WRITE or len(views) == _VIEWS:
                yield views
                views, n_bytes = [], 0
    if views:
        yield views


def _write(fd: int, views: list[memoryview]) -> None:
    n = os.writev(fd, views)
    for view in views:
        if n < view.nbytes:  # the rest of what the system took in part
            rest = view[n:]
            while rest:
                rest = rest[os.write(fd, rest) :]
        n = max(0, n - view.nbytes)


def _begin_writing_back(fd: int, begin: int, n_bytes: int) -> None:
    """Lets the system send a part to the disk while the next ones are written; ``fsync`` makes sure of it, later.

    Where the system has no such call, or refuses it for this file, nothing is lost but time.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, begin, n_bytes, 2)  # SYNC_FILE_RANGE_WRITE


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's call, which Python's ``os`` lacks."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int]", found)


_sync_file_range = _find_sync_file_range()


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
        raise StorageError(f"can't publish {target}: {reason}; choose another storage.root") from error
    with suppress(OSError):
        os.unlink(temporary)


def rename_new(temporary: str, target: str, digest: str) -> None:
    """Gives the file its name; "no such file" is success where NFS lost the reply to a rename that happened."""
    try:
        os.rename(temporary, target)
    except FileNotFoundError:
        if ask_again(target, lambda: _digest_at(target)) != digest:
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


def promised_content(target: str, reference: Reference, *, around_cache: bool) -> bytes:
    """The contents, if they are those promised; from the disk or the server where the cached ones were wrong."""
    with _promised_size(target, reference, around_cache) as file:
        data = file.readall()
    expect(reference, data)
    return data


def check_size(target: str, reference: Reference, *, around_cache: bool) -> None:
    """Compares the size that the file has when it is opened, which makes an NFS client ask, with the promised one."""
    with _promised_size(target, reference, around_cache):
        pass


def check_contents(target: str, reference: Reference, on_block: Callable[[], OnBlock], *, around_cache: bool) -> None:
    """Reads what the disk or the server holds of a file, block by block, and compares the digest with the promised one.

    Never from the cache, whatever ``around_cache`` says: what memory remembers proves nothing.
    """
    with _promised_size(target, reference, True) as file:
        digest = _digest_of_file(file, on_block())
    if digest != reference.digest:
        raise WrongContentsError(f"{reference.bytes} bytes {digest}")


def read_spans(target: str, reference: Reference, spans: Sequence[Span], *, around_cache: bool) -> None:
    """Reads the parts, which are in order and do not overlap, into their memory, and compares each one's digest."""
    with _promised_size(target, reference, around_cache) as file:
        n_bytes = sum(span.memory.nbytes for span in spans)
        share(_groups(spans), n_bytes, lambda group: _fill(file, group, reference))


def _groups(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Parts that are read by one call, because they lie together and are small; a large one is alone."""
    group: list[Span] = []
    for span in spans:
        far = group and span.offset - group[-1].end > _GAP
        if far or (group and span.end - group[0].offset > _BLOCK) or len(group) == _VIEWS // 2:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _fill(file: FileIO, group: Sequence[Span], reference: Reference) -> None:
    """Reads a group and verifies it; a large part is verified while the rest of it is read."""
    if group[0].memory.nbytes > _BLOCK:
        [span] = group
        hasher = blake3()
        with Background() as background:
            for begin in range(0, span.memory.nbytes, _WRITE):
                block = span.memory[begin : begin + _WRITE]
                _read_at(file, [block], span.offset + begin)
                background.run(block.nbytes, hasher.update, block)
        expect_span(reference, span, f"blake3:{hasher.hexdigest()}")
        return
    views, end = [], group[0].offset
    for span in group:
        if span.offset > end:
            views.append(memoryview(bytearray(span.offset - end)))
        views.append(span.memory)
        end = span.end
    _read_at(file, views, group[0].offset)
    for span in group:
        expect_span(reference, span, digest_of(span.memory))


def _read_at(file: FileIO, views: Sequence[memoryview], offset: int) -> None:
    """Fills the views, one after the other, with what lies from the offset on."""
    wanted = [view for view in views if view.nbytes]
    while wanted:
        n = os.preadv(file.fileno(), wanted, offset)
        if not n:
            raise WrongContentsError(f"only {offset} bytes")
        offset += n
        while wanted and n >= wanted[0].nbytes:
            n -= wanted.pop(0).nbytes
        if wanted and n:
            wanted[0] = wanted[0][n:]


@contextmanager
def _promised_size(target: str, reference: Reference, around_cache: bool) -> Iterator[FileIO]:
    """The file, opened, if it has the promised size."""
    with opened(target) as file:
        if around_cache:
            _forget(file)
        if (size := os.fstat(file.fileno()).st_size) != reference.bytes:
            is_small = size <= MAX_RECORD_BYTES  # a terabyte is not read for a message
            raise WrongContentsError(f"{size} bytes {_digest_of_file(file)}" if is_small else f"{size} bytes")
        yield file


def _digest_at(target: str) -> str:
    with opened(target) as file:
        return _digest_of_file(file)


def _digest_of_file(file: FileIO, on_block: OnBlock = lambda block: None) -> str:
    hasher, block = blake3(), memoryview(bytearray(_BLOCK))
    while n := file.readinto(block):
        hasher.update(block[:n])
        on_block(block[:n])
    return f"blake3:{hasher.hexdigest()}"


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
    """Returns whether the folder exists now; opening it makes an NFS client forget which names it did not have."""
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


def despite_stale_handles(attempt: Callable[[], T], retry_s: float) -> T:
    """What the attempt gives, made again while an NFS server has lost the file behind a name (ESTALE)."""
    last: OSError | None = None
    for wait_s in waits(retry_s):
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
        if isinstance(error, IsADirectoryError) and isinstance(error.filename, str):
            path = error.filename  # one of those in a folder that is read
        if error.errno in DISK_FULL:
            reason = f"the disk is full ({reason})"
        raise StorageError(f"can't {doing} {path}: {reason}") from error
