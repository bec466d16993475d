"""Function-preserving morphisms: another network with other weights that computes the same function.

* Net2Net (Chen et al. 2016, arXiv:1511.05641)
* Network Morphism (Wei et al. 2016, arXiv:1603.01670)
* Auto-Keras (Jin et al. 2019, arXiv:1806.10282)
* NASH (Elsken et al. 2018, arXiv:1711.04528)

Differs: copies of a channel get unequal shares of its outgoing weights instead of noise, so that the result is exact. A
new residual branch starts with a norm of weight 0, so that it is exact in train mode too.

``Operation.exactness`` is ``always`` (the same outputs, but for rounding, in eval mode and in train mode), ``eval`` (in
eval mode; in train mode the new norm normalizes by the batch), or ``no`` (operations that make a network smaller).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.validation import short_repr
from nas.inheritance.channel_edits import Shares, Weights, edit_channels, tensors_of
from nas.inheritance.shape_rules import storage_refusal
from nas.spaces.graphs.branching import Branch, Merge, Split
from nas.spaces.graphs.inserting import InsertResidual
from nas.spaces.graphs.layers import Activation, Add, Conv, Layer, Linear, Norm, Scale
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.resizing import GrowKernel, ShrinkKernel, Widen
from nas.spaces.graphs.skipping import AddSkip

_EPS = 1e-5
"""The default epsilon of torch's batch-norm."""


def morph(network: Network, weights: Mapping[str, Tensor], operation: Operation) -> tuple[Network, Weights]:
    """Returns the network that the operation makes, and its weights; the arguments are not changed.

    Args:
        network: The parent.
        weights: All its tensors, by their names in a ``GraphModule``, of any floating dtype, on any device.
        operation: The operation.

    Raises:
        PointError: the operation is not possible in this network.
        ConfigurationError: the weights are of another network, or have no data; or it is no operation.
    """
    if not isinstance(operation, Operation):
        raise ConfigurationError(
            f"operation={short_repr(operation)}: must be an operation on networks. Pass nas.draw_move(...).operation"
        )
    _check_data(network, weights)
    return _morphed(network, weights, operation)


def replay(network: Network, weights: Mapping[str, Tensor], operations: Iterable[Operation]) -> tuple[Network, Weights]:
    """Returns the network and weights after all operations, one after the other.

    Raises:
        PointError: an operation is not possible when its turn comes.
        ConfigurationError: the weights are of another network, or have no data.
    """
    _check_data(network, weights)
    found = dict(weights)
    for operation in operations:
        network, found = _morphed(network, found, operation)
    return network, found


def outcome(network: Network, operations: Iterable[Operation]) -> tuple[Network, set[int]]:
    """Returns the network after all operations, and its nodes without weights of the first network.

    The second half of a branch or split is not new: it has a part of its first half's weights.

    Raises:
        PointError: an operation is not possible when its turn comes.
    """
    new: set[int] = set()
    for operation in operations:
        child = operation.apply(network)
        added = {node.id for node in child.nodes if node.id not in network}
        is_half = isinstance(operation, Branch | Split) and operation.node not in new
        new = {id for id in new if id in child} | (set() if is_half else added)
        network = child
    return network, new


def check_weights(network: Network, weights: Mapping[str, Tensor]) -> None:
    """Checks that these are the tensors of this network.

    Raises:
        ConfigurationError: a name or a shape differs.
    """
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in GraphModule(network).state_dict().items()}
    for name in sorted(expected.keys() ^ weights.keys(), key=str):
        state = "missing" if name in expected else "of no node"
        raise ConfigurationError(f"weights: {name} is {state}. Give the weights of this network.")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise ConfigurationError(
                f"weights: {name} has shape {tuple(weights[name].shape)}, must be {tuple(shape)}. "
                "Give the weights of this network"
            )


def _check_data(network: Network, weights: Mapping[str, Tensor]) -> None:
    """Checks that these are the tensors of this network, with data."""
    if not isinstance(weights, Mapping) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise ConfigurationError(f"weights={type(weights).__name__}: must be a state dict: tensors by name")
    check_weights(network, weights)
    for name, tensor in weights.items():
        if refusal := storage_refusal(tensor):
            raise ConfigurationError(f"weights: {name}: {refusal}. Give tensors with data.")


