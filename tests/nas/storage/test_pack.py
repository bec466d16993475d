"""Packs: tensors are equal to the bit, safetensors reads them, and false data is detected."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from nas.core.errors import ConfigurationError, CorruptError, MissingError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.manifest import TensorEntry
from nas.storage.open import open_root
from nas.storage.pack import MAX_PACKS, read_into, read_tensors, stream_tensors
from nas.storage.pack import write_pack as write_pack_if_needed
from nas.storage.record_values import checked_exactly
from nas.storage.verified import digest_of

DTYPES = sorted(
    {v for v in vars(torch).values() if isinstance(v, torch.dtype) and not str(v).startswith("torch.q")},
    key=str,
)
LENGTHS = st.lists(st.integers(0, 4), max_size=4).map(tuple)

pytestmark = pytest.mark.filterwarnings("ignore:B?Complex[A-Za-z0-9]+ support is experimental:UserWarning")


@pytest.fixture
def files(tmp_path: Path) -> BlobStore:
    return open_root(str(tmp_path), retry_s=0)


def from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor of exactly these bits, including NaNs with a payload."""
    memory = torch.empty(len(data), dtype=torch.uint8)
    memory.copy_(torch.tensor(list(data), dtype=torch.uint8))
    return memory.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert bits(found) == bits(expected)


def write_pack(
    files: BlobStore, path: str, tensors: dict[str, torch.Tensor], *, known: Iterable[TensorEntry] = ()
) -> tuple[Reference, dict[str, TensorEntry]]:
    """Returns the result of write_pack for tensors of which at least one is stored."""
    reference, entries = write_pack_if_needed(files, path, tensors, known=known)
    assert reference is not None
    return reference, entries


def round_trip(files: BlobStore, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    reference, entries = write_pack(files, f"packs/{uuid4().hex}.safetensors", tensors)
    return read_tensors(files, entries, {reference.path: reference})


@given(data=st.data(), dtype=st.sampled_from(DTYPES), shape=LENGTHS)
@settings(max_examples=200)
def test_every_type_and_shape_comes_back(data: st.DataObject, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A tensor of any type and shape (no dimension, no element) comes back to the bit."""
    size = torch.Size(shape).numel() * dtype.itemsize
    tensor = from_bytes(data.draw(st.binary(min_size=size, max_size=size)), dtype, shape)

    found = round_trip(open_root("memory://packs"), {"x": tensor, "y": torch.ones(3)})

    assert_same(found["x"], tensor)
    assert_same(found["y"], torch.ones(3))


def test_strides_views_and_gradients_do_not_matter(files: BlobStore) -> None:
    """Transposed, sliced, expanded, conjugated and negated tensors and parameters come back by value."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    turned = torch.view_as_complex(torch.randn(3, 4, 2))
    tensors = {
        "transposed": base.transpose(0, 2),
        "sliced": base[:, 1:, ::2],
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(5, 5),
        "conjugated": turned.conj(),
        "negated": turned.conj().imag,
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }

    found = round_trip(files, tensors)

    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].is_contiguous()
        assert not found[name].requires_grad


def test_views_of_one_memory_are_not_taken_for_one_tensor(files: BlobStore) -> None:
    """A large tensor and its conjugate in the same memory come back by their own values."""
    large = torch.randn(20_000, dtype=torch.complex64)
    tensors = {"own": large, "conjugated": large.conj(), "imaginary": large.imag, "negated": large.conj().imag}

    found = round_trip(files, tensors)

    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_tensors_have_memory_of_their_own(files: BlobStore) -> None:
    """Read tensors are writable, and share no memory, even if they were tied."""
    weight = torch.randn(4, 4)
    found = round_trip(files, {"a": weight, "b": weight, "c": torch.zeros(2)})

    found["a"].fill_(7)
    found["c"].fill_(8)

    assert torch.equal(found["b"], weight)
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 3


def test_tied_tensors_are_stored_once(files: BlobStore) -> None:
    """Tensors of equal bytes, type and shape are stored once; other shapes or types are not shared."""
    zeros = torch.zeros(1000)
    tensors = {"a": zeros, "b": zeros.clone(), "c": zeros.reshape(10, 100), "d": zeros.view(torch.int32)}

    reference, entries = write_pack(files, "packs/a", tensors)

    assert entries["a"] == entries["b"]
    assert len({entry.offset for entry in entries.values()}) == 3
    assert 3 * 4000 < reference.bytes < 4 * 4000


def test_known_tensors_are_not_stored_again(files: BlobStore) -> None:
    """A tensor in a donor's pack gets the donor's entry, and both packs together give all tensors."""
    old = {"a": torch.randn(1000), "b": torch.randn(1000)}
    first, first_entries = write_pack(files, "packs/1", old)
    new = {"a": old["a"], "b": torch.randn(1000)}

    second, entries = write_pack(files, "packs/2", new, known=first_entries.values())

    assert entries["a"] == first_entries["a"]
    assert second.bytes < 5000
    found = read_tensors(files, entries, {"packs/1": first, "packs/2": second})
    assert all(torch.equal(found[name], new[name]) for name in new)


def test_safetensors_library_reads_a_pack(files: BlobStore, tmp_path: Path) -> None:
    """The safetensors library loads the same tensors, and unknown types as plain bytes."""
    tensors = {f"t.{dtype}": torch.arange(7).to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.bool)}
    tensors |= {"f8": torch.randn(3).to(torch.float8_e4m3fn), "c": torch.randn(2, 2, dtype=torch.complex64)}
    tensors |= {"empty": torch.empty(0, 3), "none": torch.empty(0), "number": torch.tensor(3, dtype=torch.int8)}
    wide = torch.randn(3, dtype=torch.complex128)

    write_pack(files, "a.safetensors", {**tensors, "tied": tensors["c"], "wide": wide})

    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == {*tensors, "wide"}
    for name, tensor in tensors.items():
        assert_same(found[name], tensor)
    assert bits(found["wide"]) == bits(wide)
    with safe_open(tmp_path / "a.safetensors", "pt") as pack:
        assert pack.metadata() == {"tied": "c"}


