"""Known layouts of attentions: torch's, Hugging Face's and timm's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import nn

from nas.inheritance.attention_heads import (
    HEAD_SIZES,
    N_HEADS,
    Heads,
    Sizes,
    grouped_heads,
    has_keys,
    is_transposed,
    number_of,
    width_of,
)

_Parts: TypeAlias = Iterator[tuple[str, int, Sequence[Sizes]]]
"""Names of tensors, each with the dimension of its heads and the sizes of its parts."""

SEPARATE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("wq", "wk", "wv"),
    ("to_q", "to_k", "to_v"),
)
"""Queries, keys and values."""
_PAIRS = (("q", "kv"), ("to_q", "to_kv"), ("q_attn", "c_attn"))
"""Queries, and keys with values."""
_FUSED = ("qkv", "c_attn", "qkv_proj", "query_key_value", "Wqkv", "qkv_linear", "to_qkv")
_OUTPUTS = (
    "o_proj",
    "out_proj",
    "out",
    "proj",
    "c_proj",
    "out_lin",
    "o",
    "dense",
    "Wo",
    "wo",
    "to_out",
    "to_out.0",
    "projection",
)
_OUTPUT_BESIDE = "output.dense"
"""The output projection in BERT's layout, a sibling of the attention."""
_OF_QUERIES = ("q_norm.weight", "q_norm.bias", "q_layernorm.weight", "q_layernorm.bias", "q_bias")
_OF_KEYS = ("k_norm.weight", "k_norm.bias", "k_layernorm.weight", "k_layernorm.bias", "k_bias", "v_bias")
"""Vectors of queries, and of keys or values: some of one head, others of all."""


class _Projections(NamedTuple):
    """The heads of an attention, and the parts of each projection's rows."""

    heads: Heads
    rows: Mapping[str, Sequence[Sizes]]


def known_parts(path: str, modules: Mapping[str, nn.Module]) -> _Parts:
    """Yields an attention's tensors by full name, each with the dimension and sizes of its parts.

    Some may not exist, or have other shapes. Nothing is yielded for other modules, and for unknown layouts.

    Args:
        path: The name of the module.
        modules: All modules of the model by name.
    """
    module, prefix = modules[path], f"{path}." if path else ""
    if hasattr(module, "in_proj_weight") or hasattr(module, "in_split"):
        own = _torch_parts(module) if hasattr(module, "in_proj_weight") else _parallel_parts(module)
        yield from ((f"{prefix}{name}", dim, sizes) for name, dim, sizes in own)
        return
    beside = f"{path.rpartition('.')[0]}.{_OUTPUT_BESIDE}".removeprefix(".")
    output = next((name for name in (*(f"{prefix}{own}" for own in _OUTPUTS), beside) if name in modules), "")
    found = _projections(module, width_of(modules[output], inputs=True)) if output else None
    if found is None:
        return
    for name, parts in found.rows.items():
        yield f"{prefix}{name}.weight", int(is_transposed(modules[f"{prefix}{name}"])), parts
        yield f"{prefix}{name}.bias", 0, parts
    heads = found.heads
    yield f"{output}.weight", int(not is_transposed(modules[output])), [heads.queries]
    for names, sizes in ((_OF_QUERIES, heads.queries), (_OF_KEYS, heads.keys)):
        yield from ((f"{prefix}{name}", 0, [own]) for name in names for own in (sizes, heads.inner))


def _torch_parts(module: nn.Module) -> _Parts:
    """Yields the parts of ``nn.MultiheadAttention``, and of modules with the same parameters."""
    n_heads, size = number_of(module, N_HEADS), number_of(module, HEAD_SIZES)
    if n_heads and size:
        own = Heads(n_heads, None, (size,))
        yield from ((name, 0, [own.queries, own.keys, own.keys]) for name in ("in_proj_weight", "in_proj_bias"))
        yield "q_proj_weight", 0, [own.queries]
        yield from ((name, 0, [own.keys]) for name in ("k_proj_weight", "v_proj_weight"))
        yield from ((name, 2, [own.keys]) for name in ("bias_k", "bias_v"))
        yield "out_proj.weight", 1, [own.queries]


