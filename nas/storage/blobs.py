"""Contract of blob stores: a root on a disk, NFS or an object store.

A published file is whole or absent. A storage publishes, replaces, opens, fills ranges, tells sizes, lists and deletes.
All other methods are written once, here. These abstract methods can't be built on the seven without more requests:

* ``walk``: all files with sizes and times. An object store lists 1,000 of them in one request.
* ``read_records``: small files of unknown sizes. An object store gets many at once, in one request each.
* ``subfolder`` and ``parent``: the same storage, and the same connection, with another root.
* ``check_writable``: only the storage knows which errors mean that another root is needed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from nas.core.reference import Reference, checked_path
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.mounts import mount_of
from nas.storage.os_errors import storage_errors
from nas.storage.verified import (
    Buffer,
    ByteRange,
    OnBlock,
    WrongContentsError,
    WrongSizeError,
    digest_of_blocks,
    ignore_block,
    retry_read,
    sorted_ranges,
)


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A file under a root, finished or not.

    Attributes:
        path: Relative to the root.
        bytes: Size.
        modified: UTC seconds since 1970 by the storage's own clock; None if unknown.
    """

    path: str
    bytes: int
    modified: float | None


class BlobStore(ABC):
    """The files under one root folder.

    Paths are relative to the root. A published file never changes, so its reference (name, size,
    digest) is enough to read it. All methods but ``open``, ``fill`` and ``size`` raise StorageError, with a message of
    one line, if the storage refuses.
    """

    url: str
    """The root for messages, without passwords."""
    retry_s: float
    """Seconds to retry while a file is not visible or a server does not respond."""
    batch_bytes: int = 16 << 20
    """Bytes to read at once if memory is short."""
    in_process: bool = False
    """Whether only this process sees the files (``memory://``)."""
    folder: str | None = None
    """The root as a folder of this machine; None for a remote storage."""

    @property
    def name(self) -> str:
        """The name of the root folder: of a search, if it holds one."""
        return self.url.rstrip("/").rpartition("/")[2]

    @abstractmethod
    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """Writes a file, which appears under its name only when it is whole and durable.

        It never changes again.

        Args:
            path: With a nonce, so that it is never used again; or a name that only the first writer gets.
            chunks: The contents. Each chunk is contiguous and must not change before the call ends. If the iterable
                raises, nothing is published.
            exclusive: Refuse a name that is taken.

        Raises:
            AlreadyPublishedError: ``exclusive``, and another file has the name. That file is kept.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Writes a file, or replaces it as a whole.

        Args:
            path: The heartbeat's name, which is the only one that is ever replaced; or that of a log.
            data: The contents.
            durable: False for logs: the file may be overwritten in place. A reader may see a part, and a crash may lose
                it. A symbolic link of that name is refused.
        """

    @abstractmethod
    def open(self, reference: Reference) -> AbstractContextManager[Iterator[memoryview]]:
        """Opens a file to stream its contents block by block, not from a cache.

        The digest is not compared. A block is valid until the next one is read.

        Raises:
            FileNotFoundError: it is missing.
            WrongSizeError: it has another size than the reference says.
            OSError: ESTALE, if a server no longer knows the file; another OSError or StorageError if the read fails.
        """

    @abstractmethod
    def fill(self, reference: Reference, ranges: Sequence[ByteRange], *, bypass_cache: bool) -> None:
        """Reads ranges of a file, without retries, and compares their digests.

        Ranges close together are read in one go.

        Args:
            reference: The file.
            ranges: In the order of their offsets, without overlaps.
            bypass_cache: Read from the disk or the server, because cached contents were wrong.

        Raises:
            WrongContentsError: a range has another digest.
            FileNotFoundError, WrongSizeError, OSError: as ``open``.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Returns the size of a file in bytes.

        Raises:
            FileNotFoundError, OSError: as ``open``.
        """

    @abstractmethod
    def read_records(self, paths: Sequence[str], *, just_listed: bool = False) -> list[bytes | None]:
        """Returns the present contents of small files, in order; None for a missing one.

        Args:
            paths: From a listing, or checked.
            just_listed: The paths come from a listing, so that no cache needs to be refreshed again.

        Raises:
            CorruptError: one is larger than ``MAX_RECORD_BYTES``, or not a regular file; no memory is taken for it.
        """

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Returns the present names in a folder, sorted; none if there is no such folder.

        Unfinished files are omitted.
        """

    @abstractmethod
    def walk(self) -> list[BlobInfo]:
        """Returns all present files below the root by path, unfinished ones too.

        Symbolic links are not followed.
        """

    @abstractmethod
    def delete_all(self, paths: Iterable[str]) -> None:
        """Deletes files in any order, unfinished ones too; missing ones are ignored.

        If one can't be deleted, some of the others may be deleted.
        """

    @abstractmethod
    def check_writable(self) -> None:
        """Checks that records can be published, read and deleted; creates the root if necessary.

        Raises:
            ConfigurationError: another root is needed (no permission, read-only, no hard links).
            StorageError: the storage fails (full disk, lost server).
        """

    @abstractmethod
    def subfolder(self, folder: str) -> BlobStore:
        """Returns the same storage with a folder of this root as its root."""

    @abstractmethod
    def parent(self) -> BlobStore:
        """Returns the same storage with the folder above this root as its root."""

    def check_reachable(self) -> None:
        """Checks within seconds that a server responds; a command calls it first.

        Folders are not checked: for a share whose server is down, the system itself waits.

        Raises:
            ConfigurationError: another root or other credentials are needed.
            StorageError: the server does not respond.
        """
        return

    def read(self, reference: Reference) -> bytearray:
        """Returns the contents, which have exactly the size and digest of the reference.

        Raises:
            MissingError: the file is still missing after ``retry_s``.
            CorruptError: it still has other contents after ``retry_s``.
        """
        if reference.bytes > MAX_RECORD_BYTES:
            self.check_size(reference)  # before memory is taken for it
        memory = bytearray(reference.bytes)
        self.read_ranges(reference, [ByteRange(0, reference.digest, memoryview(memory))])
        return memory

    def read_ranges(self, reference: Reference, ranges: Sequence[ByteRange]) -> None:
        """Reads ranges of a file into the caller's memory and verifies each digest.

        The memory is valid only after this method returns. The rest of the file is not checked.

        Raises:
            MissingError, CorruptError: as ``read``; CorruptError also if ranges overlap or lie outside the file.
        """
        ordered = sorted_ranges(reference, ranges)
        self._retry(reference, lambda bypass_cache: self.fill(reference, ordered, bypass_cache=bypass_cache))

    def check_size(self, reference: Reference) -> None:
        """Checks that a file exists and has the expected size.

        Raises:
            MissingError, CorruptError: as ``read``.
        """

        def attempt(bypass_cache: bool) -> None:
            if (size := self.size(reference.path)) != reference.bytes:
                raise WrongSizeError(size)

        self._retry(reference, attempt)

    def check_contents(self, reference: Reference, on_attempt: Callable[[], OnBlock] = lambda: ignore_block) -> None:
        """Reads a whole file in little memory and compares its size and digest.

        Args:
            reference: The file.
            on_attempt: Called for each attempt, after the size was found right. The function that it returns gets all
                blocks in order, also those of wrong contents.

        Raises:
            MissingError, CorruptError: as ``read``.
        """

        def attempt(bypass_cache: bool) -> None:
            with self.open(reference) as blocks:
                digest = digest_of_blocks(blocks, on_attempt())
            if digest != reference.digest:
                raise WrongContentsError(f"{reference.bytes} bytes {digest}")

        self._retry(reference, attempt)

    def read_if_present(self, path: str) -> bytes | None:
        """Returns the present contents of a small record; None if it is missing.

        Raises:
            CorruptError: as ``read_records``.
        """
        return self.read_records([checked_path(path)])[0]

    def read_folder(self, folder: str, suffix: str) -> dict[str, bytes]:
        """Returns the contents of a folder's files with that suffix, by name.

        Files deleted meanwhile are omitted.

        Raises:
            CorruptError: as ``read_records``.
        """
        names = [name for name in self.names(folder) if name.endswith(suffix)]
        paths = [f"{folder}/{name}" if folder else name for name in names]
        contents = self.read_records(paths, just_listed=True)
        return {name: content for name, content in zip(names, contents, strict=True) if content is not None}

    def delete(self, path: str) -> None:
        """Deletes a file, also an unfinished one; a missing one is ignored."""
        self.delete_all([path])

    def sibling(self, name: str) -> BlobStore:
        """Returns the same storage with a folder beside this root as its root: another search."""
        return self.parent().subfolder(name)

    def sibling_names(self) -> list[str]:
        """Returns the names beside this root, sorted, for ``sibling``."""
        return [name for name in self.parent().names() if name != self.name]

    def local_path(self, path: str) -> str | None:
        """Returns the absolute path of a file on this machine; None for a remote storage."""
        checked = checked_path(path)
        return None if self.folder is None else os.path.join(self.folder, checked)

    def _retry(self, reference: Reference, attempt: Callable[[bool], object]) -> None:
        where = f"{self.url}/{reference.path}"

        def described(bypass_cache: bool) -> None:
            try:
                attempt(bypass_cache)
            except WrongSizeError as error:
                raise WrongContentsError(self._describe(reference, error.size)) from None

        def location() -> str:
            return where if self.folder is None else f"{where} ({mount_of(where)})"

        with storage_errors("read", where):
            retry_read(reference, described, location, self.retry_s)

    def _describe(self, reference: Reference, size: int) -> str:
        if size > MAX_RECORD_BYTES:
            return f"{size} bytes"  # a terabyte is not read for a message
        with self.open(replace(reference, bytes=size)) as blocks:
            return f"{size} bytes {digest_of_blocks(blocks)}"
