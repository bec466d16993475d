"""Packs: safetensors files that hold the tensors of one save.

The safetensors library can load a pack. The format allows one name per tensor. Names of tied tensors are in the
header's ``__metadata__``, each with the stored name. Types that the format does not have are stored as bytes. Nothing
is unpickled, and nothing is mapped into memory, because a lost page on NFS would kill the process.
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
from nas.storage.manifest_checks import MAX_SHARED, check_entries, dtype_of
from nas.storage.verified import Buffer, ByteRange, digest_of

MAX_PACKS = 16
"""Maximum number of packs of one checkpoint."""
_HASHED_FIRST_BYTES = 1 << 16
"""Maximum bytes of a tensor that is hashed before writing; others are hashed meanwhile."""
_LARGE_BYTES = 4 << 20
"""Bytes hashed per call on the second thread; minimum size of a page-aligned pack."""
_ALIGNMENT = 64
_spare_memory: list[torch.Tensor] = []
"""Memory of the last stream, reused because new memory costs as much as reading into it."""
_PAGE = 4096
"""Alignment that makes file systems faster."""

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
"""Digest (or position in memory), type and shape, which are equal for equal tensors."""
_Key: TypeAlias = tuple[_Contents, int]
"""Contents, and the number of the copy if more than ``MAX_SHARED`` tensors are equal."""


def write_pack(
    files: BlobStore,
    path: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    known: Iterable[TensorEntry] = (),
    shares: bool = True,
) -> tuple[Reference | None, dict[str, TensorEntry]]:
    """Publishes tensors in a pack.

    Args:
        files: The search's root.
        path: Path of the pack, which must be new.
        tensors: Tensors of any device, strides and plain type. Contiguous main memory is written without a copy.
        known: Entries of donors' packs. A tensor equal to one of them is not stored again. If this would need more than
            ``MAX_PACKS`` packs, all tensors are stored.
        shares: Whether equal tensors, such as tied weights, are stored once. Other programs then miss their names.

    Returns:
        The pack (None if every tensor is known), and the entries by name.

    Raises:
        ConfigurationError: a value is not a plain tensor with data (an object, sparse, quantized).
    """
    places = _places(known)  # grows by the new entries
    memory = {name: _memory(name, tensor) for name, tensor in tensors.items()}
    digests = _digests({name: data for name, data in memory.items() if places or data.nbytes <= _HASHED_FIRST_BYTES})
    keys = _keys({name: _contents(tensor, digests.get(name) if shares else name) for name, tensor in tensors.items()})
    own = {key: name for name, key in reversed(keys.items()) if key not in places}  # stores the first of equal ones
    if len({places[key].pack for key in keys.values() if key in places}) + bool(own) > MAX_PACKS:
        places, own = {}, {key: name for name, key in reversed(keys.items())}
    if tensors and not own:
        return None, {name: places[key] for name, key in keys.items()}
    # widest types first, as safetensors does, so that every tensor is aligned
    order = sorted(own, key=lambda key: (-tensors[own[key]].dtype.itemsize, own[key]))
    ends = list(accumulate((memory[own[key]].nbytes for key in order), initial=0))
    aliases = {name: own[key] for name, key in keys.items() if key in own and own[key] != name}
    head = _header({own[key]: tensors[own[key]] for key in order}, ends, aliases)
    late_digests: dict[str, str] = {}

    def hash_late(names: list[str]) -> None:
        for name in names:
            late_digests[name] = digest_of(memory[name])

    def chunks(background: Background) -> Iterator[Buffer]:
        yield head
        group: list[str] = []
        n_bytes = 0
        for name in map(own.__getitem__, order):
            if name not in digests:
                group.append(name)
                n_bytes += memory[name].nbytes
            if n_bytes >= _LARGE_BYTES:
                background.run(n_bytes, hash_late, group)
                group, n_bytes = [], 0
            yield memory[name]
        background.run(n_bytes, hash_late, group)

    with Background() as background:
        reference = files.publish(path, chunks(background))
    digests |= late_digests
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
    """Returns the digests by name."""
    digests: dict[str, str] = {}

    def work(name: str) -> None:
        digests[name] = digest_of(memory[name])

    run_in_parallel(memory, sum(data.nbytes for data in memory.values()), work)
    return digests


def _places(known: Iterable[TensorEntry]) -> dict[_Key, TensorEntry]:
    """Returns the entries of stored tensors by contents."""
    n_places: Counter[_Contents] = Counter()
    places: dict[_Key, TensorEntry] = {}
    for entry in dict.fromkeys(known):
        contents = (entry.digest, entry.dtype, entry.shape)
        places[contents, n_places[contents]] = entry
        n_places[contents] += 1
    return places


def _keys(contents: Mapping[str, _Contents]) -> dict[str, _Key]:
    """Returns a key per name, equal for up to ``MAX_SHARED`` equal tensors."""
    n_names: Counter[_Contents] = Counter()
    keys: dict[str, _Key] = {}
    for name, found in contents.items():
        keys[name] = (found, n_names[found] // MAX_SHARED)
        n_names[found] += 1
    return keys


def _contents(tensor: torch.Tensor, digest: str | None) -> _Contents:
    """Returns a value that is equal for tensors with equal digests, or with the same memory."""
    if digest is None:
        views = (tensor.is_conj(), tensor.is_neg())  # torch applies both on reading; the memory is the same
        digest = f"{tensor.device} {tensor.data_ptr()} {tensor.stride()} {views}"
    return digest, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _header(tensors: Mapping[str, torch.Tensor], ends: Sequence[int], aliases: Mapping[str, str]) -> bytes:
    """Returns the header: 8 bytes of length, JSON, and spaces for alignment."""
    header: dict[str, object] = {"__metadata__": aliases} if aliases else {}
    for (name, tensor), begin, end in zip(tensors.items(), ends, ends[1:], strict=False):
        dtype = _SAFETENSORS_NAMES.get(tensor.dtype)
        shape = list(tensor.shape) if dtype else [end - begin]
        header[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    alignment = _PAGE if ends[-1] >= _LARGE_BYTES else 8
    head += b" " * (-(len(head) + 8) % alignment)
    return len(head).to_bytes(8, "little") + head


def equal_tensors(entries: Mapping[str, TensorEntry], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors whose bytes have the digest of the entry of their name; reads nothing."""
    candidates = [name for name, entry in entries.items() if _is_like(tensors.get(name), entry)]
    digests = _digests({name: _memory(name, tensors[name]) for name in candidates})
    return {name: tensors[name] for name in candidates if digests[name] == entries[name].digest}


