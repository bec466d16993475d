"""Checkpoints: published weights and files of one trial."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from nas.core.checkpoint import Checkpoint, SavedFolder
from nas.core.errors import CorruptError
from nas.core.reference import Reference
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.blobs import BlobStore
from nas.storage.folders import fetch_files
from nas.storage.manifest import Manifest
from nas.storage.signature import Signature
from nas.storage.tensor_names import is_weight
from nas.storage.tensor_parts import TensorParts

if TYPE_CHECKING:
    import torch


def publish_tensors(
    files: BlobStore,
    path: str,
    tensors: Mapping[str, torch.Tensor],
    donors: Iterable[Manifest] = (),
    parts: Mapping[str, TensorParts] | None = None,
) -> Manifest:
    """Publishes a pack of the tensors that no donor has. Returns the manifest of all tensors.

    Args:
        files: The search's root.
        path: Path of the pack, which must be new.
        tensors: Tensors by name, as for ``write_pack``.
        donors: Manifests of this search. Their packs are kept as long as the checkpoint.
        parts: The heads of tensors (`nas.inheritance.attention`). Names and shapes without a tensor are left out.
    """
    from nas.storage.pack import write_pack

    donors = tuple(donors)
    donor_packs = {pack.path: pack for donor in donors for pack in donor.packs}
    donor_entries = [entry for donor in donors for entry in donor.tensors.values()]
    own_pack, entries = write_pack(files, path, tensors, known=donor_entries)
    used = {entry.pack for entry in entries.values()}
    packs = [donor_packs[name] for name in sorted(used & donor_packs.keys())]
    if own_pack is not None:
        packs.insert(0, own_pack)
    fitting = {name: own for name, own in (parts or {}).items() if name in entries and own.fit(entries[name].shape)}
    return Manifest(tensors=entries, packs=tuple(packs), files=(), parts=fitting)


def publish_checkpoint(
    files: BlobStore, stem: str, tensors: Manifest | None, saved_files: tuple[Reference, ...] = ()
) -> Checkpoint:
    """Publishes the manifest of a checkpoint, after its tensors and files.

    Args:
        files: The search's root.
        stem: The trial's number and a nonce. The paths of its packs and files begin with it, too.
        tensors: Returned by ``publish_tensors``, or None if there are no tensors.
        saved_files: Returned by ``publish_folder``.

    Raises:
        MissingError: a pack was deleted meanwhile, as left by a driver that was killed.
    """
    manifest = replace(tensors or Manifest(tensors={}, packs=(), files=()), files=saved_files)
    saved = SavedFolder.of(f"files/{stem}", saved_files)
    for pack in manifest.packs:
        if pack.path.startswith(f"packs/{stem}"):  # others are donors', which a collection keeps
            files.check_size(pack)
    reference = files.publish(f"manifests/{stem}.json", [manifest.to_bytes()])
    signature = Signature.of({name: entry for name, entry in manifest.tensors.items() if is_weight(name)}).text
    return Checkpoint(manifest=reference, packs=manifest.packs, saved=saved, signature=signature)


def load_manifest(files: BlobStore, checkpoint: Checkpoint) -> Manifest:
    """Returns the verified manifest of a checkpoint.

    Args:
        files: The root of the checkpoint's search: ``files.sibling(checkpoint.search)`` for another search.
        checkpoint: The checkpoint.

    Raises:
        MissingError: the manifest does not exist.
        CorruptError: its digest is wrong, or it contradicts the checkpoint.
    """
    try:
        if checkpoint.manifest.bytes > MAX_RECORD_BYTES:
            raise CorruptError(f"{checkpoint.manifest.bytes} bytes; a manifest has at most {MAX_RECORD_BYTES}")
        manifest = _decoded(bytes(files.read(checkpoint.manifest)))
        saved = checkpoint.saved and SavedFolder.of(checkpoint.saved.path, manifest.files)
        if manifest.packs != checkpoint.packs or saved != checkpoint.saved or (manifest.files and not saved):
            raise CorruptError("it lists other packs or files than the checkpoint")
    except CorruptError as error:
        raise CorruptError(f"manifest {checkpoint.manifest.path} in {files.url} is corrupt: {error}") from error
    return manifest


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> Manifest:
    """Returns the manifest in these bytes; subnets of a supernet epoch all read the epoch's."""
    return Manifest.from_bytes(data)


def fetch_folder(files: BlobStore, checkpoint: Checkpoint, local_dir: str | os.PathLike[str]) -> None:
    """Writes the verified files of a trial's ``save_dir`` to an empty or missing local folder.

    Raises:
        ConfigurationError, CorruptError, MissingError: as ``load_manifest`` and ``fetch_files``.
    """
    fetch_files(files, load_manifest(files, checkpoint).files, local_dir)
