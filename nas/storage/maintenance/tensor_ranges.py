"""Byte ranges of tensors in a pack, and their digests, computed while the pack is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blake3 import blake3

from nas.storage.manifest import Manifest
from nas.storage.manifest_checks import check_entries
from nas.storage.verified import digest_of


class TensorRange(NamedTuple):
    """Bytes of a tensor in a pack, with their digest."""

    offset: int
    bytes: int
    digest: str


class RangeHasher:
    """Hashes ranges of a file that is read block by block."""

    def __init__(self, ranges: Iterable[TensorRange]) -> None:
        self._to_come = sorted(ranges, reverse=True)
        self._open: list[tuple[TensorRange, blake3]] = []
        self._position = 0
        self._mismatches: set[TensorRange] = set()

    def update(self, block: memoryview) -> None:
        """Hashes the next block."""
        end = self._position + block.nbytes
        while self._to_come and self._to_come[-1].offset < end:
            self._open.append((self._to_come.pop(), blake3()))
        still_open = []
        for tensor, hasher in self._open:
            tensor_end = tensor.offset + tensor.bytes
            hasher.update(block[max(tensor.offset - self._position, 0) : max(tensor_end - self._position, 0)])
            if tensor_end > end:
                still_open.append((tensor, hasher))
            elif f"blake3:{hasher.hexdigest()}" != tensor.digest:
                self._mismatches.add(tensor)
        self._open, self._position = still_open, end

    def mismatches(self) -> set[TensorRange]:
        """Returns the ranges with a wrong digest or beyond the end of the file.

        Call it after the last block.
        """
        unread = {*(tensor for tensor, _ in self._open), *self._to_come}
        unread.discard(TensorRange(self._position, 0, digest_of(b"")))  # an empty tensor at the end of the file
        return self._mismatches | unread


def tensor_ranges(manifest: Manifest) -> dict[str, set[TensorRange]]:
    """Returns the ranges of all tensors, by the path of their pack.

    Raises:
        CorruptError: a reader refuses the manifest's entries (``check_entries``).
    """
    check_entries(manifest.tensors, {pack.path: pack for pack in manifest.packs})
    found: dict[str, set[TensorRange]] = {}
    for entry in manifest.tensors.values():
        found.setdefault(entry.pack, set()).add(TensorRange(entry.offset, entry.bytes, entry.digest))
    return found
