"""Operations that put a layer behind a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.layers import Activation, Activations, Add, Conv, Layer, Linear, Norm
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.operation import Exactness, Operation, inserted, shape_of
from nas.spaces.graphs.rewiring import is_never_negative


@dataclass(frozen=True, slots=True)
class InsertConv(Operation):
    """A convolution that starts as the identity, behind a node (Net2DeeperNet)."""

    kind: ClassVar[str] = "insert_conv"
    after: int
    kernel: int
    bias: bool = True

    def _applied(self, network: Network) -> Network:
        """With the new node, as many channels as it is given."""
        return inserted(network, self.after, Conv(shape_of(network, self.after)[0], self.kernel, 1, self.bias))


@dataclass(frozen=True, slots=True)
class InsertLinear(Operation):
    """A linear layer that starts as the identity, behind a node that gives a vector (Net2DeeperNet)."""

    kind: ClassVar[str] = "insert_linear"
    after: int

    def _applied(self, network: Network) -> Network:
        """With the new node, as many features as it is given."""
        return inserted(network, self.after, Linear(shape_of(network, self.after)[0]))


@dataclass(frozen=True, slots=True)
class InsertBlock(Operation):
    """A convolution (of a vector: a linear layer), a norm where wanted, and an activation, all the identity at first.

    The activation is a relu where what comes in is never negative, else a prelu with slopes of 1.

    Attributes:
        after: The node behind which it comes.
        kernel: Of the convolution.
        norm: Whether there is a norm, with which it is the identity in eval mode only (see ``InsertNorm``).
    """

    kind: ClassVar[str] = "insert_block"
    after: int
    kernel: int
    norm: bool

    @property
    def exactness(self) -> Exactness:
        """In train mode a norm normalizes by the batch."""
        return "eval" if self.norm else "always"

    def _applied(self, network: Network) -> Network:
        """With the new nodes."""
        shape = shape_of(network, self.after)
        is_image = len(shape) == 3
        layers: list[Layer] = [Conv(shape[0], self.kernel, 1, not self.norm) if is_image else Linear(shape[0])]
        layers += [Norm()] * self.norm
        layers.append(Activation("relu" if is_never_negative(network, self.after) else "prelu"))
        ids = network.new_ids(len(layers))
        sources = [self.after, *ids]
        nodes = [Node(id, layer, (source,)) for id, layer, source in zip(ids, layers, sources, strict=False)]
        return network.inserted(self.after, nodes)


@dataclass(frozen=True, slots=True)
class InsertNorm(Operation):
    """A batch-norm whose statistics and weight undo each other: the identity in eval mode.

    In train mode it takes mean and spread out of its batch; how far that is from the identity has no bound.
    """

    kind: ClassVar[str] = "insert_norm"
    after: int

    @property
    def exactness(self) -> Exactness:
        """In train mode it normalizes by the batch."""
        return "eval"

    def _applied(self, network: Network) -> Network:
        """With the new node."""
        return inserted(network, self.after, Norm())


@dataclass(frozen=True, slots=True)
class InsertActivation(Operation):
    """An activation that starts as the identity.

    A ``prelu`` starts with slopes of 1. A ``relu`` is possible only where what it is given is never negative.
    """

    kind: ClassVar[str] = "insert_activation"
    after: int
    activation: Activations = "prelu"

    def _applied(self, network: Network) -> Network:
        """With the new node."""
        if self.activation == "relu" and not is_never_negative(network, self.after):
            raise PointError(f"node {self.after}: its output may be negative, which a relu would change; take a prelu")
        return inserted(network, self.after, Activation(self.activation))


@dataclass(frozen=True, slots=True)
class InsertResidual(Operation):
    """``x`` becomes ``x + norm(conv(x))``, where the norm starts with a weight of 0, and so do its outputs.

    Attributes:
        after: The node that gives ``x``, an image.
        kernel: Of the convolution.
        seed: Draws its weights.
    """

    kind: ClassVar[str] = "insert_residual"
    after: int
    kernel: int
    seed: int = 0

    def _applied(self, network: Network) -> Network:
        """With the convolution, the norm and the add; and a relu, where ``x`` is never negative."""
        after = self.after
        conv, norm, add, relu = network.new_ids(4)
        nodes = [
            Node(conv, Conv(shape_of(network, after)[0], self.kernel, 1, False), (after,)),
            Node(norm, Norm(), (conv,)),
            Node(add, Add(), (after, norm)),
        ]
        if is_never_negative(network, after):
            nodes.append(Node(relu, Activation("relu"), (add,)))
        return network.inserted(after, nodes)
