"""Packs: the tensors of one save in one file, laid out as safetensors does, written from and read into their memory.

The safetensors library loads a pack. It has no place for two names of one tensor, nor for some types: the names of tied
tensors stand in the header's ``__metadata__`` (name: the name that is stored), and other types as plain bytes.
Nothing is ever unpickled or mapped into memory (over NFS a lost page would kill the process).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import torch

from nas.errors import ConfigurationError, CorruptError
from nas.store.files import Files, Span
from nas.store.manifest import TensorEntry
from nas.store.reference import Reference, digest_of

__all__ = ["TensorEntry", "check_entries", "read_into", "read_tensors", "stream_tensors", "write_pack"]

MAX_PACKS = 16
"""In how many packs the tensors of one checkpoint may lie."""
_BATCH = 32 << 20
"""Bytes of memory that reading may take beyond that of the tensors that are read into."""

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


class _Own(NamedTuple):
    """A tensor that this pack stores."""

    name: str
    data: memoryview
    dtype: str | None
    alignment: int


def write_pack(
    files: Files, path: str, tensors: Mapping[str, torch.Tensor], *, known: Iterable[TensorEntry] = ()
) -> tuple[Reference | None, dict[str, TensorEntry]]:
    """Publishes the tensors, and says where each of them lies; equal ones (tied weights) are stored once.

    Args:
        files: The root.
        path: A name that is never used again.
        tensors: Of any device, strides and plain type; one in contiguous main memory is written from there.
        known: Entries of other packs (a donor's): an equal tensor is not stored again, and gets their entry. Where the
            tensors would then lie in more than ``MAX_PACKS`` packs, all of them are stored.

    Returns:
        The pack (None where every tensor is known), and the entries by name.

    Raises:
        ConfigurationError: something that is no plain tensor (an object, sparse, quantised, without data).
    """
    keys: dict[str, _Key] = {}
    all_own: dict[_Key, _Own] = {}
    for name, tensor in tensors.items():
        data = _memory(name, tensor)
        keys[name] = key = (digest_of(data), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        all_own.setdefault(key, _Own(name, data, _SAFETENSORS_NAMES.get(tensor.dtype), tensor.dtype.itemsize))
    places = {(entry.digest, entry.dtype, entry.shape): entry for entry in known}
    own = {key: stored for key, stored in all_own.items() if key not in places}
    if len({places[key].pack for key in all_own.keys() & places.keys()}) + bool(own) > MAX_PACKS:
        places, own = {}, all_own
    if tensors and not own:
        return None, {name: places[key] for name, key in keys.items()}
    # as safetensors does: the widest types first, so that every tensor is aligned
    order = sorted(own, key=lambda key: (-own[key].alignment, own[key].name))
    ends = list(accumulate((own[key].data.nbytes for key in order), initial=0))
    aliases = {name: own[key].name for name, key in keys.items() if key in own and own[key].name != name}
    head = _header(order, own, ends, aliases)
    reference = files.publish(path, [head, *(own[key].data for key in order)])
    for (digest, dtype_name, size), begin, end in zip(order, ends, ends[1:], strict=False):
        places[digest, dtype_name, size] = TensorEntry(
            pack=path, offset=len(head) + begin, bytes=end - begin, dtype=dtype_name, shape=size, digest=digest
        )
    return reference, {name: places[key] for name, key in keys.items()}


def _header(order: Sequence[_Key], own: Mapping[_Key, _Own], ends: Sequence[int], aliases: Mapping[str, str]) -> bytes:
    """What stands before the tensors: 8 bytes of length, JSON, and spaces up to a multiple of 8."""
    header: dict[str, object] = {"__metadata__": aliases} if aliases else {}
    for key, begin, end in zip(order, ends, ends[1:], strict=False):
        dtype, shape = (own[key].dtype, list(key[2])) if own[key].dtype else ("U8", [end - begin])
        header[own[key].name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def read_tensors(
    files: Files, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> dict[str, torch.Tensor]:
    """The tensors in main memory of their own, each one verified by its digest.

    Args:
        files: The root.
        entries: Where each tensor lies.
        packs: The packs by path; those that no entry names are not read.

    Raises:
        CorruptError: a pack is not what its reference promises, or an entry says what its pack can't hold.
        MissingError: a pack is not there.
    """
    check_entries(entries, packs)
    for path in sorted({entry.pack for entry in entries.values()}):
        files.check_size(packs[path])  # before memory is made for it
    found = {name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype)) for name, entry in entries.items()}
    read_into(files, entries, packs, found)
    return found


def read_into(
    files: Files,
    entries: Mapping[str, TensorEntry],
    packs: Mapping[str, Reference],
    targets: Mapping[str, torch.Tensor],
) -> None:
    """Reads tensors straight into the memory of others of their types and shapes; each is verified by its digest.

    A target on another device, or with strides, is filled by way of main memory, 32 MB after 32 MB. What the targets
    hold counts only when this function returns.

    Args:
        files: The root.
        entries: Where each tensor lies.
        packs: The packs by path.
        targets: One for each entry.

    Raises:
        CorruptError, MissingError: as ``read_tensors``.
        ConfigurationError: a target has another type or shape.
    """
    check_entries(entries, packs)
    for name, entry in entries.items():
        target = targets[name]
        if (str(target.dtype), tuple(target.shape)) != (f"torch.{entry.dtype}", entry.shape):
            raise ConfigurationError(
                f"tensor {name!r} is a {entry.dtype} of shape {entry.shape}; it can't be read into a {target.dtype} of "
                f"shape {tuple(target.shape)}"
            )
    for batch in _batches(entries, {name for name in entries if _own_memory(targets[name]) is None}):
        _read_batch(files, {name: entries[name] for name in batch}, packs, targets)


def stream_tensors(
    files: Files, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors by name, one after the other, in little memory: each counts only until the next one.

    Raises:
        CorruptError, MissingError: as ``read_tensors``.
    """
    for batch in _batches(entries, entries):
        yield from read_tensors(files, {name: entries[name] for name in batch}, packs).items()


def _batches(entries: Mapping[str, TensorEntry], in_need: Container[str]) -> Iterator[list[str]]:
    """The names in the order of the packs, in batches whose members in need of memory need 32 MB at most, or one."""
    batch: list[str] = []
    n_bytes = 0
    for name in sorted(entries, key=lambda name: (entries[name].pack, entries[name].offset)):
        need = entries[name].bytes if name in in_need else 0
        if batch and n_bytes + need > _BATCH:
            yield batch
            batch, n_bytes = [], 0
        batch.append(name)
        n_bytes += need
    if batch:
        yield batch


def _read_batch(
    files: Files,
    entries: Mapping[str, TensorEntry],
    packs: Mapping[str, Reference],
    targets: Mapping[str, torch.Tensor],
) -> None:
    spans: dict[str, dict[tuple[int, int, str], Span]] = {}
    later: list[tuple[str, Callable[[], torch.Tensor]]] = []
    for name, entry in entries.items():
        inside = spans.setdefault(entry.pack, {})
        key = (entry.offset, entry.bytes, entry.digest)
        memory = _own_memory(targets[name])
        if key not in inside and memory is not None:
            inside[key] = Span(entry.offset, entry.digest, memory)
            continue
        if key not in inside:
            inside[key] = Span(entry.offset, entry.digest, memoryview(bytearray(entry.bytes)))
        later.append((name, partial(_tensor, inside[key].memory, entry)))
    for path, inside in spans.items():
        files.read_spans(packs[path], list(inside.values()))
    with torch.no_grad():
        for name, tensor in later:
            targets[name].copy_(tensor())


def _tensor(memory: memoryview, entry: TensorEntry) -> torch.Tensor:
    """The bytes as the tensor that they are."""
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    return torch.frombuffer(memory, dtype=getattr(torch, entry.dtype)).reshape(entry.shape)


def _own_memory(tensor: torch.Tensor) -> memoryview | None:
    """The tensor's own bytes, if they lie in row-major order in main memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    if not tensor.is_contiguous():
        return None
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


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


def check_entries(entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]) -> None:
    """Refuses, before anything is read or allocated, entries that their packs can't hold.

    Raises:
        CorruptError: such an entry, by name.
    """
    for name, entry in entries.items():
        _check(name, entry, packs)


def _check(name: str, entry: TensorEntry, packs: Mapping[str, Reference]) -> None:
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
