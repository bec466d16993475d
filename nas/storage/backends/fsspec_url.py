"""Objects in any other storage of fsspec (``gs://``, ``az://``, ``smb://``), and in ``memory://``.

Retries, and whether an object is visible while it is written, depend on fsspec's file system. Those of Google and Azure
refuse a taken name. They also repeat a write after a lost reply, and then find their own object, which a token marks.
"""

from __future__ import annotations

import importlib
import logging
import secrets
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, final

from nas.core.errors import ConfigurationError, StorageError
from nas.storage.backends.chunks import PART, Hashed, RangeRead, pieces
from nas.storage.backends.object_backend import ObjectBackend, check_small
from nas.storage.blobs import BlobInfo

_BUCKETS = frozenset({"gs", "gcs", "abfs", "abfss", "az", "adl", "oss"})
"""Protocols without folders: a put that fails with "not found" has a misspelled bucket."""
_GOOGLE = frozenset({"gs", "gcs"})
_AZURE = frozenset({"abfs", "abfss", "az"})
_ONE_CALL = threading.RLock()
"""Held during calls of synchronous file systems, which share open files between threads."""

logger = logging.getLogger(__name__)


@final
class FsspecBackend(ObjectBackend):
    """Whole objects by fsspec's own calls.

    Args:
        fs: The file system, without a cache of listings and not shared with other code.
        protocol: The protocol of the URL.
        retry_s: Unused: only fsspec's file system knows which of its errors may pass.
    """

    def __init__(self, fs: Any, protocol: str, retry_s: float) -> None:
        self._fs = fs
        self._protocol = protocol
        self.retry_s = retry_s
        self.in_process = protocol == "memory"

    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Stores the object in one request, or a large one in parts (Google, Azure).

        For an exclusive name, an asynchronous file system gets ``mode="create"``. Another is asked if the name exists.
        """
        parts = pieces(chunks, PART)
        first = list(islice(parts, 2))
        if len(first) == 2 and not exclusive and self._protocol in _GOOGLE | _AZURE:
            self._stream(target, chain(first, parts))
            self._check_size(target, chunks.bytes)
            return
        data = b"".join(chain(first, parts))
        with self._locked():
            if not exclusive:
                self._put(target, data)
            elif self._fs.async_impl:
                self._create(target, data)
            # memory's own exists() walks all names
            elif target in self._fs.store if self.in_process else self._fs.exists(target):
                raise FileExistsError(target)
            else:
                self._put(target, data)

    def get(self, target: str) -> bytes:
        """Returns the object, in one request, which does not tell its size beforehand."""
        with self._locked():
            data = bytes(self._fs.cat_file(target))
        check_small(target, len(data))
        return data

    def get_all(self, targets: Sequence[str]) -> list[bytes | None]:
        """Returns all objects, at once if the file system is asynchronous."""
        everything = [None] * len(targets)
        with self._locked():
            found = self._fs.cat_ranges(list(targets), everything, everything, on_error="return") if targets else []
        for target, content in zip(targets, found, strict=True):
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
            if not isinstance(content, Exception):
                check_small(target, len(content))
        return [None if isinstance(content, Exception) else bytes(content) for content in found]

    def size(self, target: str) -> int:
        """Returns the size that the file system reports."""
        with self._locked():
            return int(self._fs.info(target)["size"])

    def reach(self, folder: str) -> None:
        """Asks for the folder."""
        with suppress(FileNotFoundError), self._locked():
            self._fs.info(folder)

    def fill(self, target: str, reads: Iterable[RangeRead]) -> Generator[tuple[int, RangeRead], None, None]:
        """Fills one range after the other."""
        size = self.size(target)
        for wanted in reads:
            if wanted.begin < size:
                end = min(wanted.begin + wanted.bytes, size)
                with self._locked():
                    wanted.write(0, self._fs.cat_file(target, start=wanted.begin, end=end))
            yield size, wanted

    def names(self, folder: str) -> list[str]:
        """Returns the present names, without the listing cache."""
        with self._locked():
            self._fs.invalidate_cache()
            entries = [str(entry).rstrip("/") for entry in self._fs.ls(folder, detail=False)]
        return [entry.rpartition("/")[2] for entry in entries if entry != folder]

    def walk(self, folder: str) -> list[BlobInfo]:
        """Returns all present objects, without the listing cache."""
        with self._locked():
            self._fs.invalidate_cache()
            entries = self._fs.find(folder, detail=True)
        return [
            BlobInfo(str(name).removeprefix(f"{folder}/"), int(info["size"] or 0), _modified(info))
            for name, info in entries.items()
        ]

    def delete(self, target: str) -> None:
        """Removes the object."""
        with self._locked():
            self._fs.rm_file(target)

    def _stream(self, target: str, parts: Iterable[bytes]) -> None:
        """Uploads parts, which close() joins; an error publishes nothing."""
        file = self._fs.open(target, "wb", block_size=PART)
        try:
            for part in parts:
                file.write(part)
        except BaseException:
            file.closed = True  # its destructor would join the parts
            _discard(file, target)
            raise
        file.close()

    def _check_size(self, target: str, n_bytes: int) -> None:
        """Deletes an object to which a part was appended twice, after a lost reply."""
        if (size := self.size(target)) != n_bytes:
            self.delete(target)
            raise StorageError(f"the store joined {n_bytes} bytes of {target} to {size}")

    def _create(self, target: str, data: bytes) -> None:
        """Creates an object; if its own object exists, an earlier reply was lost."""
        token = secrets.token_hex(16)
        try:
            self._put(target, data, mode="create", **_marked(self._protocol, token))
        except FileExistsError:
            with suppress(FileNotFoundError):  # deleted meanwhile
                if token in str(self._fs.info(target)):
                    return
            raise

    def _put(self, target: str, data: bytes, **mode: object) -> None:
        try:
            self._fs.pipe_file(target, data, **mode)
        except FileNotFoundError as error:
            if self._protocol in _BUCKETS:
                raise FileNotFoundError("there is no such bucket") from error
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(target, data, **mode)

    def _locked(self) -> AbstractContextManager[object]:
        return nullcontext() if self._fs.async_impl else _ONE_CALL


def _discard(file: Any, target: str) -> None:
    """Deletes the parts of a failed upload; only Google's file system sends a request."""
    try:
        file.discard()
    except Exception as error:
        logger.warning("can't delete the parts of %s: %s", target, type(error).__name__)


