"""Which layer of a donor stands where a layer of the child stands, whatever both are called."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

logger = logging.getLogger(__name__)
_MAX_CELLS = 4_000_000  # two thousand layers each: half a second and 32 MB


class LayerTensors(NamedTuple):
    """A module's own tensors: their common prefix, and name, shape and type of each."""

    prefix: str
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]
    n_elements: int

    @property
    def names(self) -> list[str]:
        """The tensors by their full names."""
        return [f"{self.prefix}.{name}" if self.prefix else name for name, _, _ in self.tensors]


def layers_of(network: nn.Module | Mapping[str, Tensor]) -> list[LayerTensors]:
    """The layers that have tensors: in the order in which they run, as far as torch.fx can trace a module.

    Of a state dict, and of a module that can't be traced, in the order in which they were defined.
    """
    tensors = network.state_dict() if isinstance(network, nn.Module) else network
    named = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor) and not is_lazy(tensor)}
    layers = [
        LayerTensors(
            prefix,
            tuple((name.rpartition(".")[2], tuple(named[name].shape), str(named[name].dtype)) for name in names),
            sum(named[name].numel() for name in names),
        )
        for prefix, group in groupby(named, key=lambda name: name.rpartition(".")[0])
        if (names := list(group))
    ]
    if isinstance(network, nn.Module):
        places = {prefix: place for place, prefix in enumerate(execution_order(network))}
        layers.sort(key=lambda layer: places.get(layer.prefix, len(places)))
    return layers


def execution_order(module: nn.Module) -> list[str]:
    """The names of the innermost modules in the order of their first use; none where torch.fx can't trace it."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # a user's forward, run on proxies: whatever it raises, there is no graph
        logger.debug("torch.fx can't trace %s: %s", type(module).__name__, error)
        return []
    return list(dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "call_module"))


def renamed(one: Sequence[LayerTensors], other: Sequence[LayerTensors]) -> dict[str, str]:
    """By a tensor of a child, the tensor of a donor that stands in its place.

    Layers with equal tensors are aligned in their order, so that as many elements as can be find their place: the
    heaviest common subsequence.

    Args:
        one: The child's layers in order.
        other: The donor's.
    """
    if len(one) * len(other) > _MAX_CELLS:
        logger.warning("%d and %d layers are too many to be aligned; they are matched by name", len(one), len(other))
        return {}
    kinds: dict[object, int] = {}
    ours, theirs = ([kinds.setdefault(layer.tensors, len(kinds)) for layer in layers] for layers in (one, other))
    weights = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, layer in reversed(list(enumerate(one))):
        row, below = weights[i], weights[i + 1]
        best, kind, weight = 0, ours[i], layer.n_elements + 1
        for j in range(len(other) - 1, -1, -1):
            if below[j] > best:
                best = below[j]
            if kind == theirs[j] and below[j + 1] + weight > best:
                best = below[j + 1] + weight
            row[j] = best
    found: dict[str, str] = {}
    i = j = 0
    while i < len(one) and j < len(other):
        if ours[i] == theirs[j] and weights[i][j] == weights[i + 1][j + 1] + one[i].n_elements + 1:
            found |= dict(zip(one[i].names, other[j].names, strict=True))
            i, j = i + 1, j + 1
        elif weights[i][j] == weights[i + 1][j]:
            i += 1
        else:
            j += 1
    return found
