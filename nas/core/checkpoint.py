"""References to a trial's published weights, as its record keeps them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from nas.core.errors import CorruptError
from nas.core.reference import Reference, is_path, on_disk, references
from nas.core.validation import checked_fields, shown, whole

_KINDS: Mapping[str, tuple[type, ...]] = {"path": (str,), "n_files": (int,), "bytes": (int,), "on_disk": (int,)}


_PATH = re.compile("files/[^/]+")


LETTERS = 6
"""Of a digest: 36 bits, so that a layer is mistaken for one of a million others once in 70,000."""


_TEXT = re.compile(rf"(?:[A-Za-z0-9_-]{{{LETTERS}}})*")


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
        """Returns the checkpoint that a record holds.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFolder:
    """What a trial left in its ``save_dir``, in short: its files are listed in the checkpoint's manifest.

    Attributes:
        path: ``files/<stem>``; whatever lies there belongs to this one checkpoint.
        n_files: How many there are, at least one.
        bytes: What they hold.
        on_disk: What they take on a common disk.
    """

    path: str
    n_files: int
    bytes: int
    on_disk: int

    @classmethod
    def of(cls, path: str, saved: Sequence[Reference]) -> SavedFolder | None:
        """Returns the folder of what ``publish_folder`` gave; None where that is nothing.

        Raises:
            CorruptError: a file lies elsewhere.
        """
        if stray := [file.path for file in saved if not file.path.startswith(f"{path}/")]:
            raise CorruptError(f"{shown(stray[0])} does not lie in {path}/")
        sizes = [file.bytes for file in saved]
        return cls(path=path, n_files=len(sizes), bytes=sum(sizes), on_disk=sum(map(on_disk, sizes))) if sizes else None

    def to_json(self) -> dict[str, object]:
        """Plain data for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> SavedFolder:
        """Returns the folder that a record names.

        Raises:
            CorruptError: anything but what ``to_json`` writes.
        """
        fields = checked_fields(data, _KINDS)
        if not (_PATH.fullmatch(fields["path"]) and is_path(fields["path"])):
            raise CorruptError(f"{shown(fields['path'])} is no folder that a trial saved: it must be files/<stem>")
        sizes = {key: whole(fields[key], key) for key in ("bytes", "on_disk")}
        return cls(path=fields["path"], n_files=whole(fields["n_files"], "n_files", 1), **sizes)


def checked_text(text: str) -> str:
    """Returns the text of a signature that a record holds.

    Raises:
        CorruptError: it is none.
    """
    if not _TEXT.fullmatch(text):
        raise CorruptError(f"{text!r:.80} is no signature")
    return text
