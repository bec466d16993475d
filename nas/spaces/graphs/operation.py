"""Operations on networks: plain data that turns one graph into another.

`nas.inheritance.morphism` applies them to weights. Random values there come from the operation's ``seed``, so that it
can be replayed from JSON in any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from nas.core.errors import PointError
from nas.core.validation import short_repr
from nas.spaces.graphs.channels import ChannelMap
from nas.spaces.graphs.layers import Conv, Layer, Linear, ReasonError, Shape
from nas.spaces.graphs.network import INPUT, Network, Node

Exactness: TypeAlias = Literal["always", "eval", "no"]
"""Whether the child's outputs equal the parent's: always, in eval mode only, or not."""


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "seed": (int,), "float": (int, float), "bool": (bool,), "Activations": (str,)
}  # fmt: skip
_BELOW = {"float": 1, "seed": 1 << 64}
"""Exclusive upper limits; torch's generators take seeds of 64 bits."""
_WORDS = {
    "int": "a whole number", "seed": "a whole number from 0 to below 2^64", "float": "a number from 0 to below 1",
    "bool": "true or false", "Activations": "a name",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation(ABC):
    """One step from a network to another.

    Raises:
        PointError: a field is not allowed. ``apply`` and ``maps`` raise it if the operation is not possible in the
            network; the message has the node and the reason.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), "seed" if field.name == "seed" else str(field.type)
            if type(value) not in _TYPES[name] or (name in _BELOW and not 0 <= value < _BELOW[name]):
                raise PointError(f"operation {self.kind}: {field.name}={short_repr(value)}: must be {_WORDS[name]}")

    @property
    def exactness(self) -> Exactness:
        """Whether the child's outputs equal the parent's."""
        return "always"

    def apply(self, network: Network) -> Network:
        """Returns the network after the operation."""
        try:
            return self._applied(network)
        except ReasonError as error:
            place = getattr(self, fields(self)[0].name)
            name = "the input" if place == INPUT else network[place]
            raise PointError(f"{name}: {self.kind}: {error}") from error

    @abstractmethod
    def _applied(self, network: Network) -> Network:
        """Returns the network after the operation; may raise ReasonError about the node of its first field."""

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Returns the channel maps of the nodes whose outputs change (`nas.spaces.graphs.channels`)."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Returns ``kind`` and the fields."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}


def network_of(parent: Network, nodes: Iterable[Node]) -> Network:
    """Returns these nodes as a network with the parent's input."""
    return Network(parent.input_shape, tuple(nodes))


def shape_of(network: Network, id: int) -> Shape:
    """Returns the output shape of a node, or the network's input shape.

    Raises:
        PointError: the node does not exist.
    """
    return network.input_shape if id == INPUT else network.shapes[network[id].id]


def size_of(node: Node) -> int:
    """Returns the number of channels of a convolution or linear layer.

    Raises:
        PointError: it is neither.
    """
    match node.layer:
        case Conv(channels=size) | Linear(features=size):
            return size
    raise PointError(f"{node}: it must be a convolution or a linear layer. Choose another.")


def with_size(layer: Layer, size: int) -> Layer:
    """Returns the convolution or linear layer with so many channels."""
    if isinstance(layer, Conv):
        return Conv(size, layer.kernel, layer.stride, layer.bias)
    assert isinstance(layer, Linear)
    return Linear(size, layer.bias)


def inserted(network: Network, after: int, layer: Layer) -> Network:
    """Returns the network with this layer after a node."""
    return network.inserted(after, [Node(network.new_ids(1)[0], layer, (after,))])
