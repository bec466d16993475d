"""What Heirloom needs of a store of whole objects, in few operations; one module a kind implements it."""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from nas.core.errors import CorruptError
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.backends.chunks import Hashed, Run
from nas.storage.backends.retry import in_order
from nas.storage.blobs import BlobInfo

AnyDriver = TypeVar("AnyDriver", bound="ObjectBackend")

_MODULES = {
    "s3": "nas.storage.backends.s3",
    "s3a": "nas.storage.backends.s3",
    "sftp": "nas.storage.backends.sftp",
    "ssh": "nas.storage.backends.sftp",
}

SMALL_AT_ONCE = 32
"""How many small objects are on their way at once."""


class ObjectBackend(ABC):
    """A store of objects under full names, each of which appears whole or not at all.

    What can be repeated without harm is, for ``retry_s``, after errors that may pass (a lost connection, a server
    that is busy). Errors are Python's own where there is one: FileNotFoundError, FileExistsError, PermissionError.
    """

    retry_s: float
    in_process = False
    """Whether only this process sees the objects."""

    @abstractmethod
    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Stores an object under a name, where that is exclusive only if it is free; its errors leave nothing there.

        Raises:
            FileExistsError: exclusive, and the name is taken by another's object.
            FileNotFoundError: there is no such bucket.
        """

    @abstractmethod
    def get(self, target: str) -> bytes:
        """An object whose size is not known, and small.

        Raises:
            FileNotFoundError: there is none.
            CorruptError: it is larger than any record; before memory is taken for it, where the store tells in time.
        """

    def get_all(self, targets: Sequence[str]) -> list[bytes | None]:
        """Many small objects, several at once; None for one that is not there.

        Raises:
            CorruptError: as for ``get``.
        """

        def one(target: str) -> bytes | None:
            with suppress(FileNotFoundError):
                return self.get(target)
            return None

        return list(in_order((partial(one, target) for target in targets), SMALL_AT_ONCE))

    @abstractmethod
    def size(self, target: str) -> int:
        """The size of an object.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def fill(self, target: str, runs: Iterable[Run]) -> Generator[tuple[int, Run], None, None]:
        """Fills each run's memory, the next ones while one is looked at; gives them in order, with the object's size.

        What of a run lies beyond the object's end is not filled.

        Raises:
            FileNotFoundError: there is no such object.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The last parts of the names below a folder, as of now, and of the folders there.

        Raises:
            FileNotFoundError: there is no such folder, where folders exist by themselves.
        """

    @abstractmethod
    def walk(self, folder: str) -> list[BlobInfo]:
        """All objects below a folder as of now, and what crashed writers have left; paths begin after the folder.

        Raises:
            FileNotFoundError: there is no such folder, where folders exist by themselves.
        """

    @abstractmethod
    def delete(self, target: str) -> None:
        """Removes an object, or what a crashed writer has left, by the name that ``walk`` gives.

        Raises:
            FileNotFoundError: there is none, where the store tells.
        """

    def reach(self, folder: str) -> None:
        """Asks the store for anything, to learn whether it answers; the folder need not be there.

        Raises:
            FileNotFoundError: there is no such bucket, where the store tells.
        """
        with suppress(FileNotFoundError):
            self.size(folder)

    def prune(self, folder: str) -> bool:
        """Removes a folder that is empty, and says whether it did; for stores that have folders."""
        return False

    def within(self: AnyDriver, retry_s: float) -> AnyDriver:
        """The same store, with another patience."""
        other = copy.copy(self)
        other.retry_s = retry_s
        return other


def check_small(target: str, size: int) -> None:
    """Refuses to take memory for what is no record.

    Raises:
        CorruptError: it is larger than any record.
    """
    if size > MAX_RECORD_BYTES:
        raise CorruptError(f"{target} holds {size} bytes; a record has at most {MAX_RECORD_BYTES}")


def open_backend(url: str, options: Mapping[str, object], *, retry_s: float) -> tuple[ObjectBackend, str]:
    """The driver for a URL, and the full name of the URL's folder in it; nothing is asked of the store yet.

    Raises:
        ImportError: a package that the protocol needs is missing.
        TypeError, ValueError: the URL or the options can't be.
    """
    module = importlib.import_module(_MODULES.get(url.partition("://")[0], "nas.storage.backends.fsspec_url"))
    opened: tuple[ObjectBackend, str] = module.open_backend(url, options, retry_s=retry_s)
    return opened
