"""Manifests: the position of each tensor of a checkpoint.

A manifest names every pack that it needs, so loading does not follow ancestors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.reference import Reference, check_distinct
from nas.core.validation import short_repr
from nas.storage.record_format import FORMAT, decode_record, encode_record
from nas.storage.record_values import Digest, Whole, checked_as, checked_exactly
from nas.storage.tensor_parts import TensorParts, check_parts

MAX_DIMENSIONS = 64
"""Maximum number of dimensions. torch supports few operations beyond it."""


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
    offset: Whole
    bytes: Whole
    dtype: str
    shape: Annotated[tuple[Whole, ...], Meta(max_length=MAX_DIMENSIONS)]
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Tensors of one checkpoint by name, their packs, and its files.

    Attributes:
        format: Format of the record.
        tensors: Position, type, shape and digest of each tensor.
        packs: The packs that hold them.
        files: The files that a problem saved beside them.
        parts: The heads of the tensors of attentions, where they are known; left out of the file if there are none.
    """

    format: Literal[2] = FORMAT
    tensors: Mapping[str, TensorEntry]
    packs: tuple[Reference, ...]
    files: tuple[Reference, ...]
    parts: Mapping[str, TensorParts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_distinct(self.packs)
        check_distinct(self.files)
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
        plain: dict[str, Any] = msgspec.to_builtins(self)
        if not self.parts:
            del plain["parts"]
        return plain

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
        return checked_exactly(cls, {"parts": {}} | checked_as(dict[str, Any], data))
