"""Open the root folder of a storage by its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nas.core.errors import ConfigurationError
from nas.storage.blobs import Files
from nas.storage.mounts import find_mount

PATIENCE_S = 60.0
"""What common NFS clients take to see what another machine has written, and servers to restart."""


DISK_PATIENCE_S = 2.0
"""On a disk of this machine what is not there, or wrong, stays so."""


def open_root(url: str, options: Mapping[str, object] | None = None, *, patience_s: float | None = None) -> Files:
    """The files under a root: a folder (``~`` is expanded), ``s3://``, ``sftp://``, or any other URL that fsspec knows.

    Args:
        url: The root; it need not exist yet.
        options: What the root's driver takes (docs/object_stores.md): endpoints, credentials. No message shows them.
        patience_s: How long caches and silent servers are lasted out; by default 60, on a disk of this machine 2.

    Raises:
        ConfigurationError: an unknown protocol, a driver that is not installed, options that the protocol refuses.
    """
    protocol, separator, rest = url.partition("://")
    if separator and protocol not in ("file", "local"):
        from nas.storage.backends.object_store import ObjectFiles

        return ObjectFiles(url, options or {}, patience_s=PATIENCE_S if patience_s is None else patience_s)
    folder = os.path.expanduser(rest if separator else url)
    if not folder or (separator and not folder.startswith("/")):
        raise ConfigurationError(f"storage root {url!r} names no folder; try file:///absolute/path or a plain path")
    if options:
        raise ConfigurationError(f"storage root {url} is a folder and takes no options: {', '.join(sorted(options))}")
    from nas.storage.backends.local import LocalFiles

    if patience_s is None:
        mount = find_mount(folder)
        patience_s = DISK_PATIENCE_S if mount is not None and mount.is_local else PATIENCE_S
    return LocalFiles(os.path.abspath(folder), patience_s=patience_s)
