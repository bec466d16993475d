"""Packs: the tensors of one save in one file, laid out as safetensors does, written from and read into their memory.

The safetensors library loads a pack. It has no place for two names of one tensor, nor for some types: the names of tied
tensors stand in the header's ``__metadata__`` (name: the name that is stored), and other types as plain bytes.
Nothing is ever unpickled or mapped into memory (over NFS a lost page would kill the process).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeAlias

import torch

from nas.core.errors import ConfigurationError
from nas.core.reference import Reference
from nas.storage.background import Background, run_in_parallel
from nas.storage.blobs import BlobStore
from nas.storage.manifest import MAX_DIMENSIONS, TensorEntry
from nas.storage.manifest_checks import MAX_NAMES, check_entries, dtype_of
from nas.storage.verified import Buffer, ByteRange, digest_of

__all__ = ["TensorEntry", "equal_tensors", "read_into", "read_tensors", "stream_tensors", "write_pack"]

MAX_PACKS = 16
"""In how many packs the tensors of one checkpoint may lie."""
_SMALL = 1 << 16
"""Bytes of a tensor that is hashed before anything is written; a larger one is, without donors, while it is written."""
_MUCH = 4 << 20
"""Bytes that a thread hashes at a time, beside the one that writes; and of a pack that begins at a page."""
_ALIGNMENT = 64
_SPARE: list[torch.Tensor] = []
"""Memory for the next stream: getting it anew from the system costs as much as reading into it."""
_PAGE = 4096
"""File systems take what begins at a page's beginning faster."""

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

_Contents: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Digest (or place in memory), type and shape: what makes two tensors equal."""
_Key: TypeAlias = tuple[_Contents, int]
"""And which of several places it has where more than ``MAX_NAMES`` are equal."""


def write_pack(
    files: BlobStore, path: str, tensors: Mapping[str, torch.Tensor], *, known: Iterable[TensorEntry] = ()
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
        ConfigurationError: something that is no plain tensor (an object, sparse, quantized, without data).
    """
    places = _places(known)
    memory = {name: _memory(name, tensor) for name, tensor in tensors.items()}
    digests = _digests({name: data for name, data in memory.items() if places or data.nbytes <= _SMALL})
    keys = _keys({name: _contents(tensor, digests.get(name)) for name, tensor in tensors.items()})
    own = {key: name for name, key in reversed(keys.items()) if key not in places}  # of equal ones the first is stored
    if len({places[key].pack for key in keys.values() if key in places}) + bool(own) > MAX_PACKS:
        places, own = {}, {key: name for name, key in reversed(keys.items())}
    if tensors and not own:
        return None, {name: places[key] for name, key in keys.items()}
    # as safetensors does: the widest types first, so that every tensor is aligned
    order = sorted(own, key=lambda key: (-tensors[own[key]].dtype.itemsize, own[key]))
    ends = list(accumulate((memory[own[key]].nbytes for key in order), initial=0))
    aliases = {name: own[key] for name, key in keys.items() if key in own and own[key] != name}
    head = _header({own[key]: tensors[own[key]] for key in order}, ends, aliases)
    late: dict[str, str] = {}

    def hash_late(names: list[str]) -> None:
        for name in names:
            late[name] = digest_of(memory[name])

    def chunks(background: Background) -> Iterator[Buffer]:
        yield head
        group: list[str] = []
        n_bytes = 0
        for name in map(own.__getitem__, order):
            if name not in digests:
                group.append(name)
                n_bytes += memory[name].nbytes
            if n_bytes >= _MUCH:
                background.run(n_bytes, hash_late, group)
                group, n_bytes = [], 0
            yield memory[name]
        background.run(n_bytes, hash_late, group)

    with Background() as background:
        reference = files.publish(path, chunks(background))
    digests |= late
    for key, begin, end in zip(order, ends, ends[1:], strict=False):
        _, dtype, shape = key[0]
        places[key] = TensorEntry(
            pack=path,
            offset=len(head) + begin,
            bytes=end - begin,
            dtype=dtype,
            shape=shape,
            digest=digests[own[key]],
        )
    return reference, {name: places[key] for name, key in keys.items()}