def _parallel_parts(module: nn.Module) -> _Parts:
    """Yields the parts of timm's blocks in which attention and MLP share their projections."""
    n_heads, size, split = number_of(module, N_HEADS), number_of(module, HEAD_SIZES), getattr(module, "in_split", ())
    if isinstance(split, Sequence) and list(split[1:]) == [n_heads * size] * 3:
        heads, hidden = (n_heads, size), (split[0],)
        yield from ((f"in_proj.{name}", 0, [hidden, *[heads] * 3]) for name in ("weight", "bias"))
        yield "out_proj.weight", 1, [heads, hidden]
        yield "attn_out_proj.weight", 1, [heads]


def _projections(module: nn.Module, width: int) -> _Projections | None:
    """Returns an attention's projections; None if unknown.

    Args:
        module: The attention.
        width: The number of inputs of its output projection.
    """
    n_heads = number_of(module, N_HEADS)
    if not n_heads or not width or width % n_heads or number_of(module, HEAD_SIZES) not in (0, width // n_heads):
        return None
    size = width // n_heads
    return (
        _separate(module, n_heads, size)
        or _fused_in_pairs(module, n_heads, size)
        or _fused_by_three(module, n_heads, size)
    )


def _separate(module: nn.Module, n_heads: int, size: int) -> _Projections | None:
    """Returns queries, keys and values of three layers."""
    children = dict(module.named_children())
    for queries, keys, values in SEPARATE:
        widths = [width_of(children.get(name)) for name in (queries, keys, values)]
        n_keys = widths[1] // size
        if n_keys and widths == [n_heads * size, n_keys * size, n_keys * size] and n_heads % n_keys == 0:
            own = grouped_heads(module, n_heads, n_keys, size)
            return _Projections(own, {queries: [own.queries], keys: [own.keys], values: [own.keys]})
    return None


def _fused_in_pairs(module: nn.Module, n_heads: int, size: int) -> _Projections | None:
    """Returns queries of one layer, and keys with values of another."""
    children = dict(module.named_children())
    for queries, both in _PAIRS:
        widths = [width_of(children.get(name)) for name in (queries, both)]
        n_keys = widths[1] // (2 * size)
        if widths == [n_heads * size, 2 * n_keys * size] and has_keys(module, n_heads, n_keys):
            own = grouped_heads(module, n_heads, n_keys, size)
            return _Projections(own, {both: [own.keys, own.keys], queries: [own.queries]})
    return None


def _fused_by_three(module: nn.Module, n_heads: int, size: int) -> _Projections | None:
    """Returns queries, keys and values of one layer."""
    children = dict(module.named_children())
    for name in _FUSED:
        n_keys, rest = divmod(width_of(children.get(name)) - n_heads * size, 2 * size)
        if rest or not has_keys(module, n_heads, n_keys):
            continue
        own = grouped_heads(module, n_heads, n_keys, size)
        if n_groups := getattr(module, "mp_num", 0):  # of CodeGen: queries, values and keys in each of four groups
            own = Heads(n_groups, n_heads // n_groups, own.inner)
            parts = (n_groups, 3, n_heads // n_groups, *own.inner)
            return _Projections(own, {name: [parts]}) if n_heads % n_groups == 0 else None
        if _is_by_head(name, module):
            return _Projections(own, {name: [(n_heads, 3, *own.inner)]}) if n_keys == n_heads else None
        return _Projections(own, {name: [own.queries, own.keys, own.keys]})
    return None


def _is_by_head(name: str, module: nn.Module) -> bool:
    """Returns whether a fused projection has each head's query, key and value together."""
    if getattr(module, "new_decoder_architecture", False) or getattr(module, "head_first", False):  # of Falcon; of timm
        return True
    if hasattr(module, "multi_query"):  # of GPTBigCode and Falcon
        return not module.multi_query
    return name == "query_key_value" or hasattr(module, "slope_rate")  # of MiniMax
