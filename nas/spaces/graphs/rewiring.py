"""Removes nodes and edges from lists of nodes, and finds outputs that are never negative."""

from __future__ import annotations

from collections.abc import Sequence

from nas.core.errors import PointError
from nas.spaces.graphs.layers import Activation, Add, Concat, Flatten, GlobalPool, Pool
from nas.spaces.graphs.network import INPUT, Network, Node

_KEEPS_SIGN = (Add, Concat, Flatten, GlobalPool, Pool)


def is_never_negative(network: Network, id: int) -> bool:
    """Returns whether a node's output is never negative, whatever the weights."""
    known: set[int] = set()
    for node in network.nodes:
        if isinstance(node.layer, Activation):
            known.update([node.id] * (node.layer.kind == "relu"))
        elif isinstance(node.layer, _KEEPS_SIGN) and known.issuperset(node.inputs):
            known.add(node.id)
    return id in known


def replaced(nodes: Sequence[Node], node: Node, gone: int) -> list[Node]:
    """Returns the nodes with one replaced by id, which also takes over the consumers of ``gone``."""
    return [node if other.id == node.id else other.rewired(gone, node.id) for other in nodes if other.id != gone]


def without_node(network: Network, node: Node) -> list[Node]:
    """Returns the nodes without this one; its consumers take its input.

    Raises:
        PointError: it has several inputs, another output shape than input shape, or is the only node.
    """
    if len(node.inputs) != 1 or network.shapes[node.inputs[0]] != network.shapes[node.id]:
        raise PointError(f"{node}: it must have one input, of the same shape as its output. Choose another.")
    if node.inputs[0] == INPUT and node == network.output:
        raise PointError(f"{node}: nothing would be left. Choose another.")
    return [other.rewired(node.id, node.inputs[0]) for other in network.nodes if other != node]


def without_input(nodes: Sequence[Node], join: Node, source: int) -> list[Node]:
    """Returns the nodes without an input of a join; with one input left, the join goes.

    Raises:
        PointError: no node would be left.
    """
    left = tuple(one for one in join.inputs if one != source)
    if len(left) > 1:
        return [Node(join.id, join.layer, left) if node.id == join.id else node for node in nodes]
    if join.id == nodes[-1].id and left[0] == INPUT:
        raise PointError(f"{join}: nothing would be left. Choose another.")
    kept = [node.rewired(join.id, left[0]) for node in nodes if node.id != join.id]
    if join.id != nodes[-1].id:
        return kept
    place = next(place for place, node in enumerate(kept) if node.id == left[0])  # the new output
    return kept[: place + 1]


def pruned(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes that the last one needs."""
    needed = {nodes[-1].id}
    for node in reversed(nodes):
        if node.id in needed:
            needed.update(node.inputs)
    return [node for node in nodes if node.id in needed]
