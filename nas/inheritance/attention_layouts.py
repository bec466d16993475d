"""Known layouts of attentions: torch's, Hugging Face's and timm's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_Sizes: TypeAlias = tuple[int, ...]
_Parts: TypeAlias = Iterator[tuple[str, int, Sequence[_Sizes]]]
"""Names of tensors, each with the dimension of its heads and the sizes of its parts."""

_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q", "k", "v"))
_FUSED = ("qkv", "c_attn", "qkv_proj", "query_key_value")
_OUTPUTS = ("o_proj", "out_proj", "out", "proj", "c_proj", "out_lin", "o", "dense")
_OUTPUT_BESIDE = "output.dense"
"""The output projection in BERT's layout, a sibling of the attention."""
_OF_QUERIES = ("q_norm.weight", "q_norm.bias", "q_layernorm.weight", "q_layernorm.bias", "q_bias")
_OF_KEYS = ("k_norm.weight", "k_norm.bias", "k_layernorm.weight", "k_layernorm.bias", "k_bias", "v_bias")
"""Vectors of queries, and of keys or values: some of one head, others of all."""
_N_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_N_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_key_value_groups")
_HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")


class _Heads(NamedTuple):
    """The heads of an attention.

    Attributes:
        n_keys: The number of key and value heads.
        n_queries: The number of query heads for each of them; None if the layout has no such groups.
        inner: The sizes within a head.
    """

    n_keys: int
    n_queries: int | None
    inner: _Sizes

    @property
    def keys(self) -> _Sizes:
        """The sizes of keys, and of values."""
        return (self.n_keys, *(() if self.n_queries is None else (1,)), *self.inner)

    @property
    def queries(self) -> _Sizes:
        """The sizes of queries, and of the inputs of the output projection."""
        return (self.n_keys, *(() if self.n_queries is None else (self.n_queries,)), *self.inner)


def is_transposed(layer: nn.Module) -> bool:
    """Returns whether a layer is Hugging Face's ``Conv1D``, whose weight is ``(inputs, outputs)``."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def known_parts(path: str, modules: Mapping[str, nn.Module]) -> _Parts:
    """Yields an attention's tensors by full name, each with the dimension and sizes of its parts.

    Some may not exist, or have other shapes. Nothing is yielded for other modules, and for unknown layouts.

    Args:
        path: The name of the module.
        modules: All modules of the model by name.
    """
    module, prefix = modules[path], f"{path}." if path else ""
    if hasattr(module, "in_proj_weight"):
        yield from ((f"{prefix}{name}", dim, sizes) for name, dim, sizes in _torch_parts(module))
        return
    beside = f"{path.rpartition('.')[0]}.{_OUTPUT_BESIDE}".removeprefix(".")
    output = next((name for name in (*(f"{prefix}{own}" for own in _OUTPUTS), beside) if name in modules), "")
    if not output:
        return
    n_heads, width = _number(module, _N_HEADS), _width(modules[output], inputs=True)
    if not n_heads or not width or width % n_heads or _number(module, _HEAD_SIZES) not in (0, width // n_heads):
        return
    heads, rows = _projections(module, n_heads, width // n_heads)
    for name, parts in rows.items():
        yield f"{prefix}{name}.weight", int(is_transposed(modules[f"{prefix}{name}"])), parts
        yield f"{prefix}{name}.bias", 0, parts
    if rows:
        yield f"{output}.weight", int(not is_transposed(modules[output])), [heads.queries]
        for names, sizes in ((_OF_QUERIES, heads.queries), (_OF_KEYS, heads.keys)):
            yield from ((f"{prefix}{name}", 0, [own]) for name in names for own in (sizes, heads.inner))


def _torch_parts(module: nn.Module) -> _Parts:
    """Yields the parts of ``nn.MultiheadAttention``, and of modules with the same parameters."""
    n_heads, size = _number(module, _N_HEADS), _number(module, _HEAD_SIZES)
    if n_heads and size:
        own = _Heads(n_heads, None, (size,))
        yield from ((name, 0, [own.queries, own.keys, own.keys]) for name in ("in_proj_weight", "in_proj_bias"))
        yield "q_proj_weight", 0, [own.queries]
        yield from ((name, 0, [own.keys]) for name in ("k_proj_weight", "v_proj_weight"))
        yield from ((name, 2, [own.keys]) for name in ("bias_k", "bias_v"))
        yield "out_proj.weight", 1, [own.queries]


def _projections(module: nn.Module, n_heads: int, size: int) -> tuple[_Heads, dict[str, Sequence[_Sizes]]]:
    """Returns the heads of an attention, and the parts of each projection's rows."""
    children = dict(module.named_children())
    inner = _inner(module, size)
    for queries, keys, values in _SEPARATE:
        widths = [_width(children.get(name)) for name in (queries, keys, values)]
        n_keys = widths[1] // size
        if n_keys and widths == [n_heads * size, n_keys * size, n_keys * size] and n_heads % n_keys == 0:
            own = _Heads(n_keys, _per_key(module, n_heads, n_keys), inner)
            return own, {queries: [own.queries], keys: [own.keys], values: [own.keys]}
    for name in _FUSED:
        n_parts, rest = divmod(_width(children.get(name)), size)
        is_cross = name == "c_attn" and "q_attn" in children
        n_keys = n_parts // 2 if is_cross else (n_parts - n_heads) // 2
        if rest or n_keys < 1 or n_heads % n_keys or n_parts != 2 * n_keys + (0 if is_cross else n_heads):
            continue
        own = _Heads(n_keys, _per_key(module, n_heads, n_keys), inner)
        if is_cross:
            return own, {name: [own.keys, own.keys], "q_attn": [own.queries]}
        if _is_by_head(name, module):
            return own, {name: [(n_heads, 3, *inner)]} if n_keys == n_heads else {}
        return own, {name: [own.queries, own.keys, own.keys]}
    return _Heads(0, None, inner), {}


