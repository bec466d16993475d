"""The torch module of a network; ``layers.7.weight`` is the weight of node 7."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nas.core.errors import PointError
from nas.spaces.graphs.layers import (
    Activation,
    Add,
    Concat,
    Conv,
    Flatten,
    GlobalPool,
    Layer,
    Linear,
    Norm,
    Pool,
    Scale,
    Shape,
)
from nas.spaces.graphs.network import INPUT, Network


class GraphModule(nn.Module):
    """A network as a torch module, initialized from torch's own generator.

    Args:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        shapes = network.shapes
        modules = {
            str(node.id): _module(node.layer, [shapes[source] for source in node.inputs]) for node in network.nodes
        }
        self.layers = nn.ModuleDict(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, *input_shape)`` to ``(batch, *output_shape)``."""
        values = {INPUT: x}
        for node in self.network.nodes:
            values[node.id] = self.layers[str(node.id)](*(values[source] for source in node.inputs))
        return values[self.network.output.id]


def graph_in(model: nn.Module) -> tuple[str, Network]:
    """Returns the prefix of the tensor names and the network of a model's only ``GraphModule``.

    Raises:
        PointError: the model has none, or more than one.
    """
    found = [(name, one) for name, one in model.named_modules() if isinstance(one, GraphModule)]
    if len(found) != 1:
        raise PointError(f"the model has {len(found)} GraphModules; it must have one")
    return (f"{found[0][0]}." if found[0][0] else ""), found[0][1].network


class ScaleModule(nn.Module):
    """A learned factor for each channel, 0 at first.

    Args:
        shape: The shape of the input, without the batch.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape[0]))
        self._broadcast = (-1, *[1] * (len(shape) - 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, *shape)`` to the same shape."""
        return x * self.weight.view(self._broadcast)


class AddModule(nn.Module):
    """The sum of any number of tensors of one shape."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Returns the sum of tensors of one shape."""
        for other in others:
            first = first + other
        return first


class ConcatModule(nn.Module):
    """The channels of any number of tensors, in order."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Maps ``(batch, channels_i, ...)`` to ``(batch, sum of channels_i, ...)``."""
        return torch.cat(inputs, 1)


class GlobalPoolModule(nn.Module):
    """The mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to ``(batch, channels)``."""
        return x.mean((2, 3))


def _module(layer: Layer, inputs: list[Shape]) -> nn.Module:
    n_inputs = inputs[0][0]
    match layer:
        case Conv(channels, kernel, stride, bias):
            return nn.Conv2d(n_inputs, channels, kernel, stride, padding=kernel // 2, bias=bias)
        case Linear(features, bias):
            return nn.Linear(n_inputs, features, bias)
        case Norm():
            return nn.BatchNorm2d(n_inputs) if len(inputs[0]) == 3 else nn.BatchNorm1d(n_inputs)
        case Activation("prelu"):
            return nn.PReLU(n_inputs)
        case Activation():
            return nn.ReLU()
        case Scale():
            return ScaleModule(inputs[0])
        case Pool("max", kernel, stride):
            return nn.MaxPool2d(kernel, stride, padding=(kernel - 1) // 2)
        case Pool(_, kernel, stride):
            return nn.AvgPool2d(kernel, stride, padding=(kernel - 1) // 2, count_include_pad=False)
        case GlobalPool():
            return GlobalPoolModule()
        case Flatten():
            return nn.Flatten()
        case Add():
            return AddModule()
    assert isinstance(layer, Concat)
    return ConcatModule()
