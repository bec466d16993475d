"""Parts of a pack: where tensors lie in it, and their digests, made while the pack passes by."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from blake3 import blake3

from nas.core.errors import CorruptError
from nas.storage.manifest import Manifest
from nas.storage.verified import digest_of


class Part(NamedTuple):
    """A tensor's place in a pack, and what lies there."""

    offset: int
    bytes: int
    digest: str


class PartHashes:
    """Hashes parts of a file while it passes by, block by block."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._to_come = sorted(parts, reverse=True)
        self._open: list[tuple[Part, blake3]] = []
        self._at = 0
        self._wrong: set[Part] = set()

    def see(self, block: memoryview) -> None:
        """Takes the next block."""
        end = self._at + block.nbytes
        while self._to_come and self._to_come[-1].offset < end:
            self._open.append((self._to_come.pop(), blake3()))
        going_on = []
        for part, hasher in self._open:
            part_end = part.offset + part.bytes
            hasher.update(block[max(part.offset - self._at, 0) : max(part_end - self._at, 0)])
            if part_end > end:
                going_on.append((part, hasher))
            elif f"blake3:{hasher.hexdigest()}" != part.digest:
                self._wrong.add(part)
        self._open, self._at = going_on, end

    def wrong(self) -> set[Part]:
        """The parts whose contents are others, now that the file has ended; one that leaves the file is wrong."""
        empty = digest_of(b"")
        left = [*(part for part, _ in self._open), *self._to_come]
        return self._wrong | {part for part in left if (part.bytes, part.offset, part.digest) != (0, self._at, empty)}


def parts_of(manifest: Manifest) -> dict[str, set[Part]]:
    """Returns the parts of each pack that hold tensors, by the pack's path.

    Raises:
        CorruptError: two parts share bytes, or one can't lie in its pack.
    """
    sizes = {pack.path: pack.bytes for pack in manifest.packs}
    found: dict[str, set[Part]] = {}
    for name, entry in manifest.tensors.items():
        if entry.bytes < 0 or not 0 <= entry.offset <= sizes[entry.pack] - entry.bytes:
            raise CorruptError(f"tensor {name!r:.80} can't lie in its pack")
        found.setdefault(entry.pack, set()).add(Part(entry.offset, entry.bytes, entry.digest))
    for parts in found.values():
        for one, other in pairwise(sorted(parts)):
            if one.offset + one.bytes > other.offset:
                raise CorruptError(f"two tensors share bytes, at {other.offset}")
    return found