def test_pack_without_tensors_is_a_pack(files: BlobStore, tmp_path: Path) -> None:
    """An empty pack can be written, read, and loaded by the safetensors library."""
    reference, entries = write_pack(files, "a.safetensors", {})

    assert entries == {}
    assert read_tensors(files, {}, {reference.path: reference}) == {}
    assert load_file(tmp_path / "a.safetensors") == {}


def test_every_tensor_is_aligned(files: BlobStore) -> None:
    """Each tensor begins at a multiple of its type's size, as memory-mapping readers need."""
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(3), "c": torch.ones(1, dtype=torch.float64)}

    _, entries = write_pack(files, "packs/a", tensors)

    assert all(entry.offset % tensors[name].element_size() == 0 for name, entry in entries.items())


def test_entries_carry_the_digest_of_their_bytes(files: BlobStore) -> None:
    """An entry has the digest of the tensor's bytes, at its offset in the file."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(5)})

    entry = entries["x"]
    data = files.read(reference)[entry.offset : entry.offset + entry.bytes]
    assert data == bits(torch.arange(5))
    assert entry.digest == digest_of(data)
    assert checked_exactly(TensorEntry, json.loads(json.dumps(dataclasses.asdict(entry)))) == entry


@pytest.mark.parametrize(
    "bad",
    [
        {"x": torch.ones(3).to_sparse()},
        {"x": torch.empty(3, device="meta")},
        {"x": {"extra": "state"}},
        {"__metadata__": torch.ones(1)},
    ],
)
def test_unsupported_tensors_are_refused(files: BlobStore, bad: dict[str, torch.Tensor]) -> None:
    """Sparse tensors, tensors without data, other objects and the reserved name are refused by name."""
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        write_pack(files, "packs/a", bad)
    assert files.names("packs") == []


@pytest.mark.parametrize(
    "lie",
    [
        {"offset": -8},
        {"offset": 2**62},
        {"bytes": -24},
        {"bytes": 2**62, "shape": (2**59,)},
        {"bytes": 20},
        {"shape": (4,)},
        {"shape": (-3, -1)},
        {"shape": (2**70, 0), "bytes": 0},
        {"shape": ()},
        {"dtype": "float64x"},
        {"dtype": "Tensor"},
        {"dtype": "load"},
        {"dtype": "qint8", "bytes": 3},
        {"dtype": "int8"},
        {"pack": "packs/b"},
    ],
)
def test_invalid_entries_are_found_before_reading(files: BlobStore, lie: dict[str, object]) -> None:
    """An invalid offset, size, type, shape or pack is CorruptError with the tensor's name, before any read."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(3)})
    files.delete("packs/a")  # reading would be MissingError

    entry = dataclasses.replace(entries["x"], **lie)  # type: ignore[arg-type]
    with pytest.raises(CorruptError, match="'x'"):
        read_tensors(files, {"x": entry}, {reference.path: reference})


