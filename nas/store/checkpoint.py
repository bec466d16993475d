"""Checkpoints: published weights and files of one trial, found by the reference that its result record keeps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nas.errors import CorruptError
from nas.store.files import Files
from nas.store.folders import SavedFolder, fetch_files, publish_folder
from nas.store.manifest import Manifest, references
from nas.store.plain import MAX_RECORD_BYTES, checked_fields, shown
from nas.store.reference import Reference, is_path
from nas.store.signature import Signature, checked_text
from nas.store.tensor_names import is_weight

if TYPE_CHECKING:
    import torch

__all__ = [
    "Checkpoint",
    "fetch_folder",
    "load_manifest",
    "publish_checkpoint",
    "publish_folder",
    "publish_tensors",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that is needed to find a trial's weights, and to know that they are whole.

    Attributes:
        manifest: The file that says where each tensor lies.
        packs: The files that hold tensors: the trial's own, and donors' where tensors are the same.
        saved: What the trial left in its ``save_dir``, or None: nothing.
        search: The search under the same root whose checkpoint it is, or None: this one.
        signature: What the network's layers are called and look like (``Signature.text``); empty without tensors. In
            the record, so that the best of many donors is found without their manifests.
    """

    manifest: Reference
    packs: tuple[Reference, ...]
    saved: SavedFolder | None = None
    search: str | None = None
    signature: str = ""

    @property
    def own_bytes(self) -> int:
        """The size of what the trial itself published: without the packs of donors that it shares."""
        stem = self.manifest.path.removeprefix("manifests/").removesuffix(".json")
        own = [pack for pack in self.packs if pack.path.startswith(f"packs/{stem}")]
        saved = 0 if self.saved is None else self.saved.bytes
        return saved + sum(reference.bytes for reference in (self.manifest, *own))

    def to_json(self) -> dict[str, object]:
        """Plain data for a record."""
        return {
            "manifest": self.manifest.to_json(),
            "packs": [pack.to_json() for pack in self.packs],
            "saved": None if self.saved is None else self.saved.to_json(),
            "search": self.search,
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, data: object) -> Checkpoint:
        """The checkpoint that a record holds.

        Raises:
            CorruptError: anything but what ``to_json`` writes.
        """
        kinds = {
            "manifest": (dict,),
            "packs": (list,),
            "saved": (dict, type(None)),
            "search": (str, type(None)),
            "signature": (str,),
        }
        fields = checked_fields(data, kinds)
        found = cls(
            manifest=Reference.from_json(fields["manifest"]),
            packs=references(fields["packs"]),
            saved=None if fields["saved"] is None else SavedFolder.from_json(fields["saved"]),
            search=fields["search"],
            signature=checked_text(fields["signature"]),
        )
        for folder, listed in (("manifests", (found.manifest,)), ("packs", found.packs)):
            if stray := [file.path for file in listed if not file.path.startswith(f"{folder}/")]:
                raise CorruptError(f"{shown(stray[0])} does not lie in {folder}/")
        if found.search is not None and not ("/" not in found.search and is_path(found.search)):
            raise CorruptError(f"{shown(found.search)} is no search's name")
        return found


def publish_tensors(
    files: Files, path: str, tensors: Mapping[str, torch.Tensor], donors: Iterable[Manifest] = ()
) -> Manifest:
    """Publishes as a pack the tensors that none of the donors has, and says where all of them lie.

    Args:
        files: The search's root.
        path: The pack's, never used again.
        tensors: What ``write_pack`` takes.
        donors: Manifests of this search, whose packs will be kept as long as the checkpoint.
    """
    from nas.store.pack import write_pack

    donors = tuple(donors)
    known = {pack.path: pack for donor in donors for pack in donor.packs}
    own, entries = write_pack(files, path, tensors, known=[e for donor in donors for e in donor.tensors.values()])
    used = {entry.pack for entry in entries.values()}
    shared = [known[name] for name in sorted(used & known.keys())]
    return Manifest(tensors=entries, packs=(*([own] if own else []), *shared), files=())


def publish_checkpoint(
    files: Files, stem: str, tensors: Manifest | None, saved_files: tuple[Reference, ...] = ()
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


def load_manifest(files: Files, checkpoint: Checkpoint) -> Manifest:
    """The manifest, verified.

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
        manifest = Manifest.from_bytes(files.read(checkpoint.manifest))
        saved = checkpoint.saved and SavedFolder.of(checkpoint.saved.path, manifest.files)
        if manifest.packs != checkpoint.packs or saved != checkpoint.saved or (manifest.files and not saved):
            raise CorruptError("it lists other packs or files than the checkpoint")
    except CorruptError as error:
        raise CorruptError(f"manifest {checkpoint.manifest.path} in {files.url} is corrupt: {error}") from error
    return manifest


def fetch_folder(files: Files, checkpoint: Checkpoint, local_dir: str | os.PathLike[str]) -> None:
    """Writes what the trial left in its ``save_dir``, verified, below a local folder that is empty or missing.

    Raises:
        ConfigurationError, CorruptError, MissingError: as ``load_manifest`` and ``fetch_files``.
    """
    fetch_files(files, load_manifest(files, checkpoint).files, local_dir)
