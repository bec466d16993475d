"""Aligns the layers of two networks by their order, whatever their names."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from nas.core.errors import ConfigurationError

logger = logging.getLogger(__name__)
_MAX_CELLS = 4_000_000  # 2,000 blocks each: half a second and 32 MB


class LayerTensors(NamedTuple):
    """The tensors of one module, with those of its parametrizations and without those of its submodules.

    Attributes:
        prefix: The prefix of their names.
        tensors: Name, shape and kind of number of each, sorted by name.
        n_elements: Their elements.
        channel_layer: The prefix of the last layer up to this one that mixes channels, as a convolution does, or "".
    """

    prefix: str
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]
    n_elements: int
    channel_layer: str

    @property
    def names(self) -> list[str]:
        """The full names of the tensors."""
        return [f"{self.prefix}.{name}" if self.prefix else name for name, _, _ in self.tensors]


def layers_of(state: Mapping[str, Tensor], order: Sequence[str] = ()) -> list[LayerTensors]:
    """Returns the layers that have tensors, in order.

    Args:
        state: Tensors by name, in the order of definition.
        order: The layers that come first (``execution_order``).
    """
    named = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor) and not is_lazy(tensor)}
    own_names: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(named):
        own_names[_prefix(name)].append(name)
    groups = [(prefix, own_names[prefix]) for prefix in dict.fromkeys(map(_prefix, named))]
    positions = {prefix: position for position, prefix in enumerate(order)}
    groups.sort(key=lambda group: positions.get(group[0], len(positions)))
    channel_layer = ""
    layers: list[LayerTensors] = []
    for prefix, names in groups:
        if any(named[name].ndim > 1 for name in names):
            channel_layer = prefix
        start = len(prefix) + 1 if prefix else 0
        own = tuple((name[start:], tuple(named[name].shape), _kind(named[name].dtype)) for name in names)
        layers.append(LayerTensors(prefix, own, sum(named[name].numel() for name in names), channel_layer))
    return layers


def _prefix(name: str) -> str:
    """Returns the name of the module that owns a tensor, or whose parametrization does."""
    owner, is_parametrization, _ = f".{name}".partition(".parametrizations.")
    return (owner if is_parametrization else owner.rpartition(".")[0]).removeprefix(".")


def _kind(dtype: torch.dtype) -> str:
    """Returns the kind of number, without its size, since values are cast to the child's type."""
    if dtype.is_floating_point or dtype.is_complex:
        return "complex" if dtype.is_complex else "floating"
    return "bool" if dtype == torch.bool else "integer"


def channel_weights(layers: Iterable[LayerTensors]) -> dict[str, str]:
    """Returns, by tensor name, the name of its channel weight: the weight that makes its channels.

    That of a norm is the weight of the convolution before it.
    """
    found: dict[str, str] = {}
    weights: dict[str, str] = {}
    for layer in layers:
        if layer.prefix == layer.channel_layer and layer.prefix not in weights:
            mixing = [own for own, (_, shape, _) in zip(layer.names, layer.tensors, strict=True) if len(shape) > 1]
            weights |= {layer.prefix: mixing[0]} if mixing else {}
        if layer.channel_layer in weights:
            found |= dict.fromkeys(layer.names, weights[layer.channel_layer])
    return found


def execution_order(module: nn.Module) -> list[str]:
    """Returns the names of the modules in the order in which ``forward`` uses them.

    ``forward`` is traced on a copy, so that buffers, attributes and torch's generator do not change.

    Raises:
        ConfigurationError: torch.fx can't trace the module, or it can't be copied.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            graph = fx.Tracer().trace(deepcopy(module))
    except Exception as error:  # a user's forward may raise anything
        raise ConfigurationError(f"torch.fx can't trace {type(module).__name__}: {error}") from error
    used = [(node.op, str(node.target)) for node in graph.nodes if node.op in ("call_module", "get_attr")]
    return list(dict.fromkeys(name if op == "call_module" else name.rpartition(".")[0] for op, name in used))


def align(child: Sequence[LayerTensors], donor: Sequence[LayerTensors]) -> dict[str, str]:
    """Returns the donor's tensor in the same position, for each tensor of the child, by name.

    Layers with equal tensors are aligned in order: the common subsequence with the most elements. A norm, or any other
    layer that only scales or shifts channels, is aligned together with the convolution before it. Its values belong to
    that convolution's channels.

    Args:
        child: The child's layers, in order.
        donor: The donor's layers, in order.
    """
    ours, theirs = _blocks(child), _blocks(donor)
    if len(ours) * len(theirs) > _MAX_CELLS:
        logger.warning("%d and %d layers are too many to align; they are matched by name", len(child), len(donor))
        return {}
    kinds: dict[object, int] = {}
    our_kinds, their_kinds = (
        [kinds.setdefault(_kind_key(block), len(kinds)) for block in side] for side in (ours, theirs)
    )
    by_first_layer: defaultdict[object, dict[int, Block]] = defaultdict(dict)
    for block, kind in zip(theirs, their_kinds, strict=True):
        by_first_layer[_first_layer_key(block)][kind] = block
    gains = {  # elements that a kind of the child's blocks gets from each kind of the donor's
        kind: {
            their_kind: sum(block[index].n_elements + 1 for index, _ in _pairs(block, their_block))
            for their_kind, their_block in by_first_layer[_first_layer_key(block)].items()
        }
        for kind, block in dict(zip(our_kinds, ours, strict=True)).items()
    }
    weights = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below, gain = weights[i], weights[i + 1], gains[our_kinds[i]]
        best = 0
        for j in range(len(theirs) - 1, -1, -1):
            if below[j] > best:
                best = below[j]
            if (weight := gain.get(their_kinds[j])) and below[j + 1] + weight > best:
                best = below[j + 1] + weight
            row[j] = best
    found: dict[str, str] = {}
    i = j = 0
    while i < len(ours) and j < len(theirs):
        weight = gains[our_kinds[i]].get(their_kinds[j])
        if weight and weights[i][j] == weights[i + 1][j + 1] + weight:
            for our_index, their_index in _pairs(ours[i], theirs[j]):
                found |= dict(zip(ours[i][our_index].names, theirs[j][their_index].names, strict=True))
            i, j = i + 1, j + 1
        elif weights[i][j] == weights[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


Block = Sequence[LayerTensors]
"""A layer that mixes channels, and the layers after it that scale or shift its channels."""


def _blocks(layers: Sequence[LayerTensors]) -> list[Block]:
    return [list(block) for _, block in groupby(layers, key=lambda layer: layer.channel_layer)]


def _kind_key(block: Block) -> tuple[object, ...]:
    """Returns a key that is equal for blocks for which ``_pairs`` gives equal results."""
    return (_first_layer_key(block), *(layer.tensors for layer in block))


def _first_layer_key(block: Block) -> object:
    """Returns the tensors of the block's channel layer; its name if it is elsewhere."""
    first = block[0]
    return first.tensors if first.prefix == first.channel_layer else first.channel_layer


def _pairs(one: Block, other: Block) -> list[tuple[int, int]]:
    """Returns the index pairs of equal layers, in order, of two blocks with equal channel layers."""
    found: list[tuple[int, int]] = []
    start = 0
    for index, layer in enumerate(one):
        match = next((at for at in range(start, len(other)) if other[at].tensors == layer.tensors), None)
        if match is not None:
            found.append((index, match))
            start = match + 1
    return found