def _per_key(module: nn.Module, n_heads: int, n_keys: int) -> int | None:
    """Returns the number of query heads for each key head; None without groups."""
    return n_heads // n_keys if n_heads != n_keys or _number(module, _N_KEYS) else None


def _is_by_head(name: str, module: nn.Module) -> bool:
    """Returns whether a fused projection has each head's query, key and value together."""
    multi_query = getattr(module, "multi_query", True)  # of GPTBigCode
    return name == "query_key_value" or bool(getattr(module, "head_first", False)) or not multi_query


def _inner(module: nn.Module, size: int) -> _Sizes:
    """Returns the sizes within a head: two halves if rotary positions turn one against the other.

    If only the first half or quarter of a head has positions, each half or quarter is split like it.
    """
    share = _rotary_share(module)
    n_blocks = round(1 / share) if share else 0
    if not share or abs(n_blocks * share - 1) > 1e-6 or size % (2 * n_blocks):
        return (size,)
    return (n_blocks, 2, size // (2 * n_blocks))


def _rotary_share(module: nn.Module) -> float:
    """Returns the share of a head that rotary positions turn in halves.

    It is 0.0 without such positions, and if they turn neighbors.
    """
    if getattr(module, "rotate_half", False) is True:  # timm
        return 1.0
    names = [kind.__module__ for kind in type(module).__mro__ if kind.__module__.startswith("transformers.")]
    rotate = next(filter(None, (getattr(sys.modules[name], "rotate_half", None) for name in names)), None)
    if rotate is None or rotate(torch.arange(4.0)).tolist() != [-2.0, -3.0, 0.0, 1.0]:
        return 0.0
    rotary = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    return float(rotary.get("partial_rotary_factor") or 1.0)


def _number(module: nn.Module, names: Sequence[str]) -> int:
    """Returns the first of these attributes that a module or its ``config`` has, or 0."""
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            if type(value := getattr(owner, name, None)) is int and value > 0:
                return value
    return 0


def _width(layer: nn.Module | None, *, inputs: bool = False) -> int:
    """Returns the outputs or inputs of a linear layer; 0 for other layers."""
    if layer is None or not (isinstance(layer, nn.Linear) or is_transposed(layer)):
        return 0
    weight = layer.get_parameter("weight")
    return 0 if is_lazy(weight) else weight.shape[0 if is_transposed(layer) == inputs else 1]
