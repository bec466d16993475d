"""Data files at any fsspec URL: looked for when a problem is built, read when it is first trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from nas.core.errors import ConfigurationError

_PATIENCE_S = 20  # for a host's answer, not for a download


def options_of(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What fsspec needs to open files, as a problem is given it; None: nothing.

    Raises:
        ConfigurationError: it is no dict.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"{name} ({options!r}) must be a dict: {name}={{anon:true}}")
    return dict(options or {})


def check_presence(url: str, options: Mapping[str, Any], remedy: str) -> None:
    """Returns if there is a file.

    Raises:
        ConfigurationError: there is none, or a folder, or its host does not answer; the message ends with the remedy.
    """
    try:
        files, path = fsspec.url_to_fs(url, **options)
        if isinstance(files, AsyncFileSystem):
            found = sync(files.loop, files._info, path, timeout=_PATIENCE_S)
        else:
            found = files.info(path)
    except Exception as error:  # each library behind fsspec has its own
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else error  # http's says why it was none
        why = f"can't be reached ({type(cause).__name__}: {cause})" if cause else "is not there"
        raise ConfigurationError(" ".join(f"{url} {why}; {remedy}".split())) from error
    if found.get("type") == "directory":
        raise ConfigurationError(f"{url} is a folder, where a file is expected; {remedy}")


def read_file(url: str, options: Mapping[str, Any]) -> bytes:
    """Returns all of the file.

    Raises:
        OSError: it can't be read, for the reason that the library of its protocol has, whose name the message tells.
    """
    try:
        with fsspec.open(url, "rb", **options) as file:
            content: bytes = file.read()
    except Exception as error:  # each library behind fsspec has its own
        raise OSError(f"{type(error).__name__}: {error}") from error
    return content
