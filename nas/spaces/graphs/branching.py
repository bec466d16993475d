"""Operations that turn one layer into two, or two into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.layers import Add, Concat
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.operation import Operation, network_of, size_of, with_size
from nas.spaces.graphs.rewiring import replaced


@dataclass(frozen=True, slots=True)
class Branch(Operation):
    """Replaces a convolution or linear layer by the sum of two.

    Attributes:
        node: The layer, which becomes the first of the two. Their weights sum up to its own.
        noise: The difference of the two. A random part is added to one and subtracted from the other; this is its
            standard deviation, in standard deviations of the weights.
        seed: Seeds the random part.
    """

    kind: ClassVar[str] = "branch"
    node: int
    noise: float = 0.0
    seed: int = 0

    def _applied(self, network: Network) -> Network:
        node = network[self.node]
        size_of(node)
        twin, add = network.new_ids(2)
        return network.inserted(node.id, [Node(twin, node.layer, node.inputs), Node(add, Add(), (node.id, twin))])


@dataclass(frozen=True, slots=True)
class Split(Operation):
    """Splits a convolution or linear layer into two, for the first channels and for the rest.

    Attributes:
        node: The layer, which keeps the first channels.
        at: The number of these channels.
    """

    kind: ClassVar[str] = "split"
    node: int
    at: int

    def _applied(self, network: Network) -> Network:
        node = network[self.node]
        size = size_of(node)
        if not 1 <= self.at < size:
            raise PointError(f"{node}: at={self.at}: must be from 1 to below its {size} channels")
        rest, concat = network.new_ids(2)
        nodes = [
            Node(rest, with_size(node.layer, size - self.at), node.inputs),
            Node(concat, Concat(), (node.id, rest)),
        ]
        return network.inserted(node.id, nodes, layer=with_size(node.layer, self.at))


@dataclass(frozen=True, slots=True)
class Merge(Operation):
    """Merges two equal convolutions or linear layers whose outputs one add or concat joins.

    Attributes:
        first: The layer that stays. In a concat, the second comes right after it.
        second: The layer that is removed; it has the same input.
    """

    kind: ClassVar[str] = "merge"
    first: int
    second: int

    def _applied(self, network: Network) -> Network:
        first, second = network[self.first], network[self.second]
        size = size_of(first), size_of(second)
        users = {node.id for one in (first, second) for node in network.consumers(one.id)}
        join = network[users.pop()] if len(users) == 1 else None
        like = first.inputs == second.inputs and with_size(second.layer, size[0]) == first.layer
        if join is None or not isinstance(join.layer, Add | Concat) or not like or first.id == second.id:
            raise PointError(
                f"{first} and {second} must have the same input, the same attributes except the size, and one add or "
                "concat as their only consumer. Choose others."
            )
        layer = first.layer
        if isinstance(join.layer, Concat):
            place = join.inputs.index(first.id)
            if join.inputs[place + 1 : place + 2] != (second.id,):
                raise PointError(f"{second} must come right after {first} in {join}. Choose others.")
            layer = with_size(layer, sum(size))
        nodes = [node for node in network.nodes if node.id != second.id]
        left = tuple(source for source in join.inputs if source != second.id)
        if left == (first.id,):
            return network_of(network, replaced(nodes, Node(first.id, layer, first.inputs), join.id))
        new = {first.id: Node(first.id, layer, first.inputs), join.id: Node(join.id, join.layer, left)}
        return network_of(network, [new.get(node.id, node) for node in nodes])
