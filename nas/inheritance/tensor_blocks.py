"""Blocks of a tensor: projections of an attention, with dimensions for heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nas.inheritance.tensor_roles import Role
from nas.storage.tensor_parts import TensorParts


class Block(NamedTuple):
    """Views of a child's tensor and of a donor's, whose equal indices have the same meaning.

    Attributes:
        child: The child's.
        donor: The donor's.
        n_rows: The number of dimensions of outputs, the first ones.
        n_kernel_dims: The number of kernel dimensions, the last ones.
    """

    child: Tensor
    donor: Tensor
    n_rows: int
    n_kernel_dims: int

    def take(self, *, is_scaled: bool) -> int:
        """Copies the overlap into the child and returns its number of elements.

        Args:
            is_scaled: Whether the rest is filled as ``Rules.rest`` describes for ``scaled``.
        """
        child = self.child
        n_plain = child.dim() - self.n_kernel_dims
        child_part, donor_part = overlap(child.shape, self.donor.shape, n_plain)
        part = self.donor[donor_part]
        if is_scaled:
            part = self._scale(child_part[: self.n_rows], part)
        child[child_part] = part
        return part.numel()

    def _scale(self, rows: tuple[slice, ...], part: Tensor) -> Tensor:
        """Fills what is not inherited, and returns the inherited part for fewer inputs."""
        child, n_rows = self.child, self.n_rows
        n_inputs, n_left = math.prod(child.shape[n_rows:]), math.prod(part.shape[n_rows:])
        if (scale := math.sqrt(math.prod(self.donor.shape[n_rows:]) / n_left)) > 1:
            part = part * scale
        is_new = torch.ones(child.shape[:n_rows], dtype=torch.bool, device=child.device)
        is_new[rows] = False
        new_rows = child[is_new]
        if new_rows.numel() and (rms := _root_mean_square(new_rows)) > 0:
            child[is_new] = new_rows * (_root_mean_square(part) / rms * math.sqrt(n_left / n_inputs))
        if n_inputs > n_left:
            child[rows] = 0
        return part


def blocks(child: Tensor, donor: Tensor, role: Role, parts: TensorParts | None) -> Iterator[Block]:
    """Yields the blocks of two tensors, one if their heads are not known.

    Args:
        child: The child's tensor, into which blocks are written.
        donor: The donor's.
        role: The role of the child's.
        parts: The heads of the donor's, if they are known.
    """
    own, dim = role.parts, 0 if role.parts is None else role.parts.dim
    if role.is_transposed:
        child, donor, dim = child.transpose(0, 1), donor.transpose(0, 1), 1 - dim
    if own is None or parts is None or not own.are_like(parts):
        yield Block(child, donor, 1, role.n_kernel_dims)
        return
    children, donors = torch.split(child, own.lengths, dim), torch.split(donor, parts.lengths, dim)
    for part, donor_part, own_sizes, sizes in zip(children, donors, own.sizes, parts.sizes, strict=True):
        n_rows = len(sizes) if dim == 0 else 1
        views = (torch.unflatten(part, dim, own_sizes), torch.unflatten(donor_part, dim, sizes))
        yield Block(*views, n_rows, role.n_kernel_dims)


def overlap(child: Sequence[int], donor: Sequence[int], n_plain: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Returns the overlap as slices of the child and of the donor.

    The first ``n_plain`` dimensions overlap from index 0 on, the others (of a kernel) around the middle.
    """
    child_part, donor_part = [], []
    for dimension, (child_size, donor_size) in enumerate(zip(child, donor, strict=True)):
        size = min(child_size, donor_size)
        is_plain = dimension < n_plain
        child_start, donor_start = (0, 0) if is_plain else ((child_size - size) // 2, (donor_size - size) // 2)
        child_part.append(slice(child_start, child_start + size))
        donor_part.append(slice(donor_start, donor_start + size))
    return tuple(child_part), tuple(donor_part)


def _root_mean_square(values: Tensor) -> float:
    wide = torch.promote_types(values.dtype, torch.float32)  # sums of squares overflow float16
    return float(torch.linalg.vector_norm(values, dtype=wide)) / math.sqrt(values.numel())
