"""Checks of a manifest's entries, before packs are read or memory is allocated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from nas.core.errors import CorruptError
from nas.core.reference import Reference
from nas.core.validation import MAX_WHOLE, short_repr
from nas.storage.manifest import TensorEntry

MAX_SHARED = 16
"""Maximum number of tensors that share bytes, so that memory is bounded by bytes on disk."""
_DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}
"""Allowed names. Looking up others in torch would import code, such as ``torch.compiler``."""
_ITEM_BYTES: Mapping[str, int] = {name: dtype.itemsize for name, dtype in _DTYPES.items()}


def check_entries(entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]) -> None:
    """Checks that packs can hold these entries.

    Raises:
        CorruptError: an entry does not fit into its pack, ranges overlap, or too many tensors share a range.
    """
    for name, entry in entries.items():
        shape, size = entry.shape, entry.bytes
        if (
            entry.pack not in packs
            or size != math.prod(shape) * _ITEM_BYTES.get(entry.dtype, -1)
            or not 0 <= entry.offset <= packs[entry.pack].bytes - size
            or (shape and min(shape) < 1 and not _is_possible(shape))
        ):
            raise _refusal(name, entry, packs)
    n_names = Counter((entry.pack, entry.offset, entry.bytes, entry.digest) for entry in entries.values())
    for (pack, offset, n_bytes, _), n in n_names.items():
        if n > MAX_SHARED and n_bytes:
            raise CorruptError(f"{pack}: {n} tensors share the bytes at {offset}; at most {MAX_SHARED} may")
    for (pack, begin, n_bytes, _), (other, next_begin, _, _) in pairwise(sorted(n_names)):
        if pack == other and next_begin < begin + n_bytes:
            raise CorruptError(f"{pack}: tensors overlap at byte {next_begin}")


def _is_possible(shape: Sequence[int]) -> bool:
    """Returns whether a tensor can have the shape; it may have no elements."""
    return min(shape) >= 0 and math.prod(max(n, 1) for n in shape) <= MAX_WHOLE // 16


def _refusal(name: str, entry: TensorEntry, packs: Mapping[str, Reference]) -> CorruptError:
    tensor, shape = f"tensor {short_repr(name)}", short_repr(entry.shape)
    if entry.dtype not in _DTYPES:
        return CorruptError(f"{tensor}: {short_repr(entry.dtype)} is not a type of tensors")
    if entry.pack not in packs:
        return CorruptError(f"{tensor}: pack {short_repr(entry.pack)} is not listed")
    if entry.shape and min(entry.shape) < 1 and not _is_possible(entry.shape):
        return CorruptError(f"{tensor}: no tensor has the shape {shape}")
    return CorruptError(
        f"{tensor}: {entry.bytes} bytes from {entry.offset} on can't be a {entry.dtype} of shape {shape} in the "
        f"{packs[entry.pack].bytes} bytes of {entry.pack}"
    )


def dtype_of(entry: TensorEntry) -> torch.dtype:
    """Returns the type of a checked entry."""
    return _DTYPES[entry.dtype]
