"""References to the published weights of a trial, as stored in its record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from nas.core.errors import CorruptError
from nas.core.reference import Reference, check_distinct, is_path, on_disk
from nas.core.validation import MAX_WHOLE, short_repr

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "packs", tuple(map(_shared, self.packs)))
        if not _TEXT.fullmatch(self.signature):
            raise CorruptError(f"{self.signature!r:.80} is not a signature")
        check_distinct(self.packs)
        for folder, listed in (("manifests", (self.manifest,)), ("packs", self.packs)):
            if stray := [file.path for file in listed if not file.path.startswith(f"{folder}/")]:
                raise CorruptError(f"{short_repr(stray[0])} is not in {folder}/")
        if self.search is not None and not ("/" not in self.search and is_path(self.search)):
            raise CorruptError(f"{short_repr(self.search)} is not the name of a search")

    @property
    def own_bytes(self) -> int:
        """The bytes that the trial itself published, without packs shared with donors."""
        stem = self.manifest.path.removeprefix("manifests/").removesuffix(".json")
        own = [pack for pack in self.packs if pack.path.startswith(f"packs/{stem}")]
        saved = 0 if self.saved is None else self.saved.bytes
        return saved + sum(reference.bytes for reference in (self.manifest, *own))

    def to_json(self) -> dict[str, object]:
        """Returns the data for a record."""
        return asdict(self)


@lru_cache(maxsize=1 << 14)
def _shared(pack: Reference) -> Reference:
    """Returns one of equal references, because many records of a lineage name the same packs."""
    return pack


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

    def __post_init__(self) -> None:
        if not (_PATH.fullmatch(self.path) and is_path(self.path)):
            raise CorruptError(f"{short_repr(self.path)} is not a published folder: must be files/<stem>")
        sizes = (self.n_files, self.bytes, self.on_disk)
        if self.n_files < 1 or min(sizes) < 0 or max(sizes) > MAX_WHOLE:
            raise CorruptError(f"{self.path}: {short_repr(sizes)} can't be the number and sizes of its files")

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
