"""A network as a graph of typed layers, valid by construction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import short_repr
from nas.spaces.graphs.layers import MAX_SIZE, Layer, ReasonError, Shape, layer_from_json

INPUT = 0
"""The id of the network's input."""
MAX_NODES = 512
"""The greatest node id, and so the greatest number of nodes."""


@dataclass(frozen=True, slots=True)
class Node:
    """A layer with its inputs.

    Attributes:
        id: Its id, which children keep and which names its weights. Networks of different parents may use one id for
            different layers.
        layer: The layer.
        inputs: The ids of its inputs, in order; ``INPUT`` is the network's input.
    """

    id: int
    layer: Layer
    inputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"node {self.id} ({self.layer.op})"

    def rewired(self, old: int, new: int) -> Node:
        """Returns the node with the input ``old`` replaced by ``new``."""
        if old not in self.inputs:
            return self
        return Node(self.id, self.layer, tuple(new if source == old else source for source in self.inputs))

    def to_json(self) -> dict[str, Any]:
        """Returns ``id``, ``op``, ``inputs`` and the layer's attributes."""
        return {"id": self.id, "inputs": list(self.inputs), **self.layer.to_json()}


@dataclass(frozen=True)
class Network:
    """A directed graph of layers without cycles; the last node is its output.

    Attributes:
        input_shape: The shape of one example: ``(channels, height, width)`` or ``(features,)``.
        nodes: The nodes; each comes after its inputs, and each but the last has a consumer.
        shapes: The output shape of each node, and the shape of ``INPUT``.

    Raises:
        PointError: the graph is invalid; the message has the node and the reason.
    """

    input_shape: Shape
    nodes: tuple[Node, ...]
    shapes: dict[int, Shape] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_input(self.input_shape, self.input_shape)
        object.__setattr__(self, "shapes", shapes := {INPUT: self.input_shape})
        if type(self.nodes) is not tuple or not all(isinstance(node, Node) for node in self.nodes):
            raise PointError(f"nodes={short_repr(self.nodes)}: must be a tuple of Node; Network.from_json reads lists")
        if not 1 <= len(self.nodes) <= MAX_NODES:
            raise PointError(f"the network has {len(self.nodes)} nodes; it must have 1 to {MAX_NODES}")
        for node in self.nodes:
            if type(node.id) is not int or not 1 <= node.id <= MAX_NODES:
                raise PointError(f"{node}: its id must be a whole number from 1 to {MAX_NODES}; number it so")
            if type(node.inputs) is not tuple:
                raise PointError(f"{node}: inputs={short_repr(node.inputs)}: must be a tuple of ids. Write them so.")
            if node.id in shapes:
                raise PointError(f"{node}: another node has this id. Give it one of its own.")
            try:
                shapes[node.id] = node.layer.shape(_inputs(node, shapes))
            except ReasonError as error:
                raise PointError(f"{node}: {error}") from error
        used = {source for node in self.nodes for source in node.inputs}
        for node in self.nodes[:-1]:
            if node.id not in used:
                raise PointError(f"{node}: no node takes its output, and it is not the last. Remove or connect it.")

    @property
    def output(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    @property
    def output_shape(self) -> Shape:
        """The output shape of one example."""
        return self.shapes[self.output.id]

    @property
    def flops(self) -> int:
        """The FLOPs of one example, as torch counts them."""
        return sum(node.layer.flops([self.shapes[source] for source in node.inputs]) for node in self.nodes)

    @property
    def activations(self) -> int:
        """The number of output values of all nodes for one example, which go through memory."""
        return sum(math.prod(self.shapes[node.id]) for node in self.nodes)

    def __getitem__(self, id: int) -> Node:
        """Returns the node of this id.

        Raises:
            PointError: there is none.
        """
        for node in self.nodes:
            if node.id == id:
                return node
        raise PointError(f"the network has no node {short_repr(id)}. Choose one of {[node.id for node in self.nodes]}.")

    def __contains__(self, id: object) -> bool:
        return id in self.shapes and id != INPUT

    def consumers(self, id: int) -> list[Node]:
        """Returns the nodes that take this node's output."""
        return [node for node in self.nodes if id in node.inputs]

    def new_ids(self, n: int) -> list[int]:
        """Returns free ids: above the greatest id, or else the smallest ones.

        Two children of one network may thus use one id for different nodes.
        """
        ids = {node.id for node in self.nodes}
        free = [id for id in range(1, MAX_NODES + 1) if id not in ids]
        if len(free) < n:
            raise PointError(f"the network has {len(ids)} nodes, and {n} more would be over {MAX_NODES}. Remove some.")
        greatest = max(ids)
        above = [id for id in free if id > greatest]
        return above[:n] if len(above) >= n else free[:n]

    def with_layer(self, id: int, layer: Layer) -> Network:
        """Returns the network with another layer in this node."""
        self[id]
        nodes = (Node(node.id, layer, node.inputs) if node.id == id else node for node in self.nodes)
        return Network(self.input_shape, tuple(nodes))

    def inserted(self, after: int, nodes: Sequence[Node], *, layer: Layer | None = None) -> Network:
        """Returns the network with these nodes after ``after``; its consumers take the last of them.

        Args:
            after: A node or ``INPUT``.
            nodes: The new nodes. They take each other, ``after``, and earlier nodes.
            layer: A new layer for ``after``, or None.
        """
        place = 0 if after == INPUT else 1 + self.nodes.index(self[after])
        later = (node.rewired(after, nodes[-1].id) for node in self.nodes[place:])
        before = self.nodes[:place]
        if layer is not None:
            before = (*before[:-1], Node(after, layer, before[-1].inputs))
        return Network(self.input_shape, (*before, *nodes, *later))

    def to_json(self) -> dict[str, Any]:
        """Returns the network as a new dict: ``input`` (a shape) and ``nodes`` in order."""
        return {"input": list(self.input_shape), "nodes": [node.to_json() for node in self.nodes]}

    @classmethod
    def from_json(cls, data: Any) -> Network:
        """Returns the network from the result of ``to_json``.

        Raises:
            PointError: the data is no network, or an invalid one; the message has the node and the reason.
        """
        if not isinstance(data, Mapping) or {*data} != {"input", "nodes"}:
            raise PointError(f"a network must be a dict of input and nodes, not {short_repr(data)}")
        shape, nodes = data["input"], data["nodes"]
        _check_input(shape if isinstance(shape, list) else [], shape)
        if not isinstance(nodes, list):
            raise PointError(f"nodes={short_repr(nodes)}: must be a list of nodes")
        return cls(tuple(shape), tuple(_node_from_json(index, node) for index, node in enumerate(nodes)))


def _check_input(sizes: Sequence[Any], given: Any) -> None:
    if len(sizes) not in (1, 3) or not all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes):
        raise PointError(
            f"input={short_repr(given)}: must be [channels, height, width] or [features], whole numbers from 1 to "
            f"{MAX_SIZE}"
        )


