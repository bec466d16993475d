"""Data files at fsspec URLs, checked when a problem is built and read later."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from nas.core.errors import ConfigurationError
from nas.core.validation import short_repr
from nas.storage.secrets import Secrets

_GZIP = b"\x1f\x8b"
_TIMEOUT_S = 20
"""Timeout of a host's answer, not of a download."""


def checked_options(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the options that fsspec gets to open files; none if ``options`` is None.

    Raises:
        ConfigurationError: ``options`` is not a dict. The message does not show it, since it may be a credential.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"{name}=***: must be a dict. Write {name}={{anon:true}}.")
    return dict(options or {})


def check_file(option: str, url: object, options: Mapping[str, Any], remedy: str) -> None:
    """Checks that an option's value is the path or URL of a file that exists.

    Raises:
        ConfigurationError: it is no path, missing, a folder, or its host does not answer.
    """
    if not isinstance(url, str | os.PathLike) or not url:
        raise ConfigurationError(f"{option}={short_repr(url)}: must be a file's path or URL. {remedy}.")
    try:
        files, path = fsspec.url_to_fs(url, **options)
        if isinstance(files, AsyncFileSystem):
            found = sync(files.loop, files._info, path, timeout=_TIMEOUT_S)
        else:
            found = files.info(path)
    except Exception as error:  # each library behind fsspec has its own
        secrets = Secrets(str(url), options)
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else error  # http keeps the reason there
        rule = f"can be reached ({secrets.masked(cause)})" if cause else "exists"
        text = " ".join(f"{option}={url}: must be a file that {rule}. {remedy}.".split())
        raise ConfigurationError(text) from secrets.cause(error)
    if found.get("type") == "directory":
        raise ConfigurationError(f"{option}={url}: must be a file, not a folder. {remedy}.")


def read_file(url: str, options: Mapping[str, Any]) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: it can't be read. The message holds the type and the text of the protocol library's error.
    """
    with _opened(url, options) as file:
        content: bytes = file.read()
    return content


def read_lines(url: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the lines of a file, which may be compressed with gzip.

    Only a part of the content is in memory.

    Raises:
        OSError: as ``read_file``; or the gzip file is incomplete or damaged.
    """
    with _opened(url, options) as file:
        is_zipped = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        yield from gzip.GzipFile(fileobj=file) if is_zipped else file


@contextmanager
def _opened(url: str, options: Mapping[str, Any]) -> Iterator[Any]:
    try:
        with fsspec.open(url, "rb", **options) as file:
            yield file
    except Exception as error:  # each library behind fsspec has its own
        secrets = Secrets(str(url), options)
        raise OSError(secrets.masked(error)) from secrets.cause(error)


def unzipped(content: bytes) -> bytes:
    """Returns the content of a gzip file, or what has another format as it is.

    Raises:
        OSError, EOFError, zlib.error: the gzip file is incomplete or damaged.
    """
    return gzip.decompress(content) if content.startswith(_GZIP) else content
