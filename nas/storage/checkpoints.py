"""Checkpoints: published weights and files of one trial, found by the reference that its result record keeps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nas.core.checkpoint import Checkpoint, SavedFolder
from nas.core.errors import CorruptError
from nas.core.reference import Reference
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.blobs import BlobStore
from nas.storage.folders import fetch_files, publish_folder
from nas.storage.manifest import Manifest
from nas.storage.signature import Signature
from nas.storage.tensor_names import is_weight

if TYPE_CHECKING:
    import torch

__all__ = [
    "fetch_folder",
    "load_manifest",
    "publish_checkpoint",
    "publish_folder",
    "publish_tensors",
]


def publish_tensors(
    files: BlobStore, path: str, tensors: Mapping[str, torch.Tensor], donors: Iterable[Manifest] = ()
) -> Manifest:
    """Publishes as a pack the tensors that none of the donors has, and says where all of them lie.

    Args:
        files: The search's root.
        path: The pack's, never used again.
        tensors: What ``write_pack`` takes.
        donors: Manifests of this search, whose packs will be kept as long as the checkpoint.
    """
    from nas.storage.pack import write_pack

    donors = tuple(donors)
    known = {pack.path: pack for donor in donors for pack in donor.packs}
    own, entries = write_pack(files, path, tensors, known=[e for donor in donors for e in donor.tensors.values()])
    used = {entry.pack for entry in entries.values()}
    shared = [known[name] for name in sorted(used & known.keys())]
    return Manifest(tensors=entries, packs=(*([own] if own else []), *shared), files=())


def publish_checkpoint(
    files: BlobStore, stem: str, tensors: Manifest | None, saved_files: tuple[Reference, ...] = ()
) -> Checkpoint:
    """Publishes the manifest of what ``publish_tensors`` and ``publish_folder`` answered.

    Args:
        files: The search's root.
        stem: The trial's number and a nonce; the paths of its packs and files begin with it, too.
        tensors: What ``publish_tensors`` answered, or None: no tensors.
        saved_files: What ``publish_folder`` answered.
    """
    manifest = replace(tensors or Manifest(tensors={}, packs=(), files=()), files=saved_files)
    saved = SavedFolder.of(f"files/{stem}", saved_files)
    reference = files.publish(f"manifests/{stem}.json", [manifest.to_bytes()])
    signature = Signature.of({name: entry for name, entry in manifest.tensors.items() if is_weight(name)}).text
    return Checkpoint(manifest=reference, packs=manifest.packs, saved=saved, signature=signature)


def load_manifest(files: BlobStore, checkpoint: Checkpoint) -> Manifest:
    """Returns the manifest, verified.

    Args:
        files: The root of the search whose checkpoint it is (``files.sibling(checkpoint.search)`` where that is set).
        checkpoint: What to load.

    Raises:
        MissingError: it is not there.
        CorruptError: it is not what was published, or does not agree with the checkpoint.
    """
    try:
        if checkpoint.manifest.bytes > MAX_RECORD_BYTES:
            raise CorruptError(f"{checkpoint.manifest.bytes} bytes; a manifest has at most {MAX_RECORD_BYTES}")
        manifest = Manifest.from_bytes(bytes(files.read(checkpoint.manifest)))
        saved = checkpoint.saved and SavedFolder.of(checkpoint.saved.path, manifest.files)
        if manifest.packs != checkpoint.packs or saved != checkpoint.saved or (manifest.files and not saved):
            raise CorruptError("it lists other packs or files than the checkpoint")
    except CorruptError as error:
        raise CorruptError(f"manifest {checkpoint.manifest.path} in {files.url} is corrupt: {error}") from error
    return manifest


def fetch_folder(files: BlobStore, checkpoint: Checkpoint, local_dir: str | os.PathLike[str]) -> None:
    """Writes what the trial left in its ``save_dir``, verified, below a local folder that is empty or missing.

    Raises:
        ConfigurationError, CorruptError, MissingError: as ``load_manifest`` and ``fetch_files``.
    """
    fetch_files(files, load_manifest(files, checkpoint).files, local_dir)
