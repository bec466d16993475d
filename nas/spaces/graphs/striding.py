"""Operations that move a stride, and so change the resolution of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.layers import Conv, Pool
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.operation import Operation, network_of
from nas.spaces.graphs.rewiring import replaced


@dataclass(frozen=True, slots=True)
class DelayStride(Operation):
    """Moves the stride of a convolution into a pool of single pixels after it."""

    kind: ClassVar[str] = "delay_stride"
    node: int

    def _applied(self, network: Network) -> Network:
        node = network[self.node]
        if not isinstance(node.layer, Conv) or node.layer.stride == 1:
            raise PointError(f"{node}: it must be a convolution with a stride of 2 or more. Choose another.")
        layer = node.layer
        pool = Node(network.new_ids(1)[0], Pool("max", 1, layer.stride), (node.id,))
        return network.inserted(node.id, [pool], layer=Conv(layer.channels, layer.kernel, 1, layer.bias))


@dataclass(frozen=True, slots=True)
class FuseStride(Operation):
    """Moves the stride of a pool of single pixels into the convolution before it."""

    kind: ClassVar[str] = "fuse_stride"
    node: int

    def _applied(self, network: Network) -> Network:
        node = network[self.node]
        users = network.consumers(node.id)
        pool = users[0].layer if len(users) == 1 else None
        if not isinstance(node.layer, Conv) or not isinstance(pool, Pool) or pool.kernel != 1:
            raise PointError(
                f"{node}: it must be a convolution with a pool of kernel 1 as its only consumer. Choose another."
            )
        layer = Conv(node.layer.channels, node.layer.kernel, node.layer.stride * pool.stride, node.layer.bias)
        return network_of(network, replaced(network.nodes, Node(node.id, layer, node.inputs), users[0].id))
