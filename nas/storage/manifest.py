"""Manifests: the position of each tensor of a checkpoint.

A manifest names every pack that it needs, so loading does not follow ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.reference import Reference, checked_digest, references
from nas.core.validation import MAX_WHOLE, checked_fields, checked_int, short_repr
from nas.storage.record_format import FORMAT, decode_record, encode_record
from nas.storage.tensor_parts import TensorParts, check_parts

MAX_DIMENSIONS = 64
"""Maximum number of dimensions. torch supports few operations beyond it."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "pack": (str,),
    "offset": (int,),
    "bytes": (int,),
    "dtype": (str,),
    "shape": (list,),
    "digest": (str,),
}
_MANIFEST: Mapping[str, tuple[type, ...]] = {"format": (int,), "tensors": (dict,), "packs": (list,), "files": (list,)}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Position, type, shape and digest of one tensor.

    Attributes:
        pack: Path of the pack.
        offset: Offset from the beginning of the pack, in bytes.
        bytes: Size.
        dtype: torch's name, such as ``bfloat16``.
        shape: Length of each dimension; empty for a single number.
        digest: Digest of these bytes alone.
    """

    pack: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    digest: str

    def to_json(self) -> dict[str, object]:
        """Returns the entry as plain data."""
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
        """Returns the entry that ``to_json`` encoded. Its position is checked by ``check_entries``.

        Raises:
            CorruptError: a key or type is wrong, or a number is invalid for tensors.
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
    """Tensors of one checkpoint by name, their packs, and its files.

    Attributes:
        tensors: Position, type, shape and digest of each tensor.
        packs: The packs that hold them.
        files: The files that a problem saved beside them.
        parts: The heads of the tensors of attentions, where they are known; left out of the file if there are none.
    """

    tensors: Mapping[str, TensorEntry]
    packs: tuple[Reference, ...]
    files: tuple[Reference, ...]
    parts: Mapping[str, TensorParts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = {entry.pack for entry in self.tensors.values()} - {pack.path for pack in self.packs}
        if unknown:
            raise CorruptError(f"packs of tensors are not listed: {short_repr(sorted(unknown))}")
        check_parts(self.parts, {name: entry.shape for name, entry in self.tensors.items()})

    def to_bytes(self) -> bytes:
        """Returns the bytes of the manifest's file.

        Raises:
            ConfigurationError: there are too many tensors or files.
        """
        try:
            return encode_record(self.to_json(), is_large=True)
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
            **({"parts": {name: parts.to_json() for name, parts in self.parts.items()}} if self.parts else {}),
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Returns the manifest in the bytes of a file.

        Raises:
            CorruptError: ``to_bytes`` does not write such a file.
        """
        return cls.from_json(decode_record(data, is_large=True))

    @classmethod
    def from_json(cls, data: object) -> Manifest:
        """Returns the manifest that ``to_json`` encoded.

        Raises:
            CorruptError: it can't be decoded.
        """
        has_parts = isinstance(data, dict) and "parts" in data
        fields = checked_fields(data, {**_MANIFEST, **({"parts": (dict,)} if has_parts else {})})
        if fields["format"] != FORMAT:
            raise CorruptError(f"format {short_repr(fields['format'])}: must be {FORMAT} for this version of Heirloom")
        parts = fields.get("parts", {})
        return cls(
            tensors={name: _of_tensor(name, TensorEntry.from_json, entry) for name, entry in fields["tensors"].items()},
            packs=references(fields["packs"]),
            files=references(fields["files"]),
            parts={name: _of_tensor(name, TensorParts.from_json, own) for name, own in parts.items()},
        )


def _of_tensor(name: str, decode: Callable[[object], _T], data: object) -> _T:
    """Returns what is decoded; an error names the tensor."""
    try:
        return decode(data)
    except CorruptError as error:
        raise CorruptError(f"tensor {short_repr(name)}: {error}") from error