def _inputs(node: Node, shapes: Mapping[int, Shape]) -> list[Shape]:
    """Returns the shapes of the node's inputs, which must be earlier nodes."""
    n_inputs = len(node.inputs)
    if node.layer.joins and n_inputs < 2:
        raise ReasonError(f"it has {n_inputs} inputs and needs at least 2. Remove the node or connect another.")
    if not node.layer.joins and n_inputs != 1:
        raise ReasonError(f"it has {n_inputs} inputs and takes 1; join them by an add or a concat")
    if len({*node.inputs}) < n_inputs:
        raise ReasonError(f"its inputs {list(node.inputs)} must be different ones; take each once")
    for source in node.inputs:
        if source not in shapes:
            raise ReasonError(f"input={short_repr(source)}: must be {INPUT} (the network's) or an earlier node's id")
    return [shapes[source] for source in node.inputs]


def _node_from_json(index: int, data: Any) -> Node:
    if not isinstance(data, Mapping) or "id" not in data:
        raise PointError(f"nodes[{index}]={short_repr(data)}: must be a dict with an id")
    op = short_repr(data.get("op")).strip("'")
    name = f"node {short_repr(data['id'])} ({op})"
    inputs = data.get("inputs")
    if not isinstance(inputs, list) or not all(type(source) is int for source in inputs):
        raise PointError(f"{name}: inputs={short_repr(inputs)}: must be a list of ids; {INPUT} is the network's input")
    try:
        layer = layer_from_json({key: value for key, value in data.items() if key not in ("id", "inputs")})
    except ReasonError as error:
        raise PointError(f"{name}: {error}") from error
    return Node(data["id"], layer, tuple(inputs))
