"""Opens the root folder of a storage by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from nas.core.errors import ConfigurationError
from nas.storage.blobs import BlobStore
from nas.storage.mounts import find_mount

RETRY_S = 60.0
"""Longer than NFS clients cache a missing name, and than servers take to restart."""

DISK_RETRY_S = 2.0
"""For a disk of this machine: waiting does not change a missing or wrong file."""


def open_root(
    url: str | os.PathLike[str], options: Mapping[str, object] | None = None, *, retry_s: float | None = None
) -> BlobStore:
    """Returns the files under a root.

    Args:
        url: A folder (``~`` is expanded), ``s3://``, ``sftp://`` or any other URL of fsspec. It need not exist yet.
        options: Endpoints and credentials, by protocol (docs/guides/object_stores.md). No message shows them.
        retry_s: Seconds to retry while a file is not visible or a server does not respond. The default is 60, on a
            disk of this machine 2.

    Raises:
        ConfigurationError: a chained URL, an unknown protocol, a missing package, or options that the protocol refuses.
    """
    if not isinstance(url, str | os.PathLike):
        raise ConfigurationError(f"storage.root={url!r}: must be a folder or a URL, as text.")
    url = os.fspath(url)
    if "::" in url:  # a cache or an archive around a file system has none of its guarantees
        raise ConfigurationError(f"storage.root={url!r}: must be one URL, without `::`. Name a folder.")
    protocol, separator, rest = url.partition("://")
    if separator and protocol not in ("file", "local"):
        _check_credentials(url)
        from nas.storage.backends.object_store import ObjectBlobStore

        return ObjectBlobStore(url, options or {}, retry_s=RETRY_S if retry_s is None else retry_s)
    if not separator and (found := re.match(r"(\w+):[/\\]", url)):
        raise ConfigurationError(
            f"storage.root={found[0]}...: must be a folder or a URL. Write {found[1]}:// for a URL."
        )
    folder = os.path.expanduser(rest if separator else url)
    if not folder or "\0" in folder or (separator and not folder.startswith("/")):
        raise ConfigurationError(f"storage.root={url!r}: must name a folder. Use a path or file:///absolute/path.")
    if options:
        keys = ", ".join(sorted(options))
        raise ConfigurationError(
            f"storage.options={keys}: must be empty, because storage.root={url} is a folder. Remove them."
        )
    from nas.storage.backends.local import LocalBlobStore

    if retry_s is None:
        mount = find_mount(folder)
        retry_s = DISK_RETRY_S if mount is not None and mount.is_local else RETRY_S
    return LocalBlobStore(os.path.abspath(folder), retry_s=retry_s)


def search_url(root: str | os.PathLike[str], files: BlobStore) -> str:
    """Returns the URL by which other processes open a search, with the password of its root.

    Args:
        root: The root as the user wrote it.
        files: The search's folder.
    """
    url = os.fspath(root)
    return f"{url.rstrip('/')}/{files.name}" if "://" in url else files.url


def _check_credentials(url: str) -> None:
    """Refuses a URL with credentials that messages and records could not mask."""
    protocol, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    may_hold_password = ":" in authority and "@" not in authority and not re.fullmatch(r".*:[0-9]*", authority)
    if may_hold_password and "@" in rest:
        raise ConfigurationError(
            f"storage.root={protocol}://***: must not have `/`, `?` or `#` in its password. Write %2F, %3F or %23, or "
            "give the password in storage.options."
        )
    if "?" in rest:
        raise ConfigurationError(
            f"storage.root={url.partition('?')[0]}?***: must not have a `?`. Give credentials in "
            "storage.options or variables."
        )
