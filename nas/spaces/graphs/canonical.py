"""One form for all networks that are the same but for the names and the order of their nodes, and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from nas.spaces.graphs.network import INPUT, Network, Node


class Place(NamedTuple):
    """A node in the canonical order: what it does, and the places of its inputs (-1: the network's)."""

    layer: str
    inputs: tuple[int, ...]


Form: TypeAlias = tuple[Place, ...]
Rank: TypeAlias = tuple[int, bytes, bytes]


def canonical_form(network: Network) -> Form:
    """The nodes as a walk from the output finds them, inputs first: equal forms mean the same network, always.

    The inputs of an add, which have no order, go by the longest path behind them and then by a digest of all that lies
    behind and before them. Of those that are alike in that, one comes first whose digest is the least when the places
    that the walk has given stand for the nodes that have them. So the same network gives the same form, unless two are
    alike in that, too, and yet not interchangeable, for which it takes a graph made for the purpose.
    """
    by_id = {node.id: node for node in network.nodes}
    sources, ranks = _in_order(network)
    order: dict[int, int] = {INPUT: -1}
    places: list[Place] = []
    stack = [network.output.id]
    while stack:
        id = stack[-1]
        inputs = sources[id]
        left = [source for source in inputs if source not in order]
        if left:
            stack.append(_next(network, left, ranks.get(id), order))
        else:
            stack.pop()
            if id not in order:
                order[id] = len(places)
                where = [order[source] for source in inputs]
                if len(where) > 1 and by_id[id].layer.is_symmetric:
                    where.sort()
                places.append(Place(by_id[id].layer.text, tuple(where)))
    return tuple(places)


def digest(network: Network) -> str:
    """32 hexadecimal digits, the same for the same network on every machine, whatever its nodes are called."""
    places = "".join([f"{layer}{inputs}" for layer, inputs in canonical_form(network)])
    text = f"{network.input_shape}{places}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _next(network: Network, left: Sequence[int], ranks: Mapping[int, Rank] | None, order: Mapping[int, int]) -> int:
    """The input to walk to: the first that is left, or of those that are as good the one that places tell apart."""
    if ranks is None or sum(ranks[source] == ranks[left[0]] for source in left) == 1:
        return left[0]
    behind, before = _digests(network, order)
    return min(left, key=lambda id: (ranks[id], behind[id], before[id]))


def _in_order(network: Network) -> tuple[dict[int, tuple[int, ...]], dict[int, dict[int, Rank]]]:
    """The inputs of each node in the order in which they are walked to; of some, by node, what the order is by."""
    depths = {INPUT: 0}
    found = {}
    ranks: dict[int, dict[int, Rank]] = {}
    digests: tuple[dict[int, bytes], dict[int, bytes]] | None = None  # it takes them in few networks
    for node in network.nodes:
        inputs = node.inputs
        if len(inputs) == 1:
            depths[node.id] = depths[inputs[0]] + 1
        else:
            lengths = [depths[source] for source in inputs]
            depths[node.id] = max(lengths) + 1
            if node.layer.is_symmetric:
                if len({*lengths}) == len(lengths):
                    inputs = tuple(sorted(inputs, key=lambda id: -depths[id]))
                else:
                    digests = digests or _digests(network)
                    behind, before = digests
                    own = {id: (-depths[id], behind[id], before.get(id, b"")) for id in inputs}
                    inputs = tuple(sorted(inputs, key=own.__getitem__))
                    ranks[node.id] = own
        found[node.id] = inputs
    return found, ranks


def _digests(
    network: Network, order: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """By node, a digest of all from the input to it, and one of all from it to the output.

    Args:
        network: All of it.
        order: Places of nodes; a node that has one is known by it.
    """
    behind = {INPUT: b"input"}
    for node in network.nodes:
        if node.id in order:
            behind[node.id] = b"%d" % order[node.id]
            continue
        sources = [behind[source] for source in node.inputs]
        behind[node.id] = _short(node, sorted(sources) if node.layer.is_symmetric else sources)
    uses: dict[int, list[bytes]] = {}
    before: dict[int, bytes] = {}
    for node in reversed(network.nodes):
        own = before[node.id] = _short(node, [behind[node.id], *sorted(uses.get(node.id, ()))])
        for slot, source in enumerate(node.inputs):
            uses.setdefault(source, []).append(own if node.layer.is_symmetric else own + b"%d" % slot)
    return behind, before


def _short(node: Node, parts: Sequence[bytes]) -> bytes:
    return hashlib.blake2b(b"|".join((node.layer.text.encode(), *parts)), digest_size=8).digest()
