"""Traversal of a network from its output, independent of node ids."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nas.spaces.graphs.network import INPUT, Network


class Entry(NamedTuple):
    """A node in this order: its layer and its inputs' positions (-1: the network's input)."""

    layer: str
    inputs: tuple[int, ...]


Form: TypeAlias = tuple[Entry, ...]
Rank: TypeAlias = Callable[[int], str | bytes]


class Tie(NamedTuple):
    """Inputs of an add with equal ranks that are not known to be exchangeable."""

    inputs: tuple[int, ...]


class _Sources(NamedTuple):
    """The inputs of each node in order, and the ranks of inputs of adds that tie."""

    of: dict[int, tuple[int, ...]]
    ranks: dict[int, dict[int, int]]

    def tied(self, id: int, among: Sequence[int]) -> tuple[int, ...]:
        """Returns the first of some inputs of a node, and those that tie with it."""
        ranks = self.ranks.get(id)
        return tuple([one for one in among if ranks[one] == ranks[among[0]]]) if ranks else (among[0],)


def traverse(network: Network, rank: Rank) -> Form | Tie:
    """Returns the nodes, inputs first, or the first tie that is not known to be exchangeable.

    The inputs of an add are sorted by the longest path to them, then by rank. Inputs that tie are visited in any order
    if they are known to be exchangeable: every order gives the same form.

    Args:
        network: The network.
        rank: Returns the rank of a node, independent of node ids.
    """
    sources = _sources(network, rank)
    by_id = {node.id: node for node in network.nodes}
    order: dict[int, int] = {INPUT: -1}
    entries: list[Entry] = []
    stack = [network.output.id]
    while stack:
        id = stack[-1]
        left = [source for source in sources.of[id] if source not in order]
        if left:
            stack.append(left[0])
            if id in sources.ranks:
                first, *others = tied = sources.tied(id, left)
                if not all(_are_exchangeable(network, first, other, sources, rank, order) for other in others):
                    return Tie(tied)
        else:
            stack.pop()
            if id not in order:
                order[id] = len(entries)
                positions = [order[source] for source in sources.of[id]]
                if len(positions) > 1 and by_id[id].layer.is_symmetric:
                    positions.sort()
                entries.append(Entry(by_id[id].layer.text, tuple(positions)))
    return tuple(entries)


def _sources(network: Network, rank: Rank) -> _Sources:
    depths = {INPUT: 0}
    found = _Sources({}, {})
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
                    keys = {id: (-depths[id], rank(id) if id != INPUT else "") for id in inputs}
                    inputs = tuple(sorted(inputs, key=keys.__getitem__))
                    numbers = {key: number for number, key in enumerate(keys.values())}
                    if len(numbers) < len(inputs):
                        found.ranks[node.id] = {id: numbers[key] for id, key in keys.items()}
        found.of[node.id] = inputs
    return found


def _are_exchangeable(
    network: Network, one: int, other: int, sources: _Sources, rank: Rank, visited: Container[int]
) -> bool:
    """Returns whether two nodes can be swapped without effect, with the nodes that they use alone.

    Also returns False if several pairings of these nodes would have to be tried, except for single nodes.
    """
    swapped: dict[int, int] = {}
    left = [(one, other)]
    while left:
        first, second = left.pop()
        if swapped.get(first) == second:
            continue
        if (
            first in visited
            or second in visited
            or first in swapped
            or second in swapped
            or rank(first) != rank(second)
        ):
            return False
        swapped |= {first: second, second: first}
        own, others = sources.of[first], sources.of[second]
        if network[first].layer.is_symmetric:
            shared = {*own} & {*others}
            own, others = (tuple([id for id in ids if id not in shared]) for ids in (own, others))
            tied = [(id, like) for n, id in enumerate(own) for like in sources.tied(first, own[n:])[1:]]
            if not all(_keeps(network, {id: like, like: id}) for id, like in tied):
                return False
        if len(own) != len(others):
            return False
        left += [pair for pair in zip(own, others, strict=True) if pair[0] != pair[1]]
    return _keeps(network, swapped)


def _keeps(network: Network, swapped: Mapping[int, int]) -> bool:
    """Returns whether each node keeps its inputs after nodes are swapped."""
    by_id = {node.id: node for node in network.nodes}
    for node in network.nodes:
        if node.id in swapped or not swapped.keys().isdisjoint(node.inputs):
            other = by_id[swapped.get(node.id, node.id)]
            moved = [swapped.get(source, source) for source in node.inputs]
            kept = {*moved} == {*other.inputs} if node.layer.is_symmetric else moved == [*other.inputs]
            if node.layer != other.layer or not kept:
                return False
    return True
