"""Files: one root folder, local, on NFS or in an object store, in which what is published is whole or absent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nas.core.reference import Reference
from nas.storage.verified import Buffer, OnBlock, Span, ignore_block

__all__ = [
    "BlobInfo",
    "BlobStore",
]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A file that lies under a root, finished or not.

    Attributes:
        path: Relative to the root.
        bytes: Size.
        modified: UTC seconds since 1970 by the storage's own clock, or None where it does not tell.
    """

    path: str
    bytes: int
    modified: float | None


class BlobStore(ABC):
    """One root folder; every path is relative to it and '/'-separated.

    A published file never changes, so its reference (name, size, digest) is all that anybody needs to read it. Every
    method raises StorageError in one line where the storage refuses.
    """

    url: str
    """The root for a person's eyes, without passwords."""
    retry_s: float
    """How long caches are lasted out that do not show a file yet, and servers that do not answer."""
    batch_bytes: int = 16 << 20
    """How much is best read at once by who has little memory."""
    in_process: bool = False
    """Whether only this process sees the files (``memory://``)."""

    @abstractmethod
    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """Writes a file that is durable and whole before anybody can see it, and never changes again.

        Args:
            path: With a nonce, so that it is never used again; or a name that only the first writer gets.
            chunks: The contents, contiguous; none may change before the call ends. An exception from here publishes
                nothing.
            exclusive: Refuse a name that is taken.

        Raises:
            AlreadyPublishedError: exclusive, and another file has the name; the first one stands.
        """

    @abstractmethod
    def read(self, reference: Reference) -> bytes:
        """Returns the contents, of exactly the size and digest promised.

        Raises:
            MissingError: not there within ``retry_s``.
            CorruptError: still other contents after ``retry_s``.
        """

    @abstractmethod
    def read_spans(self, reference: Reference, spans: Sequence[Span]) -> None:
        """Reads parts of a file into the caller's memory, each verified by its own digest; near ones in one go.

        What the memory holds counts only when this method returns. The rest of the file is not looked at.

        Raises:
            MissingError, CorruptError: as for ``read``; also where parts overlap, or leave the file.
        """

    @abstractmethod
    def check_size(self, reference: Reference) -> None:
        """Makes sure that the file is there and has the promised size, which allows to make room for parts of it.

        Raises:
            MissingError, CorruptError: as for ``read``.
        """

    @abstractmethod
    def check_contents(self, reference: Reference, on_block: Callable[[], OnBlock] = ignore_block) -> None:
        """Reads the whole file in little memory, to compare size and digest.

        Args:
            reference: What to read.
            witness: Called for each attempt, after the size was found right; what it gives is shown all blocks in
                order, also those of contents that turn out to be wrong.

        Raises:
            MissingError, CorruptError: as for ``read``.
        """

    @abstractmethod
    def read_if_present(self, path: str) -> bytes | None:
        """Returns the contents of a small record as of now, or None.

        Raises:
            CorruptError: it is larger than ``MAX_RECORD_BYTES``, or no file; before memory is taken for it.
        """

    @abstractmethod
    def read_all(self, folder: str, suffix: str) -> dict[str, bytes]:
        """Returns the contents by name of a folder's files with that suffix; one that vanishes meanwhile is left out.

        Raises:
            CorruptError: as for ``read_if_present``.
        """

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Returns the names in a folder as of now, sorted, without unfinished files; none where there is no folder."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file as a whole: for the one name that is ever replaced, the heartbeat."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Overwrites a file, neither durably nor at once: for logs only, from which nothing is ever concluded.

        A link under that name is not followed: it may lead out of the root.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes a file, also an unfinished one; one that is not there is fine."""

    def delete_all(self, paths: Iterable[str]) -> None:
        """Deletes many files, in any order; where one can't be, others may be gone and others left."""
        for path in paths:
            self.delete(path)

    @abstractmethod
    def walk(self) -> list[BlobInfo]:
        """Returns every file below the root as of now, unfinished ones too, sorted by path; no link is followed."""

    def check_reachable(self) -> None:
        """Makes sure that a server answers, with a patience of seconds: what a command does first.

        A folder is looked into when it is needed: for a share whose server is away the system itself waits.

        Raises:
            ConfigurationError: another root or other credentials are needed.
            StorageError: nobody answers.
        """
        return

    @abstractmethod
    def check_writable(self) -> None:
        """Creates the root where it is missing, and proves that records can be published, read and deleted.

        Raises:
            ConfigurationError: another root is needed (no permission, read-only, no hard links).
            StorageError: the storage fails (full disk, lost server).
        """

    @abstractmethod
    def below(self, folder: str) -> BlobStore:
        """Returns the same storage with a folder of this root as the root."""

    @abstractmethod
    def sibling(self, name: str) -> BlobStore:
        """Returns the same storage with the folder of that name beside this root as the root: another search."""

    @abstractmethod
    def siblings(self) -> list[str]:
        """Returns the names beside this root as of now, sorted; what ``sibling`` takes."""

    @abstractmethod
    def local_path(self, path: str) -> str | None:
        """Where a person finds the file on this machine, or None."""
