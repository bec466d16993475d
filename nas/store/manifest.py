"""Manifests: where each tensor of a checkpoint lies. Flat, so that loading walks no chain of ancestors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.errors import CorruptError
from nas.store.reference import Reference, checked_fields

FORMAT = 1
_KINDS: Mapping[str, tuple[type, ...]] = {
    "pack": (str,),
    "offset": (int,),
    "bytes": (int,),
    "dtype": (str,),
    "shape": (list,),
    "digest": (str,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor's bytes lie, and what they are.

    Attributes:
        pack: The path of the pack.
        offset: In bytes, from the beginning of the pack's file.
        bytes: Size.
        dtype: torch's name: ``bfloat16``.
        shape: One length a dimension; none for a single number.
        digest: Of these bytes alone.
    """

    pack: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    digest: str

    def to_json(self) -> dict[str, object]:
        """Plain data for a manifest."""
        return {
            "pack": self.pack,
            "offset": self.offset,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, data: object) -> TensorEntry:
        """The entry that a manifest holds; what it says of the pack is checked by whoever reads the pack.

        Raises:
            CorruptError: another key or type.
        """
        fields = checked_fields(data, _KINDS)
        for length in fields["shape"]:
            if type(length) is not int:
                raise CorruptError(f"shape must not be {fields['shape']!r:.80}")
        return cls(
            pack=fields["pack"],
            offset=fields["offset"],
            bytes=fields["bytes"],
            dtype=fields["dtype"],
            shape=tuple(fields["shape"]),
            digest=fields["digest"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors of one checkpoint by name, the packs in which they lie, and the files beside them."""

    tensors: Mapping[str, TensorEntry]
    packs: tuple[Reference, ...]
    files: tuple[Reference, ...]

    def __post_init__(self) -> None:
        unknown = {entry.pack for entry in self.tensors.values()} - {pack.path for pack in self.packs}
        if unknown:
            raise CorruptError(f"tensors lie in packs that are not listed: {sorted(unknown)}")

    def to_bytes(self) -> bytes:
        """The manifest as the bytes of its file."""
        data: dict[str, Any] = {
            "format": FORMAT,
            "tensors": {name: entry.to_json() for name, entry in self.tensors.items()},
            "packs": [pack.to_json() for pack in self.packs],
            "files": [file.to_json() for file in self.files],
        }
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The manifest in a file's bytes.

        Raises:
            CorruptError: anything but what ``to_bytes`` writes.
        """
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"not JSON ({error})") from error
        fields = checked_fields(parsed, {"format": (int,), "tensors": (dict,), "packs": (list,), "files": (list,)})
        if fields["format"] != FORMAT:
            raise CorruptError(f"format {fields['format']} is not {FORMAT}, which this version of Heirloom reads")
        return cls(
            tensors={name: TensorEntry.from_json(entry) for name, entry in fields["tensors"].items()},
            packs=references(fields["packs"]),
            files=references(fields["files"]),
        )


def references(data: list[object]) -> tuple[Reference, ...]:
    """The references of a JSON array.

    Raises:
        CorruptError: one is none, or two name the same file.
    """
    found = tuple(Reference.from_json(item) for item in data)
    if len({reference.path for reference in found}) != len(found):
        raise CorruptError(f"a file is listed twice: {sorted(reference.path for reference in found)}")
    return found