def test_tensors_that_overlap_are_corrupt(files: BlobStore) -> None:
    """Two entries that share a part of their bytes are CorruptError."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(3), "y": torch.arange(4)})
    shifted = dataclasses.replace(entries["x"], offset=entries["y"].offset + 4)

    with pytest.raises(CorruptError, match="packs/a"):
        read_tensors(files, {"x": shifted, "y": entries["y"]}, {reference.path: reference})


def test_parts_that_overlap_are_found_whichever_are_read(files: BlobStore) -> None:
    """Overlapping entries are found before reading, also if they are read one at a time."""
    reference, entries = write_pack(files, "packs/a", {str(n): torch.full((2_000_000,), float(n)) for n in range(3)})
    shifted = dataclasses.replace(entries["1"], offset=entries["0"].offset + 4)
    files.delete("packs/a")

    with pytest.raises(CorruptError, match="tensors overlap"):
        next(stream_tensors(files, {**entries, "1": shifted}, {"packs/a": reference}))


def test_a_thousand_names_for_one_part_are_refused_before_allocation(files: BlobStore) -> None:
    """Many tensors with the same 8 MB are CorruptError, so a small file can't fill the memory."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.zeros(2_000_000)})
    many = {str(n): entries["x"] for n in range(1000)}
    files.delete("packs/a")  # reading would be MissingError

    with pytest.raises(CorruptError, match="1000 tensors share the bytes"):
        read_tensors(files, many, {"packs/a": reference})


def test_many_equal_tensors_are_stored_a_few_times(files: BlobStore) -> None:
    """Of 100 equal tensors each 16 share a place, within the reader's limit; a child stores none."""
    tensors = {str(n): torch.zeros(1000) for n in range(100)}
    reference, entries = write_pack(files, "packs/a", tensors)

    assert len({entry.offset for entry in entries.values()}) == 7
    found = read_tensors(files, entries, {"packs/a": reference})
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    again, child = write_pack_if_needed(files, "packs/b", tensors, known=entries.values())
    assert again is None
    assert child == entries


def test_more_dimensions_than_a_pack_takes_are_refused_on_saving(files: BlobStore) -> None:
    """65 dimensions are refused by name on saving; 64 come back."""
    with pytest.raises(ConfigurationError, match="'x' has 65 dimensions"):
        write_pack(files, "packs/a", {"x": torch.ones([1] * 65)})
    assert round_trip(files, {"x": torch.ones([1] * 64)})["x"].dim() == 64


@pytest.mark.parametrize("length", [0, 2**63, 10**9])
def test_a_packs_header_is_not_used(files: BlobStore, tmp_path: Path, length: int) -> None:
    """If a pack's header has a false length, tensors are still read as the manifest says."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(3)})
    whole = (tmp_path / "packs/a").read_bytes()
    (tmp_path / "packs/a").write_bytes(length.to_bytes(8, "little") + whole[8:])

    assert torch.equal(read_tensors(files, entries, {"packs/a": reference})["x"], torch.arange(3))
    with pytest.raises(CorruptError, match="packs/a"):
        files.check_contents(reference)


def test_size_that_the_file_has_not_is_found_before_allocation(files: BlobStore) -> None:
    """A pack and an entry with the same absurd size are CorruptError, and nothing is allocated."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(3)})
    huge = dataclasses.replace(entries["x"], bytes=2**60, shape=(2**57,))

    with pytest.raises(CorruptError, match=f"expected {2**61} bytes"):
        read_tensors(files, {"x": huge}, {reference.path: Reference(reference.path, 2**61, reference.digest)})


