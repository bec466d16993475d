"""A root in a folder of this machine or of NFS: nothing torn, nothing lost, no locks.

Publishing: a temporary file in the target folder, fsync, rename (or link, where the name must be new), fsync of the
folder. Looking: opening a file's folder first, which alone ends NFS's 30 s of stale "no such file".
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar, final

from nas.core.errors import ConfigurationError, StorageError
from nas.core.reference import TEMPORARY, Reference, checked_path
from nas.storage.blobs import BlobInfo, BlobStore
from nas.storage.mounts import mount_of
from nas.storage.posix import (
    NO_LINKS,
    ask_again,
    check_contents,
    check_size,
    despite_stale_handles,
    link_new,
    look,
    promised_content,
    read_spans,
    refused,
    rename_new,
    sync_folder,
    write_durably,
)
from nas.storage.regular_files import content, overwrite
from nas.storage.verified import Buffer, OnBlock, Span, checked_spans, ignore_block, read_verified

_OTHER_ROOT = NO_LINKS | {errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
"""Refusals that end only when the user chooses another root."""
_HIDDEN = (TEMPORARY, ".nfs")
"""Unfinished files, and those that an NFS client keeps because somebody still has them open."""

T = TypeVar("T")


@final
class LocalBlobStore(BlobStore):
    """The files under one folder; what each method promises stands at ``BlobStore``."""

    def __init__(self, root: str, *, retry_s: float) -> None:
        self.url = root
        self.retry_s = retry_s
        self._made: set[str] = set()
        self._new: list[str] = []

    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """Temporary file, fsync, rename or link, fsync of the folder. A failed fsync is final: publish afresh."""
        target = self.local_path(path)
        with self._unpublished(target, chunks) as (temporary, size, digest), refused("publish", target):
            if exclusive:
                link_new(temporary, target)
            else:
                rename_new(temporary, target, digest)
            sync_folder(os.path.dirname(target))
        return Reference(path, size, digest)

    def read(self, reference: Reference) -> bytes:
        """Looks anew where the name is missing, opens anew where the handle is stale, reads anew what is wrong."""
        return self._read(reference, promised_content)

    def read_spans(self, reference: Reference, spans: Sequence[Span]) -> None:
        """As ``read``, without memory of its own."""
        self._read(reference, read_spans, checked_spans(reference, spans))

    def check_size(self, reference: Reference) -> None:
        """Opens the file, as ``read`` does."""
        self._read(reference, check_size)

    def check_contents(self, reference: Reference, on_block: Callable[[], OnBlock] = ignore_block) -> None:
        """From the disk or the server, block by block."""
        self._read(reference, check_contents, on_block)

    def read_if_present(self, path: str) -> bytes | None:
        """Opens the folder first, so that the answer is the server's and not a cache's."""
        target = self.local_path(path)

        def attempt() -> bytes | None:
            with suppress(FileNotFoundError):
                return content(target) if look(os.path.dirname(target)) else None
            return None

        with refused("read", target):
            return despite_stale_handles(attempt, self.retry_s)

    def read_all(self, folder: str, suffix: str) -> dict[str, bytes]:
        """Opens the folder once, then each file."""
        place = self._folder(folder)

        def attempt() -> dict[str, bytes]:
            found = {}
            for name in os.listdir(place) if look(place) else ():
                if name.endswith(suffix) and not name.startswith(_HIDDEN):
                    with suppress(FileNotFoundError):
                        found[name] = content(f"{place}/{name}")
            return found

        with refused("read", place):
            return despite_stale_handles(attempt, self.retry_s)

    def names(self, folder: str = "") -> list[str]:
        """Returns a listing of now: opening the folder makes an NFS client ask."""
        place = self._folder(folder)

        def attempt() -> list[str]:
            with suppress(FileNotFoundError):
                return os.listdir(place) if look(place) else []
            return []

        with refused("list", place):
            found = despite_stale_handles(attempt, self.retry_s)
        return sorted(name for name in found if not name.startswith(_HIDDEN))

    def replace(self, path: str, data: bytes) -> None:
        """Temporary file, fsync, rename."""
        target = self.local_path(path)
        with self._unpublished(target, [data]) as (temporary, _, digest), refused("replace", target):
            rename_new(temporary, target, digest)

    def put(self, path: str, data: bytes) -> None:
        """Overwrites in place; a reader may see a part, and a crash may leave one."""
        target = self.local_path(path)
        with refused("write", target):
            self._make(os.path.dirname(target))
            overwrite(target, data)

    def delete(self, path: str) -> None:
        """Unlinks, also a name that this client believes to be missing; then a checkpoint's folder that is empty."""
        target = os.path.join(self.url, checked_path(path, unfinished=True))
        with refused("delete", target), suppress(FileNotFoundError):
            try:
                os.unlink(target)
            except FileNotFoundError:
                if look(os.path.dirname(target)):
                    os.unlink(target)
        folder = os.path.dirname(path)
        with suppress(OSError):  # not empty, or gone
            while "/" in folder:  # files/<stem>/, but never files/ itself
                os.rmdir(os.path.join(self.url, folder))
                folder = os.path.dirname(folder)

    def walk(self) -> list[BlobInfo]:
        """Lists folder by folder, opening each first."""
        with refused("list", self.url):
            return despite_stale_handles(lambda: sorted(_below(self.url), key=lambda s: s.path), self.retry_s)

    def check_writable(self) -> None:
        """Publishes, reads and deletes one small file, as every record is published."""
        try:
            reference = self.publish(f"check-{secrets.token_hex(8)}", [b"heirloom"], exclusive=True)
            self.read(reference)
            self.delete(reference.path)
        except StorageError as error:
            for folder in reversed(self._new):  # nothing is left behind where nothing can be begun
                with suppress(OSError):
                    os.rmdir(folder)
            cause = error.__cause__
            other = isinstance(cause, OSError) and cause.errno in _OTHER_ROOT
            kind = ConfigurationError if other else StorageError
            raise kind(f"storage root {self.url} can't be used: {error}") from error

    def below(self, folder: str) -> LocalBlobStore:
        """Returns the files under a folder of this one."""
        return LocalBlobStore(self.local_path(folder), retry_s=self.retry_s)

    def sibling(self, name: str) -> LocalBlobStore:
        """Returns the files under the folder of that name beside this one."""
        return LocalBlobStore(os.path.dirname(self.url), retry_s=self.retry_s).below(name)

    def siblings(self) -> list[str]:
        """Returns the names in the folder above, without this one's."""
        folder, own = os.path.split(self.url)
        return [name for name in LocalBlobStore(folder, retry_s=self.retry_s).names() if name != own]

    def local_path(self, path: str) -> str:
        """Returns the absolute path."""
        return os.path.join(self.url, checked_path(path))

    def _read(self, reference: Reference, attempt: Callable[..., T], *details: object) -> T:
        target = self.local_path(reference.path)
        with refused("read", target):
            return read_verified(
                reference,
                lambda around_cache: ask_again(
                    target, lambda: attempt(target, reference, *details, around_cache=around_cache)
                ),
                lambda: f"{target} ({mount_of(target)})",
                self.retry_s,
            )

    def _folder(self, folder: str) -> str:
        return self.local_path(folder) if folder else self.url

    def _make(self, folder: str) -> None:
        """Creates a folder, durably: also one that another process has just made is synced in its parent, once."""
        if folder in self._made:
            return
        if folder.startswith(f"{self.url}/") or not os.path.isdir(folder):
            parent = os.path.dirname(folder)
            self._make(parent)
            try:
                os.mkdir(folder)
                self._new.append(folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder") from None
            sync_folder(parent)
        self._made.add(folder)

    def _create(self, folder: str) -> tuple[str, int]:
        temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._make(folder)
            return temporary, os.open(temporary, flags, 0o666)
        except FileNotFoundError:  # somebody deleted the folder since, perhaps on another machine, unseen by this one
            look(folder)
            self._made.clear()
            self._make(folder)
            return temporary, os.open(temporary, flags, 0o666)

    @contextmanager
    def _unpublished(self, target: str, chunks: Iterable[Buffer]) -> Iterator[tuple[str, int, str]]:
        """A durable temporary file beside the target (name, size, digest), removed where the body fails."""
        with refused("write", target):
            temporary, fd = self._create(os.path.dirname(target))
        try:
            try:
                size, digest = write_durably(fd, chunks, target)
            finally:
                with refused("write", target):
                    os.close(fd)
            yield temporary, size, digest
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _below(root: str) -> Iterator[BlobInfo]:
    """Yields the files below a folder; what vanishes meanwhile is left out."""
    folders = [root]
    while folders:
        folder = folders.pop()
        if not look(folder):
            continue
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.name.startswith(".nfs"):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        yield BlobInfo(os.path.relpath(entry.path, root), found.st_size, found.st_mtime)
