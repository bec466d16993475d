"""Weights of a checkpoint, read when they are used."""

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
from nas.storage.tensor_parts import TensorParts


class StoredWeights:
    """Tensors of one checkpoint. The manifest is read at once, tensors when they are used.

    The constructor verifies the manifest and the size of every pack. Each tensor's digest is checked when it is read.

    Args:
        files: The search's root.
        checkpoint: The checkpoint.
        keeps: Returns whether a tensor of this name is included; by default all are.

    Attributes:
        manifest: Position of each tensor, including those left out.

    Raises:
        MissingError: the manifest or a pack does not exist; also raised when tensors are read.
        CorruptError: a size or digest is wrong; also raised when tensors are read.
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
        """Every tensor by name, without data, on torch's device ``meta``."""
        return {
            name: torch.empty(entry.shape, dtype=dtype_of(entry), device="meta")
            for name, entry in self._entries.items()
        }

    @property
    def parts(self) -> Mapping[str, TensorParts]:
        """The heads of tensors, where they are known."""
        return self.manifest.parts

    def read(
        self, names: Iterable[str], cache: Mapping[str, torch.Tensor] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and tensors in little memory. Each is valid until the next one.

        Args:
            names: Names of the tensors.
            cache: Tensors by name. One with the right digest is used instead of being read.
        """
        entries = {name: self._entries[name] for name in names}
        cached = equal_tensors(entries, cache) if cache else {}
        yield from cached.items()
        rest = {name: entry for name, entry in entries.items() if name not in cached}
        yield from stream_tensors(self._files, rest, self._packs)

    def read_all(self) -> dict[str, torch.Tensor]:
        """Returns all tensors, in new main memory."""
        return read_tensors(self._files, self._entries, self._packs)

    def read_into(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Reads all tensors into the memory of tensors with equal names, types and shapes."""
        read_into(self._files, self._entries, self._packs, targets)

    def fits(self, targets: Mapping[str, torch.Tensor]) -> bool:
        """Returns whether names, types and shapes are equal, as ``read_into`` needs."""
        return targets.keys() == self.shapes.keys() and all(
            (targets[name].dtype, targets[name].shape) == (shape.dtype, shape.shape)
            for name, shape in self.shapes.items()
        )