def _digests(memory: Mapping[str, memoryview]) -> dict[str, str]:
    """By name."""
    digests: dict[str, str] = {}

    def work(name: str) -> None:
        digests[name] = digest_of(memory[name])

    run_in_parallel(memory, sum(data.nbytes for data in memory.values()), work)
    return digests


def _places(known: Iterable[TensorEntry]) -> dict[_Key, TensorEntry]:
    """Where tensors lie already."""
    n_places: Counter[_Contents] = Counter()
    places: dict[_Key, TensorEntry] = {}
    for entry in dict.fromkeys(known):
        contents = (entry.digest, entry.dtype, entry.shape)
        places[contents, n_places[contents]] = entry
        n_places[contents] += 1
    return places


def _keys(contents: Mapping[str, _Contents]) -> dict[str, _Key]:
    """By name: the same for up to ``MAX_NAMES`` equal tensors, which are stored once."""
    n_names: Counter[_Contents] = Counter()
    keys: dict[str, _Key] = {}
    for name, found in contents.items():
        keys[name] = (found, n_names[found] // MAX_NAMES)
        n_names[found] += 1
    return keys


def _contents(tensor: torch.Tensor, digest: str | None) -> _Contents:
    """Equal for equal tensors: by their contents where these are hashed, else by their memory."""
    if digest is None:
        views = (tensor.is_conj(), tensor.is_neg())  # torch does both when it reads: the memory is the same
        digest = f"{tensor.device} {tensor.data_ptr()} {tensor.stride()} {views}"
    return digest, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _header(tensors: Mapping[str, torch.Tensor], ends: Sequence[int], aliases: Mapping[str, str]) -> bytes:
    """What stands before the tensors: 8 bytes of length, JSON, and spaces up to where they are aligned."""
    header: dict[str, object] = {"__metadata__": aliases} if aliases else {}
    for (name, tensor), begin, end in zip(tensors.items(), ends, ends[1:], strict=False):
        dtype = _SAFETENSORS_NAMES.get(tensor.dtype)
        shape = list(tensor.shape) if dtype else [end - begin]
        header[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    alignment = _PAGE if ends[-1] >= _MUCH else 8
    head += b" " * (-(len(head) + 8) % alignment)
    return len(head).to_bytes(8, "little") + head


def equal_tensors(entries: Mapping[str, TensorEntry], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of the tensors that hold, byte for byte, what lies at the entry of their name; nothing is read."""
    alike = {
        name: _memory(name, tensors[name]) for name, entry in entries.items() if _is_like(tensors.get(name), entry)
    }
    digests = _digests(alike)
    return {name: tensors[name] for name in alike if digests[name] == entries[name].digest}


def _is_like(tensor: torch.Tensor | None, entry: TensorEntry) -> bool:
    """Returns whether it is a plain tensor of the entry's type and shape."""
    return (
        isinstance(tensor, torch.Tensor)
        and (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{entry.dtype}", entry.shape)
        and tensor.layout == torch.strided
        and not tensor.is_meta
    )


def read_tensors(
    files: BlobStore, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> dict[str, torch.Tensor]:
    """Returns the tensors in main memory of their own, each one verified by its digest.

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
    found = {name: torch.empty(entry.shape, dtype=dtype_of(entry)) for name, entry in entries.items()}
    read_into(files, entries, packs, found)
    return found


def read_into(
    files: BlobStore,
    entries: Mapping[str, TensorEntry],
    packs: Mapping[str, Reference],
    targets: Mapping[str, torch.Tensor],
) -> None:
    """Reads tensors straight into the memory of others of their types and shapes; each is verified by its digest.

    A target on another device, or with strides, is filled by way of main memory, in small batches. What the targets
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
    for batch in _batches(entries, {n for n in entries if _own_memory(targets[n]) is None}, files.batch_bytes):
        _read_batch(files, {name: entries[name] for name in batch}, packs, targets)


def stream_tensors(
    files: BlobStore, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors by name, one after the other, in little memory: each counts only until the next one.

    Raises:
        CorruptError, MissingError: as ``read_tensors``.
    """
    check_entries(entries, packs)
    for path in sorted({entry.pack for entry in entries.values()}):
        files.check_size(packs[path])
    memory = _SPARE.pop() if _SPARE else torch.empty(0, dtype=torch.uint8)
    try:
        for batch in _batches(entries, entries, files.batch_bytes):
            ends = list(accumulate((entries[n].bytes + -entries[n].bytes % _ALIGNMENT for n in batch), initial=0))
            if ends[-1] > memory.numel():
                memory = torch.empty(max(ends[-1], files.batch_bytes), dtype=torch.uint8)
            targets = {name: _part(memory, begin, entries[name]) for name, begin in zip(batch, ends, strict=False)}
            _read_batch(files, {name: entries[name] for name in batch}, packs, targets)
            yield from targets.items()
    finally:
        if memory.numel() <= files.batch_bytes and not _SPARE:
            _SPARE.append(memory)


def _part(memory: torch.Tensor, begin: int, entry: TensorEntry) -> torch.Tensor:
    part = memory[begin : begin + entry.bytes]
    return part.view(dtype_of(entry)).reshape(entry.shape)


def _batches(entries: Mapping[str, TensorEntry], in_need: Container[str], most: int) -> Iterator[list[str]]:
    """The names in the order of the packs, in batches of which those in need of memory need no more than that."""
    batch: list[str] = []
    n_bytes = 0
    for name in sorted(entries, key=lambda name: (entries[name].pack, entries[name].offset)):
        need = entries[name].bytes if name in in_need else 0
        if batch and n_bytes + need > most:
            yield batch
            batch, n_bytes = [], 0
        batch.append(name)
        n_bytes += need
    if batch:
        yield batch


def _read_batch(
    files: BlobStore,
    entries: Mapping[str, TensorEntry],
    packs: Mapping[str, Reference],
    targets: Mapping[str, torch.Tensor],
) -> None:
    spans: dict[str, dict[tuple[int, int, str], ByteRange]] = {}
    later: list[tuple[str, Callable[[], torch.Tensor]]] = []
    for name, entry in entries.items():
        inside = spans.setdefault(entry.pack, {})
        key = (entry.offset, entry.bytes, entry.digest)
        memory = _own_memory(targets[name])
        if key not in inside and memory is not None:
            inside[key] = ByteRange(entry.offset, entry.digest, memory)
            continue
        if key not in inside:
            inside[key] = ByteRange(entry.offset, entry.digest, memoryview(bytearray(entry.bytes)))
        later.append((name, partial(_tensor, inside[key].memory, entry)))
    for path, inside in spans.items():
        files.read_ranges(packs[path], list(inside.values()))
    with torch.no_grad():
        for name, tensor in later:
            targets[name].copy_(tensor())


def _tensor(memory: memoryview, entry: TensorEntry) -> torch.Tensor:
    """Returns the bytes as the tensor that they are."""
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=dtype_of(entry))
    return torch.frombuffer(memory, dtype=dtype_of(entry)).reshape(entry.shape)


def _own_memory(tensor: torch.Tensor) -> memoryview | None:
    """Returns the tensor's own bytes, if they lie in row-major order in main memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    if not tensor.is_contiguous():
        return None
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _memory(name: str, tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's bytes in row-major order; a copy only where they do not lie so in main memory already."""
    if name == "__metadata__" or not isinstance(tensor, torch.Tensor):
        raise ConfigurationError(
            f"{name!r} ({type(tensor).__name__}) can't be saved: only tensors have a place in a pack"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantized" if tensor.is_quantized else "without data" if tensor.is_meta else str(tensor.layout)
        raise ConfigurationError(f"tensor {name!r} ({kind}) can't be saved: make it a plain dense tensor first")
    if tensor.dim() > MAX_DIMENSIONS:
        raise ConfigurationError(
            f"tensor {name!r} has {tensor.dim()} dimensions; one that is saved has at most {MAX_DIMENSIONS}: reshape it"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
