"""Operations that change the channels or the kernel of a layer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from nas.core.errors import PointError
from nas.spaces.graphs.channels import ChannelMap, resized, spread
from nas.spaces.graphs.layers import MAX_KERNEL, MAX_SIZE, Conv
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.operation import Exactness, Operation, network_of, size_of


@dataclass(frozen=True, slots=True)
class Widen(Operation):
    """Adds copies of channels to a convolution or linear layer (Net2WiderNet, Chen et al. 2016).

    Attributes:
        node: The layer. Layers that an add connects to it get as many.
        size: The new number of channels or features.
        noise: The difference between the copies' shares in the outgoing weights, from 0 to below 1. The sum of shares
            is always 1, so the function stays the same. Only copies with unequal shares can learn to differ.
        seed: Seeds the choice of channels and the shares.
    """

    kind: ClassVar[str] = "widen"
    node: int
    size: int
    noise: float = 0.0
    seed: int = 0

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Returns the maps of the layer and of all nodes that its channels reach."""
        node = network[self.node]
        size = size_of(node)
        if not size < self.size <= MAX_SIZE:
            raise PointError(f"{node}: widen: size={self.size}: must be from {size + 1} to {MAX_SIZE}")
        copies = _draws(self.seed, self.size - size, size)
        return spread(network, {self.node: (*range(size), *copies)})

    def _applied(self, network: Network) -> Network:
        return network_of(network, resized(network, self.maps(network)))


@dataclass(frozen=True, slots=True)
class Narrow(Operation):
    """Keeps only the first channels of a convolution or linear layer; changes the function.

    Attributes:
        node: The layer. Layers that an add connects to it keep as many.
        size: The number of channels kept.
    """

    kind: ClassVar[str] = "narrow"
    node: int
    size: int

    @property
    def exactness(self) -> Exactness:
        """Always ``no``."""
        return "no"

    def maps(self, network: Network) -> dict[int, ChannelMap]:
        """Returns the maps of the layer and of all nodes that its channels reach."""
        node = network[self.node]
        size = size_of(node)
        if not 1 <= self.size < size:
            raise PointError(f"{node}: narrow: size={self.size}: must be from 1 to below {size}")
        return spread(network, {self.node: tuple(range(self.size))})

    def _applied(self, network: Network) -> Network:
        return network_of(network, resized(network, self.maps(network)))


@dataclass(frozen=True, slots=True)
class GrowKernel(Operation):
    """Enlarges a convolution's kernel with zeros (Network Morphism, Wei et al. 2016)."""

    kind: ClassVar[str] = "grow_kernel"
    node: int
    kernel: int

    def _applied(self, network: Network) -> Network:
        return _with_kernel(network, self.node, self.kernel, larger=True)


@dataclass(frozen=True, slots=True)
class ShrinkKernel(Operation):
    """Keeps the middle of a convolution's kernel; changes the function."""

    kind: ClassVar[str] = "shrink_kernel"
    node: int
    kernel: int

    @property
    def exactness(self) -> Exactness:
        """Always ``no``."""
        return "no"

    def _applied(self, network: Network) -> Network:
        return _with_kernel(network, self.node, self.kernel, larger=False)


def _with_kernel(network: Network, id: int, kernel: int, *, larger: bool) -> Network:
    node = network[id]
    if not isinstance(node.layer, Conv):
        raise PointError(f"{node}: it must be a convolution. Choose another.")
    if (kernel > node.layer.kernel) != larger or kernel == node.layer.kernel:
        own = node.layer.kernel
        allowed = f"over its {own}, up to {MAX_KERNEL}" if larger else f"from 1 to below its {own}"
        raise PointError(f"{node}: kernel={kernel}: must be odd, {allowed}")
    return network.with_layer(id, Conv(node.layer.channels, kernel, node.layer.stride, node.layer.bias))


def _draws(seed: int, n: int, below: int) -> tuple[int, ...]:
    """Returns ``n`` numbers below a limit, equal for equal seeds on every machine."""
    rng = random.Random(seed)
    return tuple(rng.randrange(below) for _ in range(n))