def _is_like(tensor: torch.Tensor | None, entry: TensorEntry) -> bool:
    """Returns whether a value is a plain tensor of the entry's type and shape."""
    return (
        isinstance(tensor, torch.Tensor)
        and (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{entry.dtype}", entry.shape)
        and tensor.layout == torch.strided
        and not tensor.is_meta
    )


def read_tensors(
    files: BlobStore, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> dict[str, torch.Tensor]:
    """Returns the verified tensors in new main memory.

    Args:
        files: The search's root.
        entries: Entries by name.
        packs: Packs by path. Packs without entries are not read.

    Raises:
        CorruptError: a size or digest is wrong, or a pack can't hold an entry.
        MissingError: a pack does not exist.
    """
    check_entries(entries, packs)
    for path in sorted({entry.pack for entry in entries.values()}):
        files.check_size(packs[path])  # before memory is allocated
    found = {name: torch.empty(entry.shape, dtype=dtype_of(entry)) for name, entry in entries.items()}
    read_into(files, entries, packs, found)
    return found


def read_into(
    files: BlobStore,
    entries: Mapping[str, TensorEntry],
    packs: Mapping[str, Reference],
    targets: Mapping[str, torch.Tensor],
) -> None:
    """Reads and verifies tensors into the memory of targets with equal types and shapes.

    Targets on other devices, or with strides, are filled from main memory in small batches. If an exception is raised,
    the contents of the targets are undefined.

    Args:
        files: The search's root.
        entries: Entries by name.
        packs: Packs by path.
        targets: A target for each entry.

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
    buffered = {name for name in entries if _own_memory(targets[name]) is None}
    for batch in _batches(entries, buffered, files.batch_bytes):
        _read_batch(files, {name: entries[name] for name in batch}, packs, targets)


def stream_tensors(
    files: BlobStore, entries: Mapping[str, TensorEntry], packs: Mapping[str, Reference]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors in little memory. Each is valid until the next one.

    Raises:
        CorruptError, MissingError: as ``read_tensors``.
    """
    check_entries(entries, packs)
    for path in sorted({entry.pack for entry in entries.values()}):
        files.check_size(packs[path])
    memory = _spare_memory.pop() if _spare_memory else torch.empty(0, dtype=torch.uint8)
    try:
        for batch in _batches(entries, entries, files.batch_bytes):
            ends = list(accumulate((entries[n].bytes + -entries[n].bytes % _ALIGNMENT for n in batch), initial=0))
            if ends[-1] > memory.numel():
                memory = torch.empty(max(ends[-1], files.batch_bytes), dtype=torch.uint8)
            targets = {name: _part(memory, begin, entries[name]) for name, begin in zip(batch, ends, strict=False)}
            _read_batch(files, {name: entries[name] for name in batch}, packs, targets)
            yield from targets.items()
    finally:
        if memory.numel() <= files.batch_bytes and not _spare_memory:
            _spare_memory.append(memory)


def _part(memory: torch.Tensor, begin: int, entry: TensorEntry) -> torch.Tensor:
    part = memory[begin : begin + entry.bytes]
    return part.view(dtype_of(entry)).reshape(entry.shape)


def _batches(entries: Mapping[str, TensorEntry], buffered: Container[str], max_bytes: int) -> Iterator[list[str]]:
    """Yields batches of names in pack order, which need at most ``max_bytes`` of buffers."""
    batch: list[str] = []
    n_bytes = 0
    for name in sorted(entries, key=lambda name: (entries[name].pack, entries[name].offset)):
        buffer_bytes = entries[name].bytes if name in buffered else 0
        if batch and n_bytes + buffer_bytes > max_bytes:
            yield batch
            batch, n_bytes = [], 0
        batch.append(name)
        n_bytes += buffer_bytes
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
    """Returns a tensor that shares these bytes."""
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=dtype_of(entry))
    return torch.frombuffer(memory, dtype=dtype_of(entry)).reshape(entry.shape)


def _own_memory(tensor: torch.Tensor) -> memoryview | None:
    """Returns the tensor's memory if it is in main memory in row-major order, else None."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    if not tensor.is_contiguous():
        return None
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _memory(name: str, tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's bytes in row-major order, without a copy if possible."""
    if name == "__metadata__" or not isinstance(tensor, torch.Tensor):
        raise ConfigurationError(
            f"{name!r} ({type(tensor).__name__}) can't be saved: only tensors can be stored in a pack"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantized" if tensor.is_quantized else "without data" if tensor.is_meta else str(tensor.layout)
        raise ConfigurationError(f"tensor {name!r} ({kind}) can't be saved: make it a plain dense tensor first")
    if tensor.dim() > MAX_DIMENSIONS:
        raise ConfigurationError(
            f"tensor {name!r} has {tensor.dim()} dimensions; a saved tensor has at most {MAX_DIMENSIONS}: reshape it"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
