"""Tensors that stack several projections: queries, keys and values, or a gate and its values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torch import nn
from torch.nn.modules.conv import _ConvNd

from nas.inheritance.attention_heads import N_HEADS, number_of, width_of
from nas.inheritance.attention_layouts import SEPARATE
from nas.storage.tensor_parts import TensorParts

_ONE_PROJECTION = {name for names in SEPARATE for name in names}
_SEVERAL = ("qkv", "kv", "query_key_value", "c_attn", "in_proj", "gate_up")
"""Words in the names of layers that stack projections."""


def fused_names(model: nn.Module, parts: Mapping[str, TensorParts]) -> set[str]:
    """Returns the names of tensors that stack projections, or may do so in an unknown layout.

    Args:
        model: The model.
        parts: Its known parts (``nas.inheritance.attention.parts_of``).
    """
    found = {name for name, own in parts.items() if len(own.sizes) > 1}
    for path, module in model.named_modules(remove_duplicate=False):
        for own in _stacking_layers(module):
            names = [f"{path}.{own}.{tensor}".lstrip(".") for tensor in ("weight", "bias")]
            if own not in _ONE_PROJECTION or names[0] not in parts:
                found.update(names)
    return found


def inferred_parts(own: TensorParts | None, shape: Sequence[int]) -> TensorParts | None:
    """Returns the parts of a donor's tensor from the child's; None if they can't be told.

    Several equal parts of the child are as many equal parts of the donor, with heads of the same size.
    """
    if own is None or len(own.sizes) < 2 or len(set(own.sizes)) > 1 or own.dim >= len(shape):
        return None
    n_heads, rest = divmod(shape[own.dim], len(own.sizes) * math.prod(own.sizes[0][1:]))
    return None if rest or not n_heads else TensorParts(own.dim, ((n_heads, *own.sizes[0][1:]),) * len(own.sizes))


def _stacking_layers(module: nn.Module) -> Iterator[str]:
    """Yields the names of an attention's layers that may stack projections.

    No layer beside them reads all of their outputs. These are a multiple of what one reads, or the name says so.
    """
    is_attention = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    if not number_of(module, N_HEADS) or not (is_attention or any(hasattr(module, name) for name in N_HEADS)):
        return
    layers = {name: (_outputs(layer), _inputs(layer)) for name, layer in module.named_modules() if _outputs(layer)}
    for name, (n_outputs, n_inputs) in layers.items():
        read = {other for own, (_, other) in layers.items() if own != name}
        if n_outputs in read:
            continue
        is_named = any(word in name for word in _SEVERAL) and n_outputs > n_inputs
        is_multiple = any(n_outputs % other == 0 for other in (*read, n_inputs) if n_outputs >= 2 * other)
        if is_named or (is_multiple and "." not in name):
            yield name


def _outputs(layer: nn.Module) -> int:
    """Returns the outputs of a linear layer or a convolution without groups; 0 for other layers."""
    if isinstance(layer, _ConvNd):
        return 0 if layer.groups > 1 or layer.transposed else layer.out_channels
    return width_of(layer)


def _inputs(layer: nn.Module) -> int:
    """Returns the inputs of a linear layer or a convolution; 0 for other layers."""
    return layer.in_channels if isinstance(layer, _ConvNd) else width_of(layer, inputs=True)
