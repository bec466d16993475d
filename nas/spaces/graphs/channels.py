"""Propagates a change of one node's channels through a network.

A channel map gives, for each channel (or feature) of a node's new output, the old channel that it copies. ``[0, 1, 2,
1]`` is three channels and a copy of the second. ``[0, 2]`` is what remains after the second is removed. `NEW` is a
channel that copies none. Consumers divide their weights among copies, and start with weights of 0 for new channels.
Then the network computes the same function (Net2Net, arXiv:1511.05641).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nas.core.errors import PointError
from nas.spaces.graphs.layers import Add, Concat, Conv, Flatten, Linear
from nas.spaces.graphs.network import INPUT, Network, Node

ChannelMap: TypeAlias = tuple[int, ...]
NEW = -1


def spread(network: Network, given: Mapping[int, ChannelMap]) -> dict[int, ChannelMap]:
    """Returns the channel maps of all nodes whose outputs change with the nodes of ``given``.

    A change passes layers that keep channels apart, and concats. It ends at a convolution or linear layer. An add needs
    the same change of all its inputs, so their sources change as well.

    Raises:
        PointError: the change reaches the network's input or output, or an input of a node of ``given``; or two adds
            need different changes.
    """
    required = dict(given)
    while True:
        maps: dict[int, ChannelMap] = {}
        n_required = len(required)
        for node in network.nodes:
            found = required.get(node.id)
            if found is None:
                found = _output_map(network, node, maps, required)
            elif not isinstance(node.layer, Conv | Linear) and not maps.keys().isdisjoint(node.inputs):
                raise PointError(
                    f"{node}: its inputs would change as well, because an add connects them to it. Choose another."
                )
            if found is not None:
                maps[node.id] = found
            if len(required) > n_required:  # an earlier node has to change as well: start over
                break
        else:
            break
    if network.output.id in maps:
        raise PointError(f"{network.output}: its channels are the network's output, and can't change. Choose another.")
    return maps


def resized(network: Network, maps: Mapping[int, ChannelMap]) -> list[Node]:
    """Returns the nodes; convolutions and linear layers have as many channels as their maps."""
    nodes = []
    for node in network.nodes:
        layer = node.layer
        if node.id in maps and isinstance(layer, Conv):
            layer = Conv(len(maps[node.id]), layer.kernel, layer.stride, layer.bias)
        elif node.id in maps and isinstance(layer, Linear):
            layer = Linear(len(maps[node.id]), layer.bias)
        nodes.append(Node(node.id, layer, node.inputs))
    return nodes


def _output_map(
    network: Network, node: Node, maps: Mapping[int, ChannelMap], required: dict[int, ChannelMap]
) -> ChannelMap | None:
    """Returns the map of a node's output, or None; may add to ``required``."""
    incoming = [maps.get(source) for source in node.inputs]
    changed = [one for one in incoming if one is not None]
    if not changed or isinstance(node.layer, Conv | Linear):
        return None
    if isinstance(node.layer, Flatten):
        n_pixels = math.prod(network.shapes[node.inputs[0]][1:])
        return tuple(NEW if c == NEW else c * n_pixels + p for c in changed[0] for p in range(n_pixels))
    if isinstance(node.layer, Concat):
        return _concat_map(
            [one or _identity(network, s) for s, one in zip(node.inputs, incoming, strict=True)], network, node
        )
    if isinstance(node.layer, Add):
        for source, one in zip(node.inputs, incoming, strict=True):
            if one is None:
                _require(network, source, changed[0], required, set())
            elif one != changed[0]:
                raise PointError(f"{node}: its inputs would change differently. Choose another node.")
    return changed[0]


def _require(
    network: Network, id: int, change: ChannelMap, required: dict[int, ChannelMap], seen: set[tuple[int, ChannelMap]]
) -> None:
    """Requires this change of a node's output from the nodes that make its channels."""
    if (id, change) in seen:
        return
    seen.add((id, change))
    if id == INPUT or NEW in change:
        what = "the network's input" if id == INPUT else network[id]
        raise PointError(f"{what}: its channels can't change, but an add needs it. Choose another node.")
    node = network[id]
    if isinstance(node.layer, Conv | Linear):
        if required.setdefault(id, change) != change:
            raise PointError(f"{node}: two adds would change it differently. Choose another node.")
    elif isinstance(node.layer, Concat):
        for source, part in zip(node.inputs, _input_maps(network, node, change), strict=True):
            if part != _identity(network, source):
                _require(network, source, part, required, seen)
    elif isinstance(node.layer, Flatten):
        raise PointError(f"{node}: single features of an image can't change. Choose another node.")
    else:
        for source in node.inputs:
            _require(network, source, change, required, seen)


def _identity(network: Network, id: int) -> ChannelMap:
    return tuple(range(network.shapes[id][0]))


def _concat_map(parts: Sequence[ChannelMap], network: Network, node: Node) -> ChannelMap:
    """Returns the map of a concat from the maps of its inputs."""
    stacked: list[int] = []
    offset = 0
    for source, part in zip(node.inputs, parts, strict=True):
        stacked += [NEW if channel == NEW else offset + channel for channel in part]
        offset += network.shapes[source][0]
    return tuple(stacked)


def _input_maps(network: Network, node: Node, change: ChannelMap) -> list[ChannelMap]:
    """Returns the maps of a concat's inputs that give this map."""
    parts, offset, place = [], 0, 0
    for source in node.inputs:
        end, start = offset + network.shapes[source][0], place
        while place < len(change) and offset <= change[place] < end:
            place += 1
        parts.append(tuple(channel - offset for channel in change[start:place]))
        offset = end
    if place < len(change) or () in parts:
        raise PointError(f"{node}: its inputs can't change, but an add needs it. Choose another node.")
    return parts
