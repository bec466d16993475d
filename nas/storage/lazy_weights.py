"""The weights of a checkpoint, which are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import torch

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.manifest_checks import check_entries, dtype_of
from nas.storage.pack import equal_tensors, read_into, read_tensors, stream_tensors


class StoredWeights:
    """The tensors of one checkpoint: what there is, at once; what they hold, when they are read.

    Making it reads and verifies the manifest, and makes sure that every pack is there and has its size; each tensor is
    verified by its own digest when it is read.

    Args:
        files: The root.
        checkpoint: What was published.
        keeps: Whether a tensor of this name is looked at; by default each is.

    Attributes:
        manifest: Where each tensor lies, also those that are not looked at.

    Raises:
        MissingError: the manifest or a pack is not there, or, when tensors are read, not any more.
        CorruptError: one is not what was published.
    """

    def __init__(self, files: BlobStore, checkpoint: Checkpoint, keeps: Callable[[str], bool] = bool) -> None:
        self.manifest = load_manifest(files, checkpoint)
        self._files = files
        self._packs = {pack.path: pack for pack in self.manifest.packs}
        try:
            check_entries(self.manifest.tensors, self._packs)
        except CorruptError as error:
            raise CorruptError(f"manifest {checkpoint.manifest.path} in {files.url} is corrupt: {error}") from error
        self._entries = {name: entry for name, entry in self.manifest.tensors.items() if keeps(name)}
        for pack in self.manifest.packs:
            files.check_size(pack)

    @cached_property
    def shapes(self) -> Mapping[str, torch.Tensor]:
        """Every tensor by name, without its data: on torch's device ``meta``."""
        return {
            name: torch.empty(entry.shape, dtype=dtype_of(entry), device="meta")
            for name, entry in self._entries.items()
        }

    def read(
        self, names: Iterable[str], cache: Mapping[str, torch.Tensor] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of these names, one after the other, in little memory: each counts only until the next one.

        Args:
            names: Which ones.
            cache: Tensors by name; one that has the digest of what is asked for is given instead of being read.
        """
        entries = {name: self._entries[name] for name in names}
        cached = equal_tensors(entries, cache) if cache else {}
        yield from cached.items()
        rest = {name: entry for name, entry in entries.items() if name not in cached}
        yield from stream_tensors(self._files, rest, self._packs)

    def read_all(self) -> dict[str, torch.Tensor]:
        """Returns all tensors, in main memory of their own."""
        return read_tensors(self._files, self._entries, self._packs)

    def read_into(self, targets: Mapping[str, torch.Tensor]) -> None:
        """All tensors, straight into the memory of tensors of the same names, types and shapes."""
        read_into(self._files, self._entries, self._packs, targets)

    def fits(self, targets: Mapping[str, torch.Tensor]) -> bool:
        """Returns whether ``read_into`` takes these: the same names, types and shapes."""
        return targets.keys() == self.shapes.keys() and all(
            (targets[name].dtype, targets[name].shape) == (shape.dtype, shape.shape)
            for name, shape in self.shapes.items()
        )
