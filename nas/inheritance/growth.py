"""Growth operations on a transformer's weights (`nas.spaces.growth`).

The layers' names and shapes are those of `nas.problems.language.network.LanguageModel`: ``embed``, ``positions``,
``layers.N`` (torch's ``TransformerEncoderLayer``), ``norm`` and ``head``, without dropout. They are used as there.
`nas.inheritance.growth_checks` refuses blocks whose function an operation would change.

``widen_heads`` doubles all units. Both copies of a unit have the same value, so a layer's incoming weights are halved;
noise is added for one copy and subtracted for the other. LayerNorm's mean and variance, the head size and with it the
scale of attention, and causal masks stay as they are. The final norm is halved in place of the head, which may be the
embedding's own tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nas.inheritance.channel_edits import Weights
from nas.inheritance.growth_checks import check_transformer
from nas.spaces.growth import GrowthOperation, InsertBlock, Sizes, Stack, WidenHeads, WidenMlp

_NOISE = 0.1
"""Standard deviation of the noise, as a share of the weights' own."""
_FUSED = 3  # query, key and value are one tensor, one after the other
_BLOCK = re.compile(r"layers\.([0-9]+)\.(.+)")
_PROJECTIONS = frozenset({"self_attn.out_proj.weight", "self_attn.out_proj.bias", "linear2.weight", "linear2.bias"})
"""The tensors that make a block's outputs."""


def grow(sizes: Sizes, weights: Mapping[str, Tensor], operations: Iterable[GrowthOperation]) -> tuple[Sizes, Weights]:
    """Returns the sizes and weights after all operations; the arguments are not changed.

    Args:
        sizes: The sizes of the parent.
        weights: Its tensors, by their names in a ``LanguageModel``. Others are left out.
        operations: The operations, in order.

    Raises:
        PointError: an operation is not possible when its turn comes.
        ConfigurationError: the weights are of another network.
    """
    found = {name: weights[name] for name in check_transformer(sizes, weights)}
    for operation in operations:
        found = _after(sizes, found, operation)
        sizes = operation.apply(sizes)
    return sizes, found


def new_blocks(n_layers: int, operations: Iterable[GrowthOperation]) -> set[int]:
    """Returns the indices of the blocks that operations inserted with outputs of 0."""
    inserted = [False] * n_layers
    for operation in operations:
        if isinstance(operation, InsertBlock):
            inserted.insert(operation.block + 1, True)
        elif isinstance(operation, Stack):
            inserted *= 2
    return {index for index, is_new in enumerate(inserted) if is_new}


def _after(sizes: Sizes, weights: Weights, operation: GrowthOperation) -> Weights:
    operation.apply(sizes)  # raises if it is not possible
    match operation:
        case WidenHeads(seed):
            generator = torch.Generator().manual_seed(seed)
            return {name: _widened(name, tensor, generator) for name, tensor in weights.items()}
        case WidenMlp(mlp_ratio, seed):
            generator = torch.Generator().manual_seed(seed)
            n_new = (mlp_ratio - sizes.mlp_ratio) * sizes.width
            return {name: _with_units(name, tensor, n_new, generator) for name, tensor in weights.items()}
        case InsertBlock(block):
            order = [*range(block + 1), block, *range(block + 1, sizes.n_layers)]
            return _arranged(weights, order, silent=block + 1)
        case Stack():
            return _arranged(weights, [*range(sizes.n_layers)] * 2)
    raise TypeError(f"unknown growth operation {operation.kind}")


def _widened(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Returns a tensor with all units twice."""
    if name in ("norm.weight", "norm.bias"):
        return torch.cat([tensor, tensor]) / 2
    if not name.startswith("layers."):
        return torch.cat([tensor, tensor], 1)  # (n, width) to (n, 2 * width)
    n_parts = _FUSED if ".in_proj_" in name else 1
    parts = tensor.chunk(n_parts)
    if tensor.dim() == 1:
        return torch.cat([part for part in parts for _ in range(2)])
    return torch.cat([_copied(part, generator) for part in parts])


def _copied(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Returns weights of doubled sizes: doubled inputs give doubled outputs."""
    half = torch.cat([weight, weight]) / 2
    noise = torch.randn(half.shape, generator=generator, dtype=torch.float64).to(half)
    noise *= _NOISE * float(weight.float().std(correction=0))
    return torch.cat([half + noise, half - noise], 1)


def _with_units(name: str, tensor: Tensor, n_new: int, generator: torch.Generator) -> Tensor:
    """Returns a tensor with more hidden units if it is an MLP's."""
    if name.endswith(".linear2.weight"):
        return torch.cat([tensor, tensor.new_zeros(len(tensor), n_new)], 1)
    if not name.endswith((".linear1.weight", ".linear1.bias")):
        return tensor
    new = torch.rand((n_new, *tensor.shape[1:]), generator=generator, dtype=torch.float64)
    is_weight = tensor.dim() == 2
    bound = tensor.shape[1] ** -0.5 if is_weight else 0.0
    return torch.cat([tensor, ((2 * new - 1) * bound).to(tensor)])


def _arranged(weights: Weights, order: list[int], silent: int | None = None) -> Weights:
    """Returns the weights with blocks in another order, perhaps more than once."""
    blocks: dict[int, Weights] = {}
    found: Weights = {}
    for name, tensor in weights.items():
        if match := _BLOCK.fullmatch(name):
            blocks.setdefault(int(match[1]), {})[match[2]] = tensor
        else:
            found[name] = tensor
    for index, source in enumerate(order):
        for name, tensor in blocks[source].items():
            is_silent = index == silent and name in _PROJECTIONS
            found[f"layers.{index}.{name}"] = torch.zeros_like(tensor) if is_silent else tensor
    return found
