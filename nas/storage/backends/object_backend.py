"""Operations that Heirloom needs of a store of whole objects."""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from nas.core.errors import CorruptError
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.backends.chunks import Hashed, RangeRead
from nas.storage.backends.retry import in_order
from nas.storage.blobs import BlobInfo

_MODULES = {
    "s3": "nas.storage.backends.s3",
    "s3a": "nas.storage.backends.s3",
    "sftp": "nas.storage.backends.sftp",
    "ssh": "nas.storage.backends.sftp",
}

SMALL_AT_ONCE = 32
"""Requests for small objects to run at once."""


class ObjectBackend(ABC):
    """A store of objects under full names; an object appears whole or not at all.

    Requests that can be repeated safely are repeated for ``retry_s`` after temporary errors: a lost connection, a busy
    server. Errors are builtin ones if there is one: FileNotFoundError, FileExistsError, PermissionError.
    """

    retry_s: float
    in_process = False
    """Whether only this process sees the objects."""

    @abstractmethod
    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Stores an object; an error leaves nothing under the name.

        Raises:
            FileExistsError: ``exclusive``, and the name has the object of another writer.
            FileNotFoundError: there is no such bucket.
        """

    @abstractmethod
    def get(self, target: str) -> bytes:
        """Returns a small object of unknown size.

        Raises:
            FileNotFoundError: it is missing.
            CorruptError: it is larger than any record. If the store tells its size first, no memory is taken for it.
        """

    def get_all(self, targets: Sequence[str]) -> list[bytes | None]:
        """Returns many small objects, several at once; None for a missing one.

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
        """Returns the size of an object.

        Raises:
            FileNotFoundError: it is missing.
        """

    @abstractmethod
    def fill(self, target: str, reads: Iterable[RangeRead]) -> Generator[tuple[int, RangeRead], None, None]:
        """Fills ranges, several at once, and yields them in order with the object's size.

        Memory beyond the end of the object is left as it is.

        Raises:
            FileNotFoundError: the object is missing.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Returns the present names of the objects and folders in a folder.

        Raises:
            FileNotFoundError: the folder is missing, in a store that has folders.
        """

    @abstractmethod
    def walk(self, folder: str) -> list[BlobInfo]:
        """Returns all present objects and unfinished uploads below a folder; paths are relative to it.

        Raises:
            FileNotFoundError: the folder is missing, in a store that has folders.
        """

    @abstractmethod
    def delete(self, target: str) -> None:
        """Removes an object, or an unfinished upload by its name from ``walk``.

        Raises:
            FileNotFoundError: it is missing, and the store says so.
        """

    def reach(self, folder: str) -> None:
        """Makes any request, to learn whether the store answers; the folder may be missing.

        Raises:
            FileNotFoundError: there is no such bucket, and the store says so.
        """
        with suppress(FileNotFoundError):
            self.size(folder)

    def prune(self, folder: str) -> bool:
        """Removes an empty folder, in a store that has folders; returns whether it did."""
        return False

    def within(self, retry_s: float) -> Self:
        """Returns the same store with another ``retry_s``."""
        other = copy.copy(self)
        other.retry_s = retry_s
        return other


def check_small(target: str, size: int) -> None:
    """Checks that an object can be a record, before memory is taken for it.

    Raises:
        CorruptError: it is larger than any record.
    """
    if size > MAX_RECORD_BYTES:
        raise CorruptError(f"{target} holds {size} bytes; a record has at most {MAX_RECORD_BYTES}")


def open_backend(url: str, options: Mapping[str, object], *, retry_s: float) -> tuple[ObjectBackend, str]:
    """Returns the backend of a URL, and the folder's full name, without a request.

    Raises:
        ImportError: a package that the protocol needs is missing.
        TypeError, ValueError: the URL or the options are invalid.
    """
    module = importlib.import_module(_MODULES.get(url.partition("://")[0], "nas.storage.backends.fsspec_url"))
    opened: tuple[ObjectBackend, str] = module.open_backend(url, options, retry_s=retry_s)
    return opened
