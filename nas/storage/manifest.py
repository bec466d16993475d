"""Manifests: where each tensor of a checkpoint lies. Flat, so that loading walks no chain of ancestors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.reference import Reference, checked_digest, references
from nas.core.validation import MAX_WHOLE, checked_fields, checked_int, short_repr
from nas.storage.record_format import FORMAT, decode_record, encode_record

MAX_DIMENSIONS = 64
"""Beyond, torch itself knows few operations."""
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
        """Returns the entry that a manifest holds; what it says of the pack is checked by whoever reads the pack.

        Raises:
            CorruptError: another key or type, or a number that no tensor has.
        """
        fields = checked_fields(data, _KINDS)
        shape = fields["shape"]
        for length in shape:
            if type(length) is not int or not 0 <= length <= MAX_WHOLE:
                raise CorruptError(f"shape must not be {short_repr(shape)}")
        if len(shape) > MAX_DIMENSIONS:
            raise CorruptError(f"shape must not have {len(shape)} dimensions; a tensor has at most {MAX_DIMENSIONS}")
        return cls(
            pack=fields["pack"],
            offset=checked_int(fields["offset"], "offset"),
            bytes=checked_int(fields["bytes"], "bytes"),
            dtype=fields["dtype"],
            shape=tuple(shape),
            digest=checked_digest(fields["digest"]),
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
            raise CorruptError(f"tensors lie in packs that are not listed: {short_repr(sorted(unknown))}")

    def to_bytes(self) -> bytes:
        """Returns the manifest as the bytes of its file.

        Raises:
            ConfigurationError: there are more tensors than a manifest takes.
        """
        try:
            return encode_record(self.to_json())
        except ValueError as error:
            raise ConfigurationError(
                f"{len(self.tensors)} tensors and {len(self.files)} files are too many for a manifest ({error}). Save "
                "fewer and larger ones."
            ) from error

    def to_json(self) -> dict[str, object]:
        """Returns the manifest as plain data."""
        return {
            "format": FORMAT,
            "tensors": {name: entry.to_json() for name, entry in self.tensors.items()},
            "packs": [pack.to_json() for pack in self.packs],
            "files": [file.to_json() for file in self.files],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Returns the manifest in the bytes of a file.

        Raises:
            CorruptError: anything but what ``to_bytes`` writes.
        """
        return cls.from_json(decode_record(data))

    @classmethod
    def from_json(cls, data: object) -> Manifest:
        """Returns the manifest of which ``to_json`` made this.

        Raises:
            CorruptError: it made no such thing.
        """
        fields = checked_fields(data, {"format": (int,), "tensors": (dict,), "packs": (list,), "files": (list,)})
        if fields["format"] != FORMAT:
            raise CorruptError(
                f"format {short_repr(fields['format'])} is not {FORMAT}, which this version of Heirloom reads"
            )
        return cls(
            tensors={name: _entry(name, entry) for name, entry in fields["tensors"].items()},
            packs=references(fields["packs"]),
            files=references(fields["files"]),
        )


def _entry(name: str, data: object) -> TensorEntry:
    try:
        return TensorEntry.from_json(data)
    except CorruptError as error:
        raise CorruptError(f"tensor {short_repr(name)}: {error}") from error
