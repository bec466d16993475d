"""What an operation on networks is: data, and the graph that it makes of another.

`nas.inheritance.morphism` does the same to the weights; what an operation leaves to chance there comes from its
``seed``, so that it can be replayed from JSON, in another process and years later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from nas.core.errors import PointError
from nas.core.validation import shown
from nas.spaces.graphs.channels import ChannelMap
from nas.spaces.graphs.layers import Conv, Layer, Linear, ReasonError, Shape
from nas.spaces.graphs.network import INPUT, Network, Node

Exactness: TypeAlias = Literal["always", "eval", "no"]
"""When the child's outputs are its parent's: in eval mode and train mode, in eval mode, or not."""


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "seed": (int,), "float": (int, float), "bool": (bool,), "Activations": (str,)
}  # fmt: skip
_BELOW = {"float": 1, "seed": 1 << 64}
"""Numbers that are at least 0 and below this; a generator of torch's takes seeds of 64 bits."""
_WORDS = {
    "int": "a whole number", "seed": "a whole number from 0 to below 2^64", "float": "a number from 0 to below 1",
    "bool": "true or false", "Activations": "a name",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation(ABC):
    """One step from a network to another.

    Raises:
        PointError: a field is not what is allowed; by ``apply`` and ``maps``, where it is not possible in this network.
            Names the node and the reason.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), "seed" if field.name == "seed" else str(field.type)
            if type(value) not in _TYPES[name] or (name in _BELOW and not 0 <= value < _BELOW[name]):
                raise PointError(
                    f"operation {self.kind}: {field.name} ({shown(value)}) must be {_WORDS[name]}; correct it"
                )

    @property
    def exactness(self) -> Exactness:
        """When the child's outputs are the parent's."""
        return "always"

    def apply(self, network: Network) -> Network:
        """Returns the network that it makes of this one."""
        try:
            return self._applied(network)
        except ReasonError as error:
            place = getattr(self, fields(self)[0].name)
            name = "the input" if place == INPUT else network[place]
            raise PointError(f"{name}: {self.kind}: {error}") from error

    @abstractmethod
    def _applied(self, network: Network) -> Network:
        """The same; of a layer that it would make, and that can't be, the reason will do. Its first field is a node."""

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """How what each node gives its consumers changes (`nas.spaces.graphs.channels`); left out: not at all."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """``kind`` and its fields."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}


def network_of(parent: Network, nodes: Iterable[Node]) -> Network:
    """These nodes as a network for the parent's input."""
    return Network(parent.input_shape, tuple(nodes))


def shape_of(network: Network, id: int) -> Shape:
    """What a node gives, or what the network is given.

    Raises:
        PointError: there is no such node.
    """
    return network.input_shape if id == INPUT else network.shapes[network[id].id]


def size_of(node: Node) -> int:
    """How many channels a convolution or linear layer has.

    Raises:
        PointError: it is neither.
    """
    match node.layer:
        case Conv(channels=size) | Linear(features=size):
            return size
    raise PointError(f"{node}: it must be a convolution or a linear layer; choose another")


def with_size(layer: Layer, size: int) -> Layer:
    """Returns the convolution or linear layer with so many channels."""
    if isinstance(layer, Conv):
        return Conv(size, layer.kernel, layer.stride, layer.bias)
    assert isinstance(layer, Linear)
    return Linear(size, layer.bias)


def inserted(network: Network, after: int, layer: Layer) -> Network:
    """Returns the network with this layer behind a node."""
    return network.inserted(after, [Node(network.new_ids(1)[0], layer, (after,))])
