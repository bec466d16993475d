"""The storage root of a session, and the weights to keep in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nas.core.errors import ConfigurationError
from nas.core.redaction import without_passwords
from nas.core.validation import check_mapping
from nas.storage.maintenance.gc.retention import Retention

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore

DEFAULT_ROOT = "heirloom"


def root_words(root: str) -> list[str]:
    """Returns the override that names a root, without its passwords; none for the default one."""
    return [] if root == DEFAULT_ROOT else [f"storage.root={without_passwords(root)}"]


def read_root(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the storage root and its file-system options.

    Raises:
        ConfigurationError: the root is empty, or the options are not a mapping.
    """
    storage = values["storage"]
    root = storage.get("root")
    if root is None or not str(root).strip():
        raise ConfigurationError(f"storage.root={root!r}: must be a folder or a URL")
    return str(root), check_mapping("storage.options", storage.get("options") or {})


def reach_root(values: Mapping[str, Any]) -> BlobStore:
    """Opens the storage root and waits until its server answers.

    Raises:
        ConfigurationError: the root is invalid, or the server refuses access.
        StorageError: the server does not answer within seconds.
    """
    from nas.storage.open import open_root

    url, options = read_root(values)
    root = open_root(url, options)
    if values["storage"].get("mounted") and root.folder is not None:
        _check_mounted(url, root.folder)
    root.check_reachable()
    return root


def reach_stored_root(values: Mapping[str, Any]) -> BlobStore:
    """Opens the root as ``reach_root``, for a command that reads searches of other processes.

    Raises:
        ConfigurationError: as ``reach_root``, or the root exists in one process only.
        StorageError: as ``reach_root``.
    """
    root = reach_root(values)
    if root.in_process:
        raise ConfigurationError(f"storage.root={root.url} exists in the searching process only. Use a folder.")
    return root


def _check_mounted(url: str, folder: str) -> None:
    """Refuses a folder on which no network file system is mounted."""
    from nas.storage.mounts import find_mount

    mount = find_mount(folder)
    if mount is not None and mount.is_local:
        raise ConfigurationError(
            f"storage.root={url}: is on {mount.source} ({mount.kind}), which is not a network file system: "
            "mount it, choose another storage.root, or set storage.mounted=false (or storage=local)"
        )


def read_retention(values: Mapping[str, Any]) -> Retention:
    """Returns the retention: the weights to keep and the disk limit.

    Raises:
        ConfigurationError: ``keep`` or ``max_gb`` is invalid.
    """
    storage = values["storage"]
    return Retention(keep=str(values.get("keep", storage.get("keep", "all"))), max_gb=storage.get("max_gb"))
