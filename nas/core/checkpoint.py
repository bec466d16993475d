"""References to the published weights of a trial, as stored in its record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from nas.core.errors import CorruptError
from nas.core.reference import Reference, is_path, on_disk, references
from nas.core.validation import checked_fields, checked_int, short_repr

_KINDS: Mapping[str, tuple[type, ...]] = {"path": (str,), "n_files": (int,), "bytes": (int,), "on_disk": (int,)}
_PATH = re.compile("files/[^/]+")

LETTERS = 6
"""Characters per layer in a signature.

36 bits of a digest: a layer collides with one of a million others with a probability of 1 in 70,000.
"""
_TEXT = re.compile(rf"(?:[A-Za-z0-9_-]{{{LETTERS}}})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """References to the published weights of a trial, with sizes and digests.

    Attributes:
        manifest: The file that lists the position of each tensor.
        packs: The files that hold the tensors. Tensors equal to a donor's are in the donor's packs.
        saved: The folder published from ``save_dir``, or None.
        search: The name of another search under the same root that owns the checkpoint, or None for this search.
        signature: Names and shapes of the network's layers (``Signature.text``); empty without tensors. It is part of
            the record, so that donors can be compared without reading their manifests.
    """

    manifest: Reference
    packs: tuple[Reference, ...]
    saved: SavedFolder | None = None
    search: str | None = None
    signature: str = ""

    @property
    def own_bytes(self) -> int:
        """The bytes that the trial itself published, without packs shared with donors."""
        stem = self.manifest.path.removeprefix("manifests/").removesuffix(".json")
        own = [pack for pack in self.packs if pack.path.startswith(f"packs/{stem}")]
        saved = 0 if self.saved is None else self.saved.bytes
        return saved + sum(reference.bytes for reference in (self.manifest, *own))

    def to_json(self) -> dict[str, object]:
        """Returns the data for a record."""
        return {
            "manifest": self.manifest.to_json(),
            "packs": [pack.to_json() for pack in self.packs],
            "saved": None if self.saved is None else self.saved.to_json(),
            "search": self.search,
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, data: object) -> Checkpoint:
        """Returns the checkpoint in a record.

        Raises:
            CorruptError: the data was not written by ``to_json``.
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
                raise CorruptError(f"{short_repr(stray[0])} is not in {folder}/")
        if found.search is not None and not ("/" not in found.search and is_path(found.search)):
            raise CorruptError(f"{short_repr(found.search)} is not the name of a search")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFolder:
    """The folder published from a trial's ``save_dir``; the manifest lists its files.

    Attributes:
        path: ``files/<stem>``. All files below it belong to this checkpoint.
        n_files: The number of files, at least 1.
        bytes: The sum of their sizes.
        on_disk: The bytes that they take on a disk with blocks of 4096 bytes.
    """

    path: str
    n_files: int
    bytes: int
    on_disk: int

    @classmethod
    def of(cls, path: str, saved: Sequence[Reference]) -> SavedFolder | None:
        """Returns the folder of these files, or None without files.

        Raises:
            CorruptError: a file is not below ``path``.
        """
        if stray := [file.path for file in saved if not file.path.startswith(f"{path}/")]:
            raise CorruptError(f"{short_repr(stray[0])} is not in {path}/")
        sizes = [file.bytes for file in saved]
        return cls(path=path, n_files=len(sizes), bytes=sum(sizes), on_disk=sum(map(on_disk, sizes))) if sizes else None

    def to_json(self) -> dict[str, object]:
        """Returns the data for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> SavedFolder:
        """Returns the folder in a record.

        Raises:
            CorruptError: the data was not written by ``to_json``.
        """
        fields = checked_fields(data, _KINDS)
        if not (_PATH.fullmatch(fields["path"]) and is_path(fields["path"])):
            raise CorruptError(f"{short_repr(fields['path'])} is not a published folder: must be files/<stem>")
        sizes = {key: checked_int(fields[key], key) for key in ("bytes", "on_disk")}
        return cls(path=fields["path"], n_files=checked_int(fields["n_files"], "n_files", 1), **sizes)


def checked_text(text: str) -> str:
    """Returns the signature in a record, after checking it.

    Raises:
        CorruptError: it is not a signature.
    """
    if not _TEXT.fullmatch(text):
        raise CorruptError(f"{text!r:.80} is not a signature")
    return text
