"""Checks that growth operations fit a transformer (`nas.inheritance.growth`), and keep its function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import Weights
from nas.spaces.growth import GrowthOperation, InsertBlock, Sizes, WidenHeads, WidenMlp

OTHER_NETWORK = "the operations make another network than the child's"


def shapes_of(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields names and shapes of the blocks' tensors and the final norm's.

    A damaged record may have a million blocks.
    """
    width, hidden = sizes.width, sizes.width * sizes.mlp_ratio
    block: dict[str, tuple[int, ...]] = {
        "self_attn.in_proj_weight": (3 * width, width),
        "self_attn.in_proj_bias": (3 * width,),
        "self_attn.out_proj.weight": (width, width),
        "self_attn.out_proj.bias": (width,),
        "linear1.weight": (hidden, width),
        "linear1.bias": (hidden,),
        "linear2.weight": (width, hidden),
        "linear2.bias": (width,),
        **{f"norm{index}.{name}": (width,) for index in (1, 2) for name in ("weight", "bias")},
    }
    yield from ((f"layers.{n}.{name}", shape) for n in range(sizes.n_layers) for name, shape in block.items())
    yield from (("norm.weight", (width,)), ("norm.bias", (width,)))


def embeddings_in(weights: Mapping[str, Tensor], sizes: Sizes) -> list[str]:
    """Returns the names of the embeddings and the head: matrices with a column for each feature.

    Raises:
        ConfigurationError: one of the embeddings is missing, or a width differs.
    """
    for name in ("embed.weight", "positions.weight"):
        if name not in weights:
            raise ConfigurationError(f"weights: {name} is missing. Give the weights of this network.")
    names = [name for name in ("embed.weight", "positions.weight", "head.weight") if name in weights]
    for name in names:
        if weights[name].dim() != 2 or weights[name].shape[1] != sizes.width:
            raise _wrong_shape(name, weights[name], f"(n, {sizes.width})")
    return names


def check_transformer(sizes: Sizes, weights: Mapping[str, Tensor], n_heads: int | None = None) -> list[str]:
    """Returns the names of all tensors of a transformer of these sizes.

    Args:
        sizes: The sizes.
        weights: The tensors by name.
        n_heads: The number of heads of its blocks, if it is known.

    Raises:
        ConfigurationError: one is missing, or its shape differs; or there are more blocks or other heads.
    """
    names = embeddings_in(weights, sizes)
    if f"layers.{sizes.n_layers}.linear1.weight" in weights:
        raise ConfigurationError(f"weights: have more than {sizes.n_layers} blocks. Give the weights of this network.")
    if n_heads not in (None, sizes.n_heads):
        raise ConfigurationError(
            f"weights: have {n_heads} heads, must have {sizes.n_heads}. Give the weights of this network."
        )
    for name, shape in shapes_of(sizes):
        if name not in weights:
            raise ConfigurationError(f"weights: {name} is missing. Give the weights of this network.")
        if tuple(weights[name].shape) != shape:
            raise _wrong_shape(name, weights[name], str(shape))
        names.append(name)
    return names


def transformer_in(model: nn.Module, sizes: Sizes, operations: Sequence[GrowthOperation]) -> tuple[str, Weights]:
    """Returns the prefix of a model's transformer in its names, and its tensors without it.

    Raises:
        PointError: the model does not have one transformer of these sizes, or an operation changes its function.
    """
    state = model.state_dict()
    first = "layers.0.self_attn.in_proj_weight"
    prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
    if len(prefixes) != 1:
        raise PointError(f"the model has {len(prefixes)} transformers; it must have one")
    prefix = prefixes[0]
    own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    n_heads = getattr(model.get_submodule(f"{prefix}layers.0.self_attn"), "num_heads", None)
    try:
        known = check_transformer(sizes, own, n_heads)
    except ConfigurationError as error:
        raise PointError(f"{OTHER_NETWORK}: {error}") from error
    transformer = model.get_submodule(prefix.removesuffix("."))
    _check_modules(transformer, sizes, known, {type(operation) for operation in operations})
    return prefix, own


_Kinds = Set[type[GrowthOperation]]


def _check_modules(transformer: nn.Module, sizes: Sizes, known: Collection[str], kinds: _Kinds) -> None:
    """Checks that operations of these kinds keep the function of a transformer's modules.

    Raises:
        PointError: one does not.
    """
    blocks = {name: transformer.get_submodule(name) for name in (f"layers.{n}" for n in range(sizes.n_layers))}
    for name, block in blocks.items():
        _check_block(name, block, sizes.n_heads, known, kinds)
    tensors = [tensor for block in blocks.values() for tensor in block.parameters()]
    if InsertBlock in kinds and len({*tensors}) < len(tensors):
        raise PointError(f"layers: must not share tensors for {InsertBlock.kind}")
    if WidenHeads in kinds:
        _check_norm("norm", transformer.get_submodule("norm"))
        for name in ("embed", "positions"):
            if (norm := getattr(transformer.get_submodule(name), "max_norm", None)) is not None:
                raise PointError(f"{name}.max_norm={norm}: must be None for {WidenHeads.kind}")


def _check_block(name: str, block: nn.Module, n_heads: int, known: Collection[str], kinds: _Kinds) -> None:
    """Checks one block."""
    if not isinstance(block, nn.TransformerEncoderLayer) or not isinstance(block.self_attn, nn.MultiheadAttention):
        raise PointError(f"{name}={type(block).__name__}: must be a TransformerEncoderLayer of torch")
    if block.self_attn.num_heads != n_heads:
        raise PointError(f"{name}: has {block.self_attn.num_heads} heads, must have {n_heads}")
    if others := [own for own in block.state_dict() if f"{name}.{own}" not in known]:
        raise PointError(f"{name}.{others[0]}: must not be there, torch's TransformerEncoderLayer has no such tensor")
    if InsertBlock in kinds and not block.norm_first:
        raise PointError(f"{name}.norm_first=False: must be True for {InsertBlock.kind}, so that outputs of 0 count")
    if WidenHeads in kinds:
        _check_norm(f"{name}.norm1", block.norm1)
        _check_norm(f"{name}.norm2", block.norm2)
    if kinds & {WidenHeads, WidenMlp} and not _is_elementwise(block.activation, block.linear1.out_features):
        raise PointError(f"{name}.activation: must compute each unit by itself, to widen the block")


def _check_norm(name: str, norm: nn.Module) -> None:
    if not isinstance(norm, nn.LayerNorm):
        raise PointError(f"{name}={type(norm).__name__}: must be a LayerNorm for {WidenHeads.kind}")


def _is_elementwise(activation: Callable[[Tensor], Tensor], n: int) -> bool:
    """Returns whether the value of each unit depends on no other, nor on its place."""
    units = torch.linspace(-2, 2, n)
    others = torch.cat([units[: n // 2], 1 + units[n // 2 :]])
    with torch.no_grad():
        found, beside, turned = (activation(one.view(1, 1, n)).flatten() for one in (units, others, units.flip(0)))
    return torch.allclose(found[: n // 2], beside[: n // 2]) and torch.allclose(found.flip(0), turned)


def _wrong_shape(name: str, tensor: Tensor, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"weights: {name} has shape {tuple(tensor.shape)}, must be {expected}. Give the weights of this network."
    )