def test_damage_of_wanted_tensors_is_found(files: BlobStore, tmp_path: Path) -> None:
    """A flipped bit in a wanted tensor, a lost byte and a lost pack are found; other tensors are not read."""
    reference, entries = write_pack(files, "packs/a", {"x": torch.arange(3), "y": torch.arange(4)})
    wanted, packs = {"x": entries["x"]}, {reference.path: reference}
    whole = files.read(reference)
    last = entries["x"].offset + entries["x"].bytes - 1

    for broken in (flipped(whole, entries["x"].offset), flipped(whole, last), whole[:-1], whole + b"1"):
        (tmp_path / "packs/a").write_bytes(broken)
        with pytest.raises(CorruptError, match="packs/a"):
            read_tensors(files, wanted, packs)
    (tmp_path / "packs/a").write_bytes(flipped(whole, entries["y"].offset))
    assert torch.equal(read_tensors(files, wanted, packs)["x"], torch.arange(3))
    with pytest.raises(CorruptError, match=f"from {entries['y'].offset} to"):
        read_tensors(files, entries, packs)
    (tmp_path / "packs/a").unlink()
    with pytest.raises(MissingError, match="packs/a"):
        read_tensors(files, wanted, packs)


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_nothing_is_published_without_changes(files: BlobStore) -> None:
    """A child without changes gets the donor's entries, and no pack."""
    tensors = {"a": torch.randn(10), "b": torch.randn(10)}
    _, entries = write_pack(files, "packs/1", tensors)

    reference, found = write_pack_if_needed(files, "packs/2", tensors, known=entries.values())

    assert reference is None
    assert found == entries
    assert files.names("packs") == ["1"]


def test_beyond_16_packs_all_is_stored_again(files: BlobStore) -> None:
    """Descendants that change one tensor each grow to 16 packs, then start again with one."""
    tensors = {str(n): torch.randn(100) for n in range(40)}
    packs, entries = {}, {}
    n_packs = []
    for n in range(40):
        tensors = {**tensors, str(n): torch.randn(100)}
        reference, entries = write_pack(files, f"packs/{n}", tensors, known=entries.values())
        packs[reference.path] = reference
        n_packs.append(len({entry.pack for entry in entries.values()}))
        found = read_tensors(files, entries, packs)
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)

    assert max(n_packs) == MAX_PACKS == 16
    assert n_packs[:18] == [*range(1, 17), 1, 2]


class TestReadInto:
    def test_memory_of_any_kind_is_filled(self, files: BlobStore) -> None:
        """Tensors with strides, parameters, tied and empty ones are filled in place, with their strides."""
        tensors = {"a": torch.randn(3, 4), "b": torch.randn(5), "c": torch.randn(5), "empty": torch.empty(0, 2)}
        reference, entries = write_pack(files, "packs/a", {**tensors, "same": tensors["b"]})
        targets = {
            "a": torch.zeros(4, 3).t(),
            "b": torch.nn.Parameter(torch.zeros(5)),
            "c": torch.zeros(10)[::2],
            "same": torch.zeros(5),
            "empty": torch.empty(0, 2),
        }
        strides = {name: target.stride() for name, target in targets.items()}
        addresses = {name: target.data_ptr() for name, target in targets.items()}

        read_into(files, entries, {reference.path: reference}, targets)

        assert all(torch.equal(targets[name], {**tensors, "same": tensors["b"]}[name]) for name in targets)
        assert {name: target.stride() for name, target in targets.items()} == strides
        assert {name: target.data_ptr() for name, target in targets.items()} == addresses

    def test_other_type_or_shape_is_refused(self, files: BlobStore) -> None:
        """A target of another type or shape is refused by name, and nothing is written."""
        reference, entries = write_pack(files, "packs/a", {"x": torch.ones(4)})
        for target in (torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64)):
            with pytest.raises(ConfigurationError, match="'x'"):
                read_into(files, entries, {reference.path: reference}, {"x": target})
            assert not target.any()

    def test_large_tensors_need_no_memory_beyond_their_own(self, files: BlobStore) -> None:
        """40 MB are read into the model's tensors with less than 4 MB of Python's own memory."""
        tensors = {str(n): torch.randn(1_000_000) for n in range(10)}
        reference, entries = write_pack(files, "packs/a", tensors)
        targets = {name: torch.zeros(1_000_000) for name in tensors}

        tracemalloc.start()
        read_into(files, entries, {reference.path: reference}, targets)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert peak < 4_000_000
        assert all(torch.equal(targets[name], tensors[name]) for name in tensors)


def test_stream_gives_every_tensor_in_turn(files: BlobStore) -> None:
    """stream_tensors gives each tensor once, from any pack, over more than one batch."""
    old = {str(n): torch.randn(2_000_000) for n in range(6)}
    first, entries = write_pack(files, "packs/1", old)
    new = {**old, "3": torch.randn(2_000_000)}
    second, entries = write_pack(files, "packs/2", new, known=entries.values())

    streamed = stream_tensors(files, entries, {pack.path: pack for pack in (first, second)})
    found = [(name, torch.equal(tensor, new[name])) for name, tensor in streamed]

    assert sorted(found) == [(name, True) for name in sorted(new)]
