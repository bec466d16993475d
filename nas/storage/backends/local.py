"""Blob store in a folder of this machine or on NFS, without locks.

Publishing writes a temporary file in the target folder, fsyncs it, gives it its name and fsyncs the folder. The name is
given by a rename, or by a link if it must be new. Before a file counts as missing, its folder is opened, because NFS
clients cache "no such file" for 30 s.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from typing import final

from nas.core.errors import ConfigurationError, StorageError
from nas.core.reference import TEMPORARY, Reference, checked_path
from nas.storage.blobs import BlobInfo, BlobStore
from nas.storage.file_blocks import blocks_of, drop_page_cache, fill_ranges
from nas.storage.nfs_caches import refresh_folder, retry_missing, retry_stale
from nas.storage.os_errors import DISK_FULL, NO_LINKS, storage_errors
from nas.storage.posix import link_new, rename_new, sync_folder, write_durably
from nas.storage.regular_files import open_regular, overwrite, read_record
from nas.storage.verified import Buffer, ByteRange, WrongSizeError

_OTHER_ROOT = NO_LINKS | {
    errno.EACCES,
    errno.EROFS,
    errno.ENOENT,  # /proc
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
"""Errors that end only if the user chooses another root."""
_NFS_DELETED = ".nfs"
"""Prefix of files that are deleted but still open, as an NFS client names them."""
_HIDDEN = (TEMPORARY, _NFS_DELETED)


@final
class LocalBlobStore(BlobStore):
    """The files under one folder.

    Args:
        root: An absolute path.
        retry_s: Seconds to retry while a file is not visible.
    """

    def __init__(self, root: str, *, retry_s: float) -> None:
        self.url = root
        self.folder = root
        self.retry_s = retry_s
        self._durable_folders: set[str] = set()
        self._new_folders: list[str] = []

    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """Writes a temporary file, fsyncs, renames or links it, and fsyncs the folder.

        A failed fsync is never repeated on the same file: publish again.
        """
        target = self._target(path)
        with self._temporary_file(target, chunks) as (temporary, size, digest), storage_errors("publish", target):
            if exclusive:
                link_new(temporary, target)
            else:
                rename_new(temporary, target, digest)
            sync_folder(os.path.dirname(target))
        return Reference(path, size, digest)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Writes and renames a temporary file, or overwrites in place if not durable."""
        target = self._target(path)
        if durable:
            with self._temporary_file(target, [data]) as (temporary, _, digest), storage_errors("replace", target):
                rename_new(temporary, target, digest)
        else:
            with storage_errors("write", target):
                self._make_folder(os.path.dirname(target))
                overwrite(target, data)

    @contextmanager
    def open(self, reference: Reference) -> Iterator[Iterator[memoryview]]:
        """Opens the file and drops its page cache."""
        with self._open(reference.path) as file:
            drop_page_cache(file)
            _check_size(file, reference)
            yield blocks_of(file)

    def fill(self, reference: Reference, ranges: Sequence[ByteRange], *, bypass_cache: bool) -> None:
        """Reads straight into the memory of the ranges."""
        with self._open(reference.path) as file:
            if bypass_cache:
                drop_page_cache(file)
            _check_size(file, reference)
            fill_ranges(file, reference, ranges)

    def size(self, path: str) -> int:
        """Returns the size of the opened file: stat() alone may be answered from an NFS cache."""
        with self._open(path) as file:
            return os.fstat(file.fileno()).st_size

    def read_records(self, paths: Sequence[str], *, just_listed: bool = False) -> list[bytes | None]:
        """Reads file by file; opens the folder of each first, unless it was just listed."""
        if not paths:
            return []
        targets = [f"{self.url}/{path}" for path in paths]

        def attempt() -> list[bytes | None]:
            return [_read_if_present(target, just_listed) for target in targets]

        with storage_errors("read", targets[0] if len(targets) == 1 else os.path.dirname(targets[0])):
            return retry_stale(attempt, self.retry_s)

    def names(self, folder: str = "") -> list[str]:
        """Lists a folder after opening it, which makes an NFS client ask the server."""
        path = self._target(folder) if folder else self.url

        def attempt() -> list[str]:
            with suppress(FileNotFoundError):
                return os.listdir(path) if refresh_folder(path) else []
            return []

        with storage_errors("list", path):
            found = retry_stale(attempt, self.retry_s)
        return sorted(name for name in found if not name.startswith(_HIDDEN))

    def walk(self) -> list[BlobInfo]:
        """Lists folder by folder, opening each first."""
        with storage_errors("list", self.url):
            return retry_stale(lambda: sorted(_walk(self.url), key=lambda info: info.path), self.retry_s)

    def delete_all(self, paths: Iterable[str]) -> None:
        """Unlinks each file, then the folders of a checkpoint that are empty."""
        for path in paths:
            self._delete(path)

    def check_writable(self) -> None:
        """Publishes, reads and deletes one small file in the way of records."""
        try:
            reference = self.publish(f"check-{secrets.token_hex(8)}", [b"heirloom"], exclusive=True)
            self.read(reference)
            self.delete(reference.path)
        except StorageError as error:
            for folder in reversed(self._new_folders):  # leave nothing in a root that can't be used
                with suppress(OSError):
                    os.rmdir(folder)
            cause = error.__cause__
            needs_other_root = isinstance(cause, OSError) and cause.errno in _OTHER_ROOT
            kind = ConfigurationError if needs_other_root else StorageError
            is_full = isinstance(cause, OSError) and cause.errno in DISK_FULL
            remedy = "Free space in it" if is_full else "Make it writable"
            raise kind(
                f"storage root {self.url} can't be used: {error}. {remedy}, or set another storage.root"
            ) from error

    def subfolder(self, folder: str) -> LocalBlobStore:
        """Returns the files under a folder of this one."""
        return LocalBlobStore(self._target(folder), retry_s=self.retry_s)

    def parent(self) -> LocalBlobStore:
        """Returns the files under the folder above."""
        return LocalBlobStore(os.path.dirname(self.url), retry_s=self.retry_s)

    def _target(self, path: str) -> str:
        return os.path.join(self.url, checked_path(path))

    def _open(self, path: str) -> FileIO:
        target = self._target(path)
        return retry_missing(target, lambda: open_regular(target))

    def _delete(self, path: str) -> None:
        target = os.path.join(self.url, checked_path(path, unfinished=True))
        with storage_errors("delete", target), suppress(FileNotFoundError):
            try:
                os.unlink(target)
            except FileNotFoundError:  # perhaps from a cache
                if refresh_folder(os.path.dirname(target)):
                    os.unlink(target)
        folder = os.path.dirname(path)
        with suppress(OSError):  # not empty, or deleted already
            while "/" in folder:  # files/<stem>/, but never files/ itself
                os.rmdir(os.path.join(self.url, folder))
                folder = os.path.dirname(folder)

    def _make_folder(self, folder: str) -> None:
        """Creates a folder durably: its parent is fsynced once, even if another process has created it."""
        if folder in self._durable_folders:
            return
        if folder.startswith(f"{self.url}/") or not os.path.isdir(folder):
            parent = os.path.dirname(folder)
            self._make_folder(parent)
            try:
                os.mkdir(folder)
                self._new_folders.append(folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder") from None
            sync_folder(parent)
        self._durable_folders.add(folder)

    def _create(self, folder: str) -> tuple[str, int]:
        temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._make_folder(folder)
            return temporary, os.open(temporary, flags, 0o666)
        except FileNotFoundError:  # the folder was deleted meanwhile, perhaps on another machine
            refresh_folder(folder)
            self._durable_folders.clear()
            self._make_folder(folder)
            return temporary, os.open(temporary, flags, 0o666)

    @contextmanager
    def _temporary_file(self, target: str, chunks: Iterable[Buffer]) -> Iterator[tuple[str, int, str]]:
        """Yields name, size and digest of a durable temporary file beside the target.

        The file is deleted if the block fails.
        """
        with storage_errors("write", target):
            temporary, fd = self._create(os.path.dirname(target))
        try:
            try:
                size, digest = write_durably(fd, chunks, target)
            finally:
                with storage_errors("write", target):
                    os.close(fd)
            yield temporary, size, digest
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _read_if_present(target: str, just_listed: bool) -> bytes | None:
    with suppress(FileNotFoundError):
        if just_listed or refresh_folder(os.path.dirname(target)):
            return read_record(target)
    return None


def _check_size(file: FileIO, reference: Reference) -> None:
    if (size := os.fstat(file.fileno()).st_size) != reference.bytes:
        raise WrongSizeError(size)


def _walk(root: str) -> Iterator[BlobInfo]:
    """Yields the files below a folder; those deleted meanwhile are omitted."""
    folders = [root]
    while folders:
        folder = folders.pop()
        if not refresh_folder(folder):
            continue
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.name.startswith(_NFS_DELETED):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        yield BlobInfo(os.path.relpath(entry.path, root), found.st_size, found.st_mtime)
