"""Packs: the tensors of one save in one file, laid out as safetensors does, written from and read into their memory.

The safetensors library loads a pack. It has no place for two names of one tensor, nor for some types: the names of tied
tensors stand in the header's ``__metadata__`` (name: the name that is stored), and other types as plain bytes.
Nothing is ever unpickled or mapped into memory (over NFS a lost page would kill the process).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import torch

from nas.errors import ConfigurationError, CorruptError
from nas.store.files import Files
from nas.store.manifest import TensorEntry
from nas.store.reference import Reference, digest_of, scratch

__all__ = ["TensorEntry", "read_tensors", "write_pack"]

_SAFETENSORS_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_MAX_LENGTH = 2**63 - 1
_Key: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Digest, type and shape: what makes two tensors equal."""
_Span: TypeAlias = tuple[int, int]
"""Offset and size of a tensor in its pack."""


class _Own(NamedTuple):
    """A tensor that this pack stores."""

    name: str
    data: memoryview
    dtype: str | None
    alignment: int


def write_pack(
    files: Files, path: str, tensors: Mapping[str, torch.Tensor], *, known: Iterable[TensorEntry] = ()
) -> tuple[Reference, dict[str, TensorEntry]]:
    """Publishes the tensors, and says where each of them lies; equal ones (tied weights) are stored once.

    Args:
        files: The root.
        path: A name that is never used again.
        tensors: Of any device, strides and plain type; one in contiguous main memory is written from there.
        known: Entries of other packs (a donor's): an equal tensor is not stored again, and gets their entry.

    Raises:
        ConfigurationError: something that is no plain tensor (an object, sparse, quantised, without data).
    """
    places = {(entry.digest, entry.dtype, entry.shape): entry for entry in known}
    keys: dict[str, _Key] = {}
    own: dict[_Key, _Own] = {}
    for name, tensor in tensors.items():
        data = _memory(name, tensor)
        keys[name] = key = (digest_of(data), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        if key not in places and key not in own:
            own[key] = _Own(name, data, _SAFETENSORS_NAMES.get(tensor.dtype), tensor.dtype.itemsize)
    # as safetensors does: the widest types first, so that every tensor is aligned
    order = sorted(own, key=lambda key: (-own[key].alignment, own[key].name))
    header: dict[str, object] = {}
    if aliases := {name: own[key].name for name, key in keys.items() if key in own and own[key].name != name}:
        header["__metadata__"] = aliases
    ends = list(accumulate((own[key].data.nbytes for key in order), initial=0))
    for key, begin, end in zip(order, ends, ends[1:], strict=False):
        dtype, shape = (own[key].dtype, list(key[2])) if own[key].dtype else ("U8", [end - begin])
        header[own[key].name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    reference = files.publish(path, [len(head).to_bytes(8, "little") + head, *(own[key].data for key in order)])
    for (digest, dtype_name, size), begin, end in zip(order, ends, ends[1:], strict=False):
        places[digest, dtype_name, size] = TensorEntry(
            pack=path, offset=8 + len(head) + begin, bytes=end - begin, dtype=dtype_name, shape=size, digest=digest
        )
    return reference, {name: places[key] for name, key in keys.items()}


def read_tensors(
    files: Files, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> dict[str, torch.Tensor]:
    """The tensors in main memory of their own, from packs whose size and digest are verified.

    Args:
        files: The root.
        entries: Where each tensor lies.
        packs: The packs by path; those that no entry names are not read.

    Raises:
        CorruptError: a pack is not what its reference promises, or an entry says what its pack can't hold.
        MissingError: a pack is not there.
    """
    for name, entry in entries.items():
        _check(name, entry, packs)
    found: dict[str, torch.Tensor] = {}
    for path in sorted({entry.pack for entry in entries.values()}):
        inside = {name: entry for name, entry in entries.items() if entry.pack == path}
        memory = _read_spans(files, packs[path], sorted({(entry.offset, entry.bytes) for entry in inside.values()}))
        used: set[_Span] = set()
        for name, entry in inside.items():
            span = (entry.offset, entry.bytes)
            own = memory[span].clone() if span in used else memory[span]
            used.add(span)
            found[name] = own.view(getattr(torch, entry.dtype)).reshape(entry.shape)
    return {name: found[name] for name in entries}


def _read_spans(files: Files, pack: Reference, spans: list[_Span]) -> dict[_Span, torch.Tensor]:
    """The bytes of each span (offset, size) of a pack, all of which is read and verified."""
    found: dict[_Span, torch.Tensor] = {}
    for (begin, size), (after, _) in pairwise(spans):
        if after < begin + size:
            raise CorruptError(f"{pack.path}: two tensors can't share a part of their bytes, at {after}")

    def buffers() -> Iterator[memoryview]:
        end = 0
        for begin, size in spans:
            yield from scratch(begin - end)
            found[begin, size] = torch.empty(size, dtype=torch.uint8)
            yield found[begin, size].numpy().data
            end = begin + size
        yield from scratch(pack.bytes - end)

    files.read_into(pack, buffers)
    return found


def _memory(name: str, tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in row-major order; a copy only where they do not lie so in main memory already."""
    if name == "__metadata__" or not isinstance(tensor, torch.Tensor):
        raise ConfigurationError(
            f"{name!r} ({type(tensor).__name__}) can't be saved: only tensors have a place in a pack"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantised" if tensor.is_quantized else "without data" if tensor.is_meta else str(tensor.layout)
        raise ConfigurationError(f"tensor {name!r} ({kind}) can't be saved: make it a plain dense tensor first")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def _check(name: str, entry: TensorEntry, packs: Mapping[str, Reference]) -> None:
    """Refuses, before anything is read or allocated, an entry that its pack can't hold."""
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype) or entry.dtype.startswith("q"):
        raise CorruptError(f"tensor {name!r}: {entry.dtype!r:.80} is no type of a tensor")
    if entry.pack not in packs:
        raise CorruptError(f"tensor {name!r}: its pack {entry.pack!r:.80} is not listed")
    if not all(0 <= length <= _MAX_LENGTH for length in entry.shape):
        raise CorruptError(f"tensor {name!r}: no tensor has the shape {entry.shape!r:.80}")
    size = packs[entry.pack].bytes
    if math.prod(entry.shape) * dtype.itemsize != entry.bytes or not 0 <= entry.offset <= size - entry.bytes:
        raise CorruptError(
            f"tensor {name!r}: {entry.bytes} bytes from {entry.offset} on can't be a {entry.dtype} of shape "
            f"{entry.shape!r:.80} in the {size} bytes of {entry.pack}"
        )
