"""Changes weights when the channels of a network change, for all morphisms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from nas.spaces.graphs.channels import NEW, ChannelMap
from nas.spaces.graphs.layers import Conv, Linear
from nas.spaces.graphs.network import Network, Node

Weights: TypeAlias = dict[str, Tensor]
"""A network's tensors by the names of `nas.spaces.graphs.module.GraphModule`: ``layers.7.weight`` is node 7's."""

_NEW_VALUES = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
"""The values of a new channel in a layer that keeps channels apart."""


def tensors_of(weights: Mapping[str, Tensor], node: int) -> Weights:
    """Returns the tensors of a node, by their names within it."""
    prefix = f"layers.{node}."
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def node_of(name: str) -> int:
    """Returns the node that a tensor of a network belongs to."""
    return int(name.split(".", 2)[1])


def edit_channels(
    parent: Network,
    weights: Mapping[str, Tensor],
    child: Network,
    maps: Mapping[int, ChannelMap],
    shares: Shares | None = None,
) -> Weights:
    """Returns the tensors of the nodes that both networks have, with the channels of the maps.

    Args:
        parent: The network of the weights.
        weights: The parent's tensors. They are not changed; tensors that stay the same are not copied.
        child: The network to make.
        maps: The changed outputs of the parent's nodes (`nas.spaces.graphs.channels`).
        shares: The shares of copies in their outgoing weights; equal by default.
    """
    shares = shares or Shares()
    own: dict[int, Weights] = {}
    for name, tensor in weights.items():
        own.setdefault(node_of(name), {})[name.split(".", 2)[2]] = tensor
    found: Weights = {}
    for node in parent.nodes:
        if node.id in own and node.id in child:
            found |= {f"layers.{node.id}.{name}": tensor for name, tensor in _changed(node, own[node.id], maps, shares)}
    return found


class Shares:
    """The shares of a channel's copies in its outgoing weights; they sum up to 1.

    Args:
        noise: From 0 (equal shares) to below 1: the greatest deviation from the mean, before the sum is set to 1.
        seed: Seeds the shares.
    """

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.noise = noise
        self.seed = seed

    def of(self, channels: ChannelMap, consumer: int) -> list[float]:
        """Returns the share of each channel in a consumer's input; 0 if it is new."""
        rng = random.Random(f"{self.seed}/{consumer}")
        raw = [1.0 + self.noise * rng.uniform(-1.0, 1.0) for _ in channels]
        sums: Counter[int] = Counter()
        for channel, share in zip(channels, raw, strict=True):
            sums[channel] += share  # type: ignore[assignment]  # a Counter adds floats too
        n_copies = Counter(channels)
        return [
            0.0 if channel == NEW else 1.0 if n_copies[channel] == 1 else share / sums[channel]
            for channel, share in zip(channels, raw, strict=True)
        ]


def _changed(node: Node, tensors: Weights, maps: Mapping[int, ChannelMap], shares: Shares) -> list[tuple[str, Tensor]]:
    """Returns the tensors of one node, by their names within it."""
    incoming = maps.get(node.inputs[0])
    if not isinstance(node.layer, Conv | Linear):
        return [
            (name, tensor if incoming is None or tensor.dim() == 0 else _mapped(name, tensor, incoming))
            for name, tensor in tensors.items()
        ]
    outgoing = maps.get(node.id)
    found = dict(tensors)
    if outgoing is not None and NEW not in outgoing:  # new channels come from a node behind this one
        found = {name: tensor[_index(outgoing, tensor)] for name, tensor in found.items()}
    if incoming is not None:
        weight = found["weight"]
        share = torch.tensor(shares.of(incoming, node.id), dtype=torch.float64).to(weight)
        found["weight"] = weight[:, _index(incoming, weight)] * share.view(1, -1, *[1] * (weight.dim() - 2))
    return list(found.items())


def _mapped(name: str, tensor: Tensor, channels: ChannelMap) -> Tensor:
    """Returns a vector over the new channels, with start values for those that copy none."""
    index = _index(channels, tensor)
    is_new = torch.tensor([channel == NEW for channel in channels], device=tensor.device)
    return torch.where(is_new, torch.full_like(tensor[:1], _NEW_VALUES[name]), tensor[index])


def _index(channels: ChannelMap, like: Tensor) -> Tensor:
    return torch.tensor([max(channel, 0) for channel in channels], device=like.device)
