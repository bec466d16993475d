"""Operations that leave a layer or an edge out."""

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
    """A layer that gives the shape that it takes is left out; no morphism."""

    kind: ClassVar[str] = "remove"
    node: int

    @property
    def exactness(self) -> Exactness:
        """Not the parent's function."""
        return "no"

    def _applied(self, network: Network) -> Network:
        """Without the node."""
        return network_of(network, without_node(network, network[self.node]))


@dataclass(frozen=True, slots=True)
class Disconnect(Operation):
    """An add or a concat loses one of its inputs, and what only that one needed goes as well; no morphism."""

    kind: ClassVar[str] = "disconnect"
    node: int
    source: int

    @property
    def exactness(self) -> Exactness:
        """Not the parent's function."""
        return "no"

    def _applied(self, network: Network) -> Network:
        """Without the edge, and without the join where one input is left."""
        nodes = resized(network, self.maps(network))
        return network_of(network, pruned(without_input(nodes, network[self.node], self.source)))

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Of a concat: its own, and those of all that its channels reach."""
        node = network[self.node]
        if not isinstance(node.layer, Add | Concat) or self.source not in node.inputs:
            raise PointError(f"{node}: it must be an add or a concat that takes {self.source}; choose another")
        if isinstance(node.layer, Add):
            return {}
        kept: list[int] = []
        offset = 0
        for source in node.inputs:
            n_channels = network.shapes[source][0]
            kept += range(offset, offset + n_channels) if source != self.source else ()
            offset += n_channels
        return spread(network, {node.id: tuple(kept)})
