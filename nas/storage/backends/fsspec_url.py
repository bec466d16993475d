"""Objects wherever else fsspec reaches (``gs://``, ``abfs://``, ``smb://``), and in ``memory://``.

Its own drivers do as they do: how they retry, and whether an object grows in sight, is theirs.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, final

from nas.core.errors import ConfigurationError
from nas.core.redaction import without_passwords
from nas.storage.backends.chunks import Hashed, Run
from nas.storage.backends.object_backend import ObjectBackend, check_small
from nas.storage.blobs import BlobInfo

_BUCKETS = frozenset({"gs", "gcs", "abfs", "abfss", "az", "adl", "oss"})
"""Protocols without folders: "not found" on writing means the bucket, and a misspelt bucket is not to be created."""
_ONE_AT_A_TIME = threading.RLock()
"""Held around calls of file systems that are not asynchronous: these share open files between threads."""


@final
class FsspecBackend(ObjectBackend):
    """Whole objects by fsspec's own calls.

    Args:
        fs: The file system, which remembers no listings and is nobody else's.
        protocol: The URL's.
        retry_s: Unused: only fsspec's driver knows which of its errors pass.
    """

    def __init__(self, fs: Any, protocol: str, retry_s: float) -> None:
        self._fs = fs
        self._protocol = protocol
        self.retry_s = retry_s
        self.in_process = protocol == "memory"

    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Asks for an exclusive name where the driver knows that (``mode="create"``), else looks first."""
        data = b"".join(chunks)
        with self._alone():
            if not exclusive:
                self._put(target, data)
            elif self._fs.async_impl:
                self._put(target, data, mode="create")
            # memory's own exists() walks all names
            elif target in self._fs.store if self.in_process else self._fs.exists(target):
                raise FileExistsError(target)
            else:
                self._put(target, data)

    def get(self, target: str) -> bytes:
        """Returns the whole object, in one request: that it is too large is noticed when it is here."""
        with self._alone():
            data = bytes(self._fs.cat_file(target))
        check_small(target, len(data))
        return data

    def get_all(self, targets: Sequence[str]) -> list[bytes | None]:
        """At once, where the file system can."""
        everything = [None] * len(targets)
        with self._alone():
            found = self._fs.cat_ranges(list(targets), everything, everything, on_error="return") if targets else []
        for target, content in zip(targets, found, strict=True):
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
            if not isinstance(content, Exception):
                check_small(target, len(content))
        return [None if isinstance(content, Exception) else bytes(content) for content in found]

    def size(self, target: str) -> int:
        """What the file system tells."""
        with self._alone():
            return int(self._fs.info(target)["size"])

    def reach(self, folder: str) -> None:
        """What the file system tells of the folder, if it is there."""
        with suppress(FileNotFoundError), self._alone():
            self._fs.info(folder)

    def fill(self, target: str, runs: Iterable[Run]) -> Generator[tuple[int, Run], None, None]:
        """One run after the other."""
        size = self.size(target)
        for run in runs:
            with self._alone():
                run.write(0, self._fs.cat_file(target, start=run.begin, end=min(run.begin + run.bytes, size)))
            yield size, run

    def names(self, folder: str) -> list[str]:
        """Returns a listing that no cache answers."""
        with self._alone():
            self._fs.invalidate_cache()
            entries = [str(entry).rstrip("/") for entry in self._fs.ls(folder, detail=False)]
        return [entry.rpartition("/")[2] for entry in entries if entry != folder]

    def walk(self, folder: str) -> list[BlobInfo]:
        """Returns a listing of everything that no cache answers."""
        with self._alone():
            self._fs.invalidate_cache()
            entries = self._fs.find(folder, detail=True)
        return [
            BlobInfo(str(name).removeprefix(f"{folder}/"), int(info["size"] or 0), _modified(info))
            for name, info in entries.items()
        ]

    def delete(self, target: str) -> None:
        """Removes the object."""
        with self._alone():
            self._fs.rm_file(target)

    def _put(self, target: str, data: bytes, **mode: str) -> None:
        try:
            self._fs.pipe_file(target, data, **mode)
        except FileNotFoundError as error:
            if self._protocol in _BUCKETS:
                raise FileNotFoundError("there is no such bucket") from error
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(target, data, **mode)

    def _alone(self) -> AbstractContextManager[object]:
        return nullcontext() if self._fs.async_impl else _ONE_AT_A_TIME


def _modified(info: Mapping[str, Any]) -> float | None:
    """When an object was written, by whichever name its file system gives that."""
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
    """Returns the driver, and the URL's place in it.

    Raises:
        ConfigurationError: an unknown protocol.
        ImportError, TypeError, ValueError: as ``nas.storage.backends.object_backend.open_backend``.
    """
    fsspec: Any = importlib.import_module("fsspec")
    try:
        fsspec.get_filesystem_class(url.partition("://")[0])
    except ValueError as error:
        where, known = without_passwords(url), ", ".join(sorted(fsspec.available_protocols()))
        raise ConfigurationError(f"storage root {where}: unknown protocol; try a folder or one of {known}") from error
    fs, root = fsspec.core.url_to_fs(url, **options, skip_instance_cache=True)
    fs.dircache.use_listings_cache = False
    return FsspecBackend(fs, url.partition("://")[0], retry_s), str(root)
