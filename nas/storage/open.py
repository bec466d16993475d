"""Open the root folder of a storage by its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nas.core.errors import ConfigurationError
from nas.storage.blobs import BlobStore
from nas.storage.mounts import find_mount

RETRY_S = 60.0
"""What common NFS clients take to see what another machine has written, and servers to restart."""


DISK_RETRY_S = 2.0
"""On a disk of this machine what is not there, or wrong, stays so."""


def open_root(url: str, options: Mapping[str, object] | None = None, *, retry_s: float | None = None) -> BlobStore:
    """The files under a root: a folder (``~`` is expanded), ``s3://``, ``sftp://``, or any other URL that fsspec knows.

    Args:
        url: The root; it need not exist yet.
        options: Endpoints and credentials of the backend (docs/guides/object_stores.md). No message shows them.
        retry_s: How long caches and silent servers are lasted out; by default 60, on a disk of this machine 2.

    Raises:
        ConfigurationError: an unknown protocol, a driver that is not installed, options that the protocol refuses.
    """
    protocol, separator, rest = url.partition("://")
    if separator and protocol not in ("file", "local"):
        from nas.storage.backends.object_store import ObjectBlobStore

        return ObjectBlobStore(url, options or {}, retry_s=RETRY_S if retry_s is None else retry_s)
    folder = os.path.expanduser(rest if separator else url)
    if not folder or (separator and not folder.startswith("/")):
        raise ConfigurationError(f"storage root {url!r} names no folder; try file:///absolute/path or a plain path")
    if options:
        raise ConfigurationError(f"storage root {url} is a folder and takes no options: {', '.join(sorted(options))}")
    from nas.storage.backends.local import LocalBlobStore

    if retry_s is None:
        mount = find_mount(folder)
        retry_s = DISK_RETRY_S if mount is not None and mount.is_local else RETRY_S
    return LocalBlobStore(os.path.abspath(folder), retry_s=retry_s)
