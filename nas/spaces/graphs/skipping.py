"""Operations that add skip connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.channels import NEW, ChannelMap, spread
from nas.spaces.graphs.layers import Add, Concat, Conv, Layer, Linear, Pool, Scale
from nas.spaces.graphs.network import INPUT, Network, Node
from nas.spaces.graphs.operation import Operation, shape_of


@dataclass(frozen=True, slots=True)
class AddSkip(Operation):
    """Adds a node's output, times 0 at first, to a later node's output.

    A scale does it if the shapes are equal, else a 1x1 convolution with a fitting stride.

    Attributes:
        source: The earlier node, or the network's input.
        target: The later node.
    """

    kind: ClassVar[str] = "add_skip"
    source: int
    target: int

    def _applied(self, network: Network) -> Network:
        _check_order(network, self.source, self.target)
        layer, add = self._path(network), Add()
        path, join = network.new_ids(2)
        nodes = [Node(path, layer, (self.source,)), Node(join, add, (self.target, path))]
        return network.inserted(self.target, nodes)

    def _path(self, network: Network) -> Layer:
        source, target = shape_of(network, self.source), shape_of(network, self.target)
        if source == target:
            return Scale()
        if len(source) == len(target) == 1:
            return Linear(target[0], False)
        return _bridge(network, self.source, self.target, lambda stride: [Conv(target[0], 1, stride, False)])


@dataclass(frozen=True, slots=True)
class ConcatSkip(Operation):
    """Appends the channels of a node to those of a later node.

    Consumers start with weights of 0 for them.

    Attributes:
        source: The earlier node, or the network's input. A larger image is pooled by ``max``.
        target: The later node.
    """

    kind: ClassVar[str] = "concat_skip"
    source: int
    target: int

    def _applied(self, network: Network) -> Network:
        self.maps(network)
        pool, join = network.new_ids(2)
        nodes, source = [], self.source
        if shape_of(network, source)[1:] != shape_of(network, self.target)[1:]:
            bridge = _bridge(
                network, source, self.target, lambda stride: [Pool("max", k, stride) for k in (stride, stride + 1)]
            )
            nodes.append(Node(pool, bridge, (source,)))
            source = pool
        return network.inserted(self.target, [*nodes, Node(join, Concat(), (self.target, source))])

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Returns the maps of the target and of the nodes that its channels reach."""
        _check_order(network, self.source, self.target)
        own, more = shape_of(network, self.target)[0], shape_of(network, self.source)[0]
        return spread(network, {self.target: (*range(own), *[NEW] * more)})


def _check_order(network: Network, source: int, target: int) -> None:
    ids = [INPUT, *(node.id for node in network.nodes)]
    if source not in ids or target not in ids[1:] or ids.index(source) >= ids.index(target):
        raise PointError(f"a skip from {source} to {target}: both must be nodes, the source first. Choose others.")


def _bridge(network: Network, source: int, target: int, layers: Callable[[int], Sequence[Layer]]) -> Layer:
    """Returns the first layer that makes the source's image as large as the target's.

    Args:
        network: The network.
        source: The earlier node.
        target: The later node.
        layers: Returns the possible layers for a stride.

    Raises:
        PointError: no layer does.
    """
    one, other = shape_of(network, source), shape_of(network, target)
    strides = {math.ceil(one[1] / other[1]), one[1] // other[1]} if len(one) == len(other) == 3 else set()
    for stride in sorted(strides - {0}):
        for layer in layers(stride):
            if layer.shape([one])[1:] == other[1:]:
                return layer
    raise PointError(f"a skip from {source} {one} to {target} {other}: no stride makes them as large. Choose others.")
