"""Groups of query heads that share a key head, in another number of groups."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from nas.storage.tensor_parts import TensorParts

_GROUPED = 3
"""Least number of sizes of grouped heads: key heads, query heads for each, and their size."""


def n_query_heads(name: str, parts: Mapping[str, TensorParts]) -> int:
    """Returns the number of query heads beside a tensor; 0 if they have no groups.

    Args:
        name: The name of the tensor.
        parts: The parts of all tensors of the model.
    """
    own = parts.get(name)
    if own is None or len(own.sizes[0]) < _GROUPED:
        return 0
    module = name.rpartition(".")[0].rpartition(".")[0]
    beside = [
        sizes
        for other, other_parts in parts.items()
        if other.startswith(f"{module}." if module else "")
        for sizes in other_parts.sizes
        if len(sizes) == len(own.sizes[0]) and sizes[0] == own.sizes[0][0]
    ]
    per_key = {sizes[1] for sizes in beside}
    return own.sizes[0][0] * max(per_key) if 1 in per_key else 0  # keys and values have one head a group


def are_regrouped(own: TensorParts | None, own_queries: int, parts: TensorParts | None, queries: int) -> bool:
    """Returns whether a child has the donor's query heads in more or fewer groups."""
    if own is None or parts is None or not own_queries == queries > 0 or not own.are_like(parts):
        return False
    n_own, n_keys = own.sizes[0][0], parts.sizes[0][0]
    return n_own != n_keys and max(n_own, n_keys) % min(n_own, n_keys) == 0


def regrouped(values: Tensor, parts: TensorParts, own: TensorParts) -> tuple[Tensor, TensorParts]:
    """Returns a donor's tensor in the child's groups, and its parts there.

    Queries stay as they are. Key heads are repeated for more of them, so that the function is kept, and averaged for
    fewer.
    """
    found = [
        _in_groups(part, parts.dim, sizes, own_sizes)
        for part, sizes, own_sizes in zip(
            torch.split(values, parts.lengths, parts.dim), parts.sizes, own.sizes, strict=True
        )
    ]
    sizes = tuple((*theirs[:2], *mine[2:]) for theirs, mine in zip(own.sizes, parts.sizes, strict=True))
    return torch.cat(found, parts.dim), TensorParts(parts.dim, sizes)


def _in_groups(values: Tensor, dim: int, sizes: tuple[int, ...], own: tuple[int, ...]) -> Tensor:
    """Returns a part in the child's groups."""
    if math.prod(sizes[:2]) == math.prod(own[:2]):  # queries
        return values
    heads = torch.unflatten(values, dim, (sizes[0], math.prod(sizes[1:])))
    if own[0] > sizes[0]:
        return heads.repeat_interleave(own[0] // sizes[0], dim).flatten(dim, dim + 1)
    return torch.unflatten(heads, dim, (own[0], sizes[0] // own[0])).mean(dim + 1).flatten(dim, dim + 1)
