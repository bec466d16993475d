"""What becomes of the channels of a whole network when those of one node change.

A channel map says of each channel (or feature) of a node's new output which of the old ones it is a copy of: ``[0, 1,
2, 1]`` is three channels and a copy of the second, ``[0, 2]`` what is left when the second has gone, and `NEW` stands
for a channel that no old one is copied to. Who takes copies has to share their weights out among them, who takes a new
one begins with weights of 0, and then the network computes what it did (Net2Net, arXiv:1511.05641).
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
    """Returns the channel maps of all nodes whose outputs change, if those of ``given`` do as it says.

    A change goes on through layers that keep channels apart and through concats, and ends where a convolution or linear
    layer takes it in. An add wants the same of all its inputs: what gives them is changed likewise.

    Raises:
        PointError: it would come to the network's input or output, to two adds that want different things, or to what
            gives a node of ``given`` its channels.
    """
    wanted = dict(given)
    while True:
        maps: dict[int, ChannelMap] = {}
        n_wanted = len(wanted)
        for node in network.nodes:
            found = wanted.get(node.id)
            if found is None:
                found = _passed_on(network, node, maps, wanted)
            elif not isinstance(node.layer, Conv | Linear) and not maps.keys().isdisjoint(node.inputs):
                raise PointError(f"{node}: its inputs would change as well, as an add ties them to it; choose another")
            if found is not None:
                maps[node.id] = found
            if len(wanted) > n_wanted:  # something earlier has to change as well: begin again
                break
        else:
            break
    if network.output.id in maps:
        raise PointError(f"{network.output}: its channels are the network's output, and can't change; choose another")
    return maps


def resized(network: Network, maps: Mapping[int, ChannelMap]) -> list[Node]:
    """Returns the nodes, where convolutions and linear layers have as many channels as their maps."""
    nodes = []
    for node in network.nodes:
        layer = node.layer
        if node.id in maps and isinstance(layer, Conv):
            layer = Conv(len(maps[node.id]), layer.kernel, layer.stride, layer.bias)
        elif node.id in maps and isinstance(layer, Linear):
            layer = Linear(len(maps[node.id]), layer.bias)
        nodes.append(Node(node.id, layer, node.inputs))
    return nodes


def _passed_on(
    network: Network, node: Node, maps: Mapping[int, ChannelMap], wanted: dict[int, ChannelMap]
) -> ChannelMap | None:
    """Returns the map of a node's output by those of its inputs; None: nothing changes. May add to what is wanted."""
    incoming = [maps.get(source) for source in node.inputs]
    changed = [one for one in incoming if one is not None]
    if not changed or isinstance(node.layer, Conv | Linear):
        return None
    if isinstance(node.layer, Flatten):
        n_pixels = math.prod(network.shapes[node.inputs[0]][1:])
        return tuple(NEW if c == NEW else c * n_pixels + p for c in changed[0] for p in range(n_pixels))
    if isinstance(node.layer, Concat):
        return _stacked([one or _same(network, s) for s, one in zip(node.inputs, incoming, strict=True)], network, node)
    if isinstance(node.layer, Add):
        for source, one in zip(node.inputs, incoming, strict=True):
            if one is None:
                _want(network, source, changed[0], wanted, set())
            elif one != changed[0]:
                raise PointError(f"{node}: its inputs would change differently; choose another node")
    return changed[0]


def _want(
    network: Network, id: int, change: ChannelMap, wanted: dict[int, ChannelMap], seen: set[tuple[int, ChannelMap]]
) -> None:
    """Has the output of a node changed so, by what gives its channels; each node once, however many ways lead to it."""
    if (id, change) in seen:
        return
    seen.add((id, change))
    if id == INPUT or NEW in change:
        what = "the network's input" if id == INPUT else network[id]
        raise PointError(f"{what}: its channels can't change as an add with others would need; choose another node")
    node = network[id]
    if isinstance(node.layer, Conv | Linear):
        if wanted.setdefault(id, change) != change:
            raise PointError(f"{node}: two adds would change it differently; choose another node")
    elif isinstance(node.layer, Concat):
        for source, part in zip(node.inputs, _parted(network, node, change), strict=True):
            if part != _same(network, source):
                _want(network, source, part, wanted, seen)
    elif isinstance(node.layer, Flatten):
        raise PointError(f"{node}: single features of an image can't change; choose another node")
    else:
        for source in node.inputs:
            _want(network, source, change, wanted, seen)


def _same(network: Network, id: int) -> ChannelMap:
    return tuple(range(network.shapes[id][0]))


def _stacked(parts: Sequence[ChannelMap], network: Network, node: Node) -> ChannelMap:
    """Returns the map of a concat, by those of its inputs."""
    stacked: list[int] = []
    offset = 0
    for source, part in zip(node.inputs, parts, strict=True):
        stacked += [NEW if channel == NEW else offset + channel for channel in part]
        offset += network.shapes[source][0]
    return tuple(stacked)


def _parted(network: Network, node: Node, change: ChannelMap) -> list[ChannelMap]:
    """Returns the maps of a concat's inputs that stack to this one."""
    parts, offset, place = [], 0, 0
    for source in node.inputs:
        end, start = offset + network.shapes[source][0], place
        while place < len(change) and offset <= change[place] < end:
            place += 1
        parts.append(tuple(channel - offset for channel in change[start:place]))
        offset = end
    if place < len(change) or () in parts:
        raise PointError(f"{node}: its inputs can't change as an add with others would need; choose another node")
    return parts
