"""The roles of the tensors of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

from nas.inheritance.attention import parts_of
from nas.inheritance.attention_heads import is_transposed
from nas.inheritance.fused_tensors import fused_names
from nas.inheritance.head_groups import n_query_heads
from nas.inheritance.image_positions import Grid, grids_of
from nas.storage.tensor_parts import TensorParts


class Role(NamedTuple):
    """The role of a tensor.

    Attributes:
        is_parameter: Whether it is a parameter, not a buffer.
        is_weight: Whether it is the weight of a linear layer, of projections of an attention, or of a convolution
            without groups: ``(outputs, inputs, ...)``.
        is_transposed: Whether its shape is ``(inputs, outputs, ...)``, as of a transposed convolution or Hugging Face's
            ``Conv1D``.
        n_kernel_dims: The number of kernel dimensions, the last ones.
        groups: The groups of a convolution; 0 for other layers.
        n_stacked: The number of parts stacked in it: gates of a recurrent layer, projections of an attention.
        parts: The heads of an attention in it, if they are known.
        n_queries: The number of query heads of its attention, if they are in groups with a key head each.
        grid: The grid of its learned positions of an image, or None.
        is_fused: Whether it stacks several projections, or may do so in an unknown layout.
    """

    is_parameter: bool
    is_weight: bool = False
    is_transposed: bool = False
    n_kernel_dims: int = 0
    groups: int = 0
    n_stacked: int = 1
    parts: TensorParts | None = None
    n_queries: int = 0
    grid: Grid | None = None
    is_fused: bool = False


class Roles:
    """The roles of the tensors of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._weights: dict[str, nn.Module] = {}
        self._stacked: dict[str, int] = {}
        self._parts = parts_of(model)
        self._grids = grids_of(model)
        self._fused = fused_names(model, self._parts)
        for prefix, module in model.named_modules(remove_duplicate=False):
            for own, n_stacked in _stacks(module):
                self._stacked[f"{prefix}.{own}" if prefix else own] = n_stacked
            self._weights |= {f"{prefix}.{own}" if prefix else own: module for own in _weights(module)}

    def of(self, names: Sequence[str]) -> Role:
        """Returns the role of the tensor with these names."""
        modules = [self._weights[name] for name in names if name in self._weights]
        convolutions = [module for module in modules if isinstance(module, _ConvNd)]
        return Role(
            is_parameter=not self._parameters.isdisjoint(names),
            is_weight=bool(modules) and not any(conv.groups > 1 for conv in convolutions),
            is_transposed=any(map(is_transposed, modules)) or any(conv.transposed for conv in convolutions),
            n_kernel_dims=max((len(conv.kernel_size) for conv in convolutions), default=0),
            groups=max((conv.groups for conv in convolutions), default=0),
            n_stacked=max((self._stacked.get(name, 1) for name in names), default=1),
            parts=next((self._parts[name] for name in names if name in self._parts), None),
            n_queries=max((n_query_heads(name, self._parts) for name in names), default=0),
            grid=next((self._grids[name] for name in names if name in self._grids), None),
            is_fused=not self._fused.isdisjoint(names),
        )


def _weights(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of a module's weights that map inputs to outputs."""
    if isinstance(module, nn.MultiheadAttention):
        return ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    return ("weight",) if isinstance(module, nn.Linear | _ConvNd) or is_transposed(module) else ()


def _stacks(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yields the stacked tensors of a module, and the number of parts of each."""
    n_gates = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}
    for kind, n_stacked in n_gates.items():
        if isinstance(module, kind):
            names = (name for name, _ in module.named_parameters(recurse=False))
            yield from ((name, n_stacked) for name in names if not name.startswith("weight_hr"))
    if isinstance(module, nn.MultiheadAttention):
        yield from (("in_proj_weight", 3), ("in_proj_bias", 3))