def _morphed(network: Network, weights: Mapping[str, Tensor], operation: Operation) -> tuple[Network, Weights]:
    child = operation.apply(network)
    shares = Shares(operation.noise, operation.seed) if isinstance(operation, Widen) else None
    found = edit_channels(network, weights, child, operation.maps(network), shares)
    like = next((tensor for tensor in weights.values() if tensor.is_floating_point()), torch.zeros(()))
    for node in child.nodes:
        if node.id not in network and not isinstance(operation, Branch | Split):
            new = _new_tensors(node.layer, child.shapes[node.inputs[0]][0], operation, like)
            found |= _named(node.id, new)
    return child, found | _changed_by(network, weights, child, operation)


def _new_tensors(layer: Layer, n_inputs: int, operation: Operation, like: Tensor) -> Weights:
    """Returns the tensors of a new layer: of the identity, or with outputs of 0."""
    new = like.new_zeros
    match layer:
        case Norm():
            gain = 0.0 if isinstance(operation, InsertResidual) else math.sqrt(1.0 + _EPS)
            statistics = {"running_mean": new(n_inputs), "running_var": new(n_inputs) + 1.0}
            count = torch.zeros((), dtype=torch.int64, device=like.device)
            return {"weight": new(n_inputs) + gain, "bias": new(n_inputs), **statistics, "num_batches_tracked": count}
        case Activation("prelu"):
            return {"weight": new(n_inputs) + 1.0}
        case Scale():
            return {"weight": new(n_inputs)}
        case Conv(channels, kernel, _, bias):
            weight = _conv_weight((channels, n_inputs, kernel, kernel), operation).to(like)
            return {"weight": weight} | ({"bias": new(channels)} if bias else {})
        case Linear(features, bias):
            weight = torch.eye(features, n_inputs).to(like) * (not isinstance(operation, AddSkip))
            return {"weight": weight} | ({"bias": new(features)} if bias else {})
    return {}


def _conv_weight(shape: tuple[int, int, int, int], operation: Operation) -> Tensor:
    """Returns He initialization before a norm of 0, zeros for a skip, else the identity."""
    if isinstance(operation, InsertResidual):
        spread = math.sqrt(2.0 / math.prod(shape[1:]))
        return torch.randn(shape, generator=_generator(operation.seed), dtype=torch.float64) * spread
    weight = torch.zeros(shape)
    if not isinstance(operation, AddSkip):
        for channel in range(shape[0]):
            weight[channel, channel, shape[2] // 2, shape[3] // 2] = 1.0
    return weight


def _changed_by(network: Network, weights: Mapping[str, Tensor], child: Network, operation: Operation) -> Weights:
    """Returns the tensors that this kind of operation changes, besides their channels."""
    match operation:
        case GrowKernel(node, kernel) | ShrinkKernel(node, kernel):
            own = tensors_of(weights, node)
            margin = (kernel - own["weight"].shape[-1]) // 2  # below 0: cut off
            return _named(node, {"weight": functional.pad(own["weight"], [margin] * 4)})
        case Branch(node):
            twin = next(
                other.id for other in child.nodes if other.id not in network and other.layer == child[node].layer
            )
            one, other = _halves(tensors_of(weights, node), operation)
            return _named(node, one) | _named(twin, other)
        case Split(node, at):
            rest = next(id for id in child.shapes if id and id not in network and not child[id].layer.joins)
            own = tensors_of(weights, node)
            first = {name: tensor[:at] for name, tensor in own.items()}
            return _named(node, first) | _named(rest, {name: tensor[at:] for name, tensor in own.items()})
        case Merge(first, second):
            is_sum = isinstance(network.consumers(first)[0].layer, Add)
            pairs = tensors_of(weights, first), tensors_of(weights, second)
            merged = {n: t + pairs[1][n] if is_sum else torch.cat([t, pairs[1][n]]) for n, t in pairs[0].items()}
            return _named(first, merged)
    return {}


def _halves(tensors: Weights, operation: Branch) -> tuple[Weights, Weights]:
    """Returns the tensors of two layers that sum up to these."""
    generator = _generator(operation.seed)
    one, other = {}, {}
    for name, tensor in tensors.items():
        spread = operation.noise * float(tensor.std()) if name == "weight" and tensor.numel() > 1 else 0.0
        difference = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor) * spread
        one[name] = tensor / 2 + difference
        other[name] = tensor - one[name]
    return one, other


def _named(node: int, tensors: Weights) -> Weights:
    return {f"layers.{node}.{name}": tensor for name, tensor in tensors.items()}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
