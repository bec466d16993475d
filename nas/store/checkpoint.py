"""Checkpoints: published weights and files of one trial, found by the reference that its result record keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nas.errors import CorruptError
from nas.store.files import Files
from nas.store.folders import fetch_folder, publish_folder
from nas.store.manifest import Manifest, TensorEntry, references
from nas.store.reference import Reference, checked_fields, scratch

if TYPE_CHECKING:
    import torch

__all__ = [
    "Checkpoint",
    "fetch_folder",
    "load_manifest",
    "load_tensors",
    "publish_checkpoint",
    "publish_folder",
    "publish_manifest",
    "verify",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that is needed to find a trial's weights, and to know that they are whole.

    Attributes:
        manifest: The file that says where each tensor lies.
        packs: The files that hold tensors, a donor's among them where tensors are the same.
        files: What the trial left in its ``save_dir``.
        search: The search under the same root whose checkpoint it is, or None: this one.
    """

    manifest: Reference
    packs: tuple[Reference, ...]
    files: tuple[Reference, ...]
    search: str | None = None

    @property
    def total_bytes(self) -> int:
        """The size of everything that the checkpoint names."""
        return sum(reference.bytes for reference in (self.manifest, *self.packs, *self.files))

    def to_json(self) -> dict[str, object]:
        """Plain data for a record."""
        return {
            "manifest": self.manifest.to_json(),
            "packs": [pack.to_json() for pack in self.packs],
            "files": [file.to_json() for file in self.files],
            "search": self.search,
        }

    @classmethod
    def from_json(cls, data: object) -> Checkpoint:
        """The checkpoint that a record holds.

        Raises:
            CorruptError: anything but what ``to_json`` writes.
        """
        kinds = {"manifest": (dict,), "packs": (list,), "files": (list,), "search": (str, type(None))}
        fields = checked_fields(data, kinds)
        return cls(
            manifest=Reference.from_json(fields["manifest"]),
            packs=references(fields["packs"]),
            files=references(fields["files"]),
            search=fields["search"],
        )


def publish_checkpoint(
    files: Files,
    stem: str,
    pack: tuple[Reference, Mapping[str, TensorEntry]] | None,
    saved_files: tuple[Reference, ...] = (),
) -> Checkpoint:
    """Publishes the manifest of what ``write_pack`` and ``publish_folder`` answered.

    Args:
        files: The search's root.
        stem: The trial's number and a nonce.
        pack: What ``write_pack`` answered, or None: no tensors.
        saved_files: What ``publish_folder`` answered.
    """
    packs, tensors = ((pack[0],), pack[1]) if pack else ((), {})
    return publish_manifest(files, stem, Manifest(tensors=tensors, packs=packs, files=saved_files))


def publish_manifest(files: Files, stem: str, manifest: Manifest) -> Checkpoint:
    """Publishes a manifest, whose tensors may lie in the packs of others, as ``manifests/<stem>.json``."""
    reference = files.publish(f"manifests/{stem}.json", [manifest.to_bytes()])
    return Checkpoint(manifest=reference, packs=manifest.packs, files=manifest.files)


def load_manifest(files: Files, checkpoint: Checkpoint) -> Manifest:
    """The manifest, verified.

    Args:
        files: The root of the search whose checkpoint it is (``files.sibling(checkpoint.search)`` where that is set).
        checkpoint: What to load.

    Raises:
        MissingError: it is not there.
        CorruptError: it is not what was published, or does not agree with the checkpoint.
    """
    data = files.read(checkpoint.manifest)
    try:
        manifest = Manifest.from_bytes(data)
        if (manifest.packs, manifest.files) != (checkpoint.packs, checkpoint.files):
            raise CorruptError("it lists other packs or files than the checkpoint")
    except CorruptError as error:
        raise CorruptError(f"manifest {checkpoint.manifest.path} in {files.url} is corrupt: {error}") from error
    return manifest


def load_tensors(files: Files, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The tensors in main memory of their own, each byte verified; none where the checkpoint holds files only.

    Raises:
        MissingError: a file is not there.
        CorruptError: a file is not what was published, or the manifest says what can't be.
    """
    manifest = load_manifest(files, checkpoint)
    if not manifest.tensors:
        return {}
    from nas.store.pack import read_tensors

    return read_tensors(files, manifest.tensors, {pack.path: pack for pack in manifest.packs})


def verify(files: Files, checkpoint: Checkpoint) -> None:
    """Reads everything that the checkpoint names and compares sizes and digests.

    Raises:
        MissingError: a file is not there.
        CorruptError: a file is not what was published.
    """
    load_manifest(files, checkpoint)
    for reference in (*checkpoint.packs, *checkpoint.files):
        files.read_into(reference, partial(scratch, reference.bytes))
