"""Operations that insert layers after a node."""

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
    """Inserts a convolution that starts as the identity (Net2DeeperNet)."""

    kind: ClassVar[str] = "insert_conv"
    after: int
    kernel: int
    bias: bool = True

    def _applied(self, network: Network) -> Network:
        return inserted(network, self.after, Conv(shape_of(network, self.after)[0], self.kernel, 1, self.bias))


@dataclass(frozen=True, slots=True)
class InsertLinear(Operation):
    """Inserts a linear layer that starts as the identity, after a vector (Net2DeeperNet)."""

    kind: ClassVar[str] = "insert_linear"
    after: int

    def _applied(self, network: Network) -> Network:
        return inserted(network, self.after, Linear(shape_of(network, self.after)[0]))


@dataclass(frozen=True, slots=True)
class InsertBlock(Operation):
    """Inserts a convolution (after a vector: a linear layer), maybe a norm, and an activation.

    All start as the identity. The activation is a relu if its input is never negative, else a prelu with slopes of 1.

    Attributes:
        after: The node before the block.
        kernel: The kernel of the convolution.
        norm: Whether there is a norm. With it the block is the identity in eval mode only (see ``InsertNorm``).
    """

    kind: ClassVar[str] = "insert_block"
    after: int
    kernel: int
    norm: bool

    @property
    def exactness(self) -> Exactness:
        """``eval`` with a norm, which normalizes by the batch in train mode."""
        return "eval" if self.norm else "always"

    def _applied(self, network: Network) -> Network:
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
    """Inserts a batch-norm that is the identity in eval mode.

    In train mode it normalizes by the batch, which can differ from the identity without a bound.
    """

    kind: ClassVar[str] = "insert_norm"
    after: int

    @property
    def exactness(self) -> Exactness:
        """``eval``, since it normalizes by the batch in train mode."""
        return "eval"

    def _applied(self, network: Network) -> Network:
        return inserted(network, self.after, Norm())


@dataclass(frozen=True, slots=True)
class InsertActivation(Operation):
    """Inserts an activation that starts as the identity.

    A ``prelu`` starts with slopes of 1. A ``relu`` is possible only if its input is never negative.
    """

    kind: ClassVar[str] = "insert_activation"
    after: int
    activation: Activations = "prelu"

    def _applied(self, network: Network) -> Network:
        if self.activation == "relu" and not is_never_negative(network, self.after):
            raise PointError(f"node {self.after}: its output may be negative, which a relu would change; take a prelu")
        return inserted(network, self.after, Activation(self.activation))


@dataclass(frozen=True, slots=True)
class InsertResidual(Operation):
    """Replaces ``x`` by ``x + norm(conv(x))``; the norm starts with a weight of 0.

    A relu follows if ``x`` is never negative.

    Attributes:
        after: The node whose output is ``x``, an image.
        kernel: The kernel of the convolution.
        seed: Seeds the weights of the convolution.
    """

    kind: ClassVar[str] = "insert_residual"
    after: int
    kernel: int
    seed: int = 0

    def _applied(self, network: Network) -> Network:
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
