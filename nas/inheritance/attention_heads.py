"""Sizes of the heads of an attention, from its attributes and layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

Sizes: TypeAlias = tuple[int, ...]

N_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")
_N_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads")
_N_GROUPS = "num_key_value_groups"


class Heads(NamedTuple):
    """The heads of an attention.

    Attributes:
        n_keys: The number of key and value heads.
        n_queries: The number of query heads for each of them; None if the layout has no such groups.
        inner: The sizes within a head.
    """

    n_keys: int
    n_queries: int | None
    inner: Sizes

    @property
    def keys(self) -> Sizes:
        """The sizes of keys, and of values."""
        return (self.n_keys, *(() if self.n_queries is None else (1,)), *self.inner)

    @property
    def queries(self) -> Sizes:
        """The sizes of queries, and of the inputs of the output projection."""
        return (self.n_keys, *(() if self.n_queries is None else (self.n_queries,)), *self.inner)


def is_transposed(layer: nn.Module) -> bool:
    """Returns whether a layer is Hugging Face's ``Conv1D``, whose weight is ``(inputs, outputs)``."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def grouped_heads(module: nn.Module, n_heads: int, n_keys: int, size: int) -> Heads:
    """Returns heads of this size, in groups if the layout has them."""
    has_groups = n_heads != n_keys or number_of(module, (*_N_KEYS, _N_GROUPS)) > 0
    return Heads(n_keys, n_heads // n_keys if has_groups else None, _inner(module, size))


def has_keys(module: nn.Module, n_heads: int, n_keys: int) -> bool:
    """Returns whether there are as many key heads as query heads, or as the module says."""
    named = 1 if getattr(module, "multi_query", False) is True else number_of(module, _N_KEYS)
    return n_keys >= 1 and n_heads % n_keys == 0 and n_keys in (n_heads, named)


def number_of(module: nn.Module, names: Sequence[str]) -> int:
    """Returns the first of these attributes that a module or its ``config`` has, or 0."""
    for owner in (module, getattr(module, "config", None)):
        for name in names:
            if type(value := getattr(owner, name, None)) is int and value > 0:
                return value
    return 0


def width_of(layer: nn.Module | None, *, inputs: bool = False) -> int:
    """Returns the outputs or inputs of a linear layer; 0 for others, or without a weight."""
    if layer is None or not (isinstance(layer, nn.Linear) or is_transposed(layer)):
        return 0
    weight = layer._parameters.get("weight")
    return 0 if weight is None or is_lazy(weight) else weight.shape[0 if is_transposed(layer) == inputs else 1]


def _inner(module: nn.Module, size: int) -> Sizes:
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
