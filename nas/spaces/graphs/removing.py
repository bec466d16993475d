"""Operations that remove a layer or an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.channels import ChannelMap, resized, spread
from nas.spaces.graphs.layers import Add, Concat
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.operation import Exactness, Operation, network_of
from nas.spaces.graphs.rewiring import pruned, without_input, without_node


@dataclass(frozen=True, slots=True)
class Remove(Operation):
    """Removes a layer with equal input and output shapes; changes the function."""

    kind: ClassVar[str] = "remove"
    node: int

    @property
    def exactness(self) -> Exactness:
        """Always ``no``."""
        return "no"

    def _applied(self, network: Network) -> Network:
        return network_of(network, without_node(network, network[self.node]))


@dataclass(frozen=True, slots=True)
class Disconnect(Operation):
    """Removes an input of an add or concat with its unused nodes; changes the function."""

    kind: ClassVar[str] = "disconnect"
    node: int
    source: int

    @property
    def exactness(self) -> Exactness:
        """Always ``no``."""
        return "no"

    def _applied(self, network: Network) -> Network:
        nodes = resized(network, self.maps(network))
        return network_of(network, pruned(without_input(nodes, network[self.node], self.source)))

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Returns the maps of a concat and of all nodes that its channels reach."""
        node = network[self.node]
        if not isinstance(node.layer, Add | Concat) or self.source not in node.inputs:
            raise PointError(f"{node}: it must be an add or a concat that takes {self.source}. Choose another.")
        if isinstance(node.layer, Add):
            return {}
        kept: list[int] = []
        offset = 0
        for source in node.inputs:
            n_channels = network.shapes[source][0]
            kept += range(offset, offset + n_channels) if source != self.source else ()
            offset += n_channels
        return spread(network, {node.id: tuple(kept)})
