"""Which layer of a donor stands where a layer of the child stands, whatever both are called."""

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
_MAX_CELLS = 4_000_000  # two thousand blocks each: half a second and 32 MB


class LayerTensors(NamedTuple):
    """A module's own tensors: their common prefix, and name, shape and kind of number of each, by name."""

    prefix: str
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]
    n_elements: int
    leader: str
    """The prefix of the last layer up to it that mixes channels, as a convolution does; "" where none does."""

    @property
    def names(self) -> list[str]:
        """The tensors by their full names."""
        return [f"{self.prefix}.{name}" if self.prefix else name for name, _, _ in self.tensors]


def layers_of(state: Mapping[str, Tensor], order: Sequence[str] = ()) -> list[LayerTensors]:
    """Returns the layers that have tensors.

    Args:
        state: By name, in the order in which they were defined.
        order: The layers that come first, as ``execution_order`` gives them.
    """
    named = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor) and not is_lazy(tensor)}
    own_names: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(named):
        own_names[name.rpartition(".")[0]].append(name)
    groups = [(prefix, own_names[prefix]) for prefix in dict.fromkeys(name.rpartition(".")[0] for name in named)]
    places = {prefix: place for place, prefix in enumerate(order)}
    groups.sort(key=lambda one: places.get(one[0], len(places)))
    leader = ""
    layers: list[LayerTensors] = []
    for prefix, names in groups:
        if any(named[name].ndim > 1 for name in names):
            leader = prefix
        own = tuple((name.rpartition(".")[2], tuple(named[name].shape), _kind(named[name].dtype)) for name in names)
        layers.append(LayerTensors(prefix, own, sum(named[name].numel() for name in names), leader))
    return layers


def _kind(dtype: torch.dtype) -> str:
    """What a tensor's values are, whatever their size: they are cast to the child's type."""
    if dtype.is_floating_point or dtype.is_complex:
        return "complex" if dtype.is_complex else "floating"
    return "bool" if dtype == torch.bool else "integer"


def leaders_of(layers: Iterable[LayerTensors]) -> dict[str, str]:
    """By a tensor's name, the first of those of its layer's leader that mix channels: a convolution's weight, say."""
    found: dict[str, str] = {}
    heads: dict[str, str] = {}
    for layer in layers:
        if layer.prefix == layer.leader and layer.prefix not in heads:
            mixing = [own for own, (_, shape, _) in zip(layer.names, layer.tensors, strict=True) if len(shape) > 1]
            heads |= {layer.prefix: mixing[0]} if mixing else {}
        if layer.leader in heads:
            found |= dict.fromkeys(layer.names, heads[layer.leader])
    return found


def execution_order(module: nn.Module) -> list[str]:
    """The names of the innermost modules in the order of their first use, and of others when their tensors are used.

    Its ``forward`` runs, on a copy, so that buffers, attributes and torch's generator stay as they were.

    Raises:
        ConfigurationError: torch.fx can't trace the module, or it can't be copied.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            graph = fx.Tracer().trace(deepcopy(module))
    except Exception as error:  # a user's forward, run on proxies: whatever it raises, there is no graph
        raise ConfigurationError(f"torch.fx can't trace {type(module).__name__}: {error}") from error
    used = [(node.op, str(node.target)) for node in graph.nodes if node.op in ("call_module", "get_attr")]
    return list(dict.fromkeys(name if op == "call_module" else name.rpartition(".")[0] for op, name in used))


def renamed(one: Sequence[LayerTensors], other: Sequence[LayerTensors]) -> dict[str, str]:
    """By a tensor of a child, the tensor of a donor that stands in its place.

    Layers with equal tensors are aligned in their order, so that as many elements as can be find their place: the
    heaviest common subsequence. What only scales or shifts channels, as a norm does, goes with the weights before it:
    a norm whose convolution was not found would be of other channels, however many there are.

    Args:
        one: The child's layers in order.
        other: The donor's.
    """
    ours, theirs = _blocks(one), _blocks(other)
    if len(ours) * len(theirs) > _MAX_CELLS:
        logger.warning("%d and %d layers are too many to be aligned; they are matched by name", len(one), len(other))
        return {}
    kinds: dict[object, int] = {}
    signs, other_signs = ([kinds.setdefault(_sign(block), len(kinds)) for block in side] for side in (ours, theirs))
    led: defaultdict[object, dict[int, Block]] = defaultdict(dict)
    for block, sign in zip(theirs, other_signs, strict=True):
        led[_led_by(block)][sign] = block
    gains = {  # of a kind of the child's block: what each kind of the donor's gives it
        sign: {
            its_sign: sum(block[place].n_elements + 1 for place, _ in _pairs(block, its))
            for its_sign, its in led[_led_by(block)].items()
        }
        for sign, block in dict(zip(signs, ours, strict=True)).items()
    }
    weights = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below, gain = weights[i], weights[i + 1], gains[signs[i]]
        best = 0
        for j in range(len(theirs) - 1, -1, -1):
            if below[j] > best:
                best = below[j]
            if (weight := gain.get(other_signs[j])) and below[j + 1] + weight > best:
                best = below[j + 1] + weight
            row[j] = best
    found: dict[str, str] = {}
    i = j = 0
    while i < len(ours) and j < len(theirs):
        weight = gains[signs[i]].get(other_signs[j])
        if weight and weights[i][j] == weights[i + 1][j + 1] + weight:
            for mine, its in _pairs(ours[i], theirs[j]):
                found |= dict(zip(ours[i][mine].names, theirs[j][its].names, strict=True))
            i, j = i + 1, j + 1
        elif weights[i][j] == weights[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


Block = Sequence[LayerTensors]
"""Layers with one leader: it, where it is to be aligned, and those behind it that only scale or shift its channels."""


def _blocks(layers: Sequence[LayerTensors]) -> list[Block]:
    return [list(block) for _, block in groupby(layers, key=lambda layer: layer.leader)]


def _sign(block: Block) -> tuple[object, ...]:
    """What two blocks have in common for which ``_pairs`` finds the same."""
    return (_led_by(block), *(layer.tensors for layer in block))


def _led_by(block: Block) -> object:
    """Returns its leader's tensors; its leader's name, where the leader itself is not to be aligned."""
    return block[0].tensors if block[0].prefix == block[0].leader else block[0].leader


def _pairs(one: Block, other: Block) -> list[tuple[int, int]]:
    """Returns the places of the equal layers, in order, of two blocks with equal leaders."""
    found: list[tuple[int, int]] = []
    begin = 0
    for mine, layer in enumerate(one):
        its = next((at for at in range(begin, len(other)) if other[at].tensors == layer.tensors), None)
        if its is not None:
            found.append((mine, its))
            begin = its + 1
    return found