def _marked(protocol: str, token: str) -> dict[str, object]:
    """Returns the arguments that keep a token with an object; adlfs takes no metadata, only settings."""
    if protocol in _GOOGLE:
        return {"metadata": {"heirloom-writer": token}}
    if protocol in _AZURE:
        return {"content_settings": {"content_disposition": f"attachment; heirloom-writer={token}"}}
    return {}


def _modified(info: Mapping[str, Any]) -> float | None:
    """Returns when an object was written; each file system has another key for it."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def open_backend(url: str, options: Mapping[str, object], *, retry_s: float) -> tuple[FsspecBackend, str]:
    """Returns the backend, and the full name of the URL's folder in it.

    Raises:
        ConfigurationError: an unknown protocol.
        ImportError, TypeError, ValueError: as ``nas.storage.backends.object_backend.open_backend``.
    """
    fsspec: Any = importlib.import_module("fsspec")
    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise ConfigurationError(f"storage.root={url}: unknown protocol. Use a folder or one of {known}.") from error
    if protocol in _GOOGLE:
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # its tracebacks repeat errors that it raises
    fs, root = fsspec.core.url_to_fs(url, **options, skip_instance_cache=True)
    fs.dircache.use_listings_cache = False
    return FsspecBackend(fs, protocol, retry_s), str(root)
