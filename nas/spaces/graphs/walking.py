"""The nodes of a network in the order in which a walk from its output finds them, and where that order is open."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nas.spaces.graphs.network import INPUT, Network


class Place(NamedTuple):
    """A node in such an order: what it does, and the places of its inputs (-1: the network's)."""

    layer: str
    inputs: tuple[int, ...]


Form: TypeAlias = tuple[Place, ...]
Rank: TypeAlias = Callable[[int], str | bytes]


class Tied(NamedTuple):
    """Inputs of an add that have one rank and are not seen to be exchangeable."""

    inputs: tuple[int, ...]


class _Sources(NamedTuple):
    """The inputs of each node in the order of a walk; of adds with inputs that tie, by input a number of its rank."""

    of: dict[int, tuple[int, ...]]
    ranks: dict[int, dict[int, int]]

    def tied(self, id: int, among: Sequence[int]) -> tuple[int, ...]:
        """Those of some inputs of this node that tie with the first, and it."""
        ranks = self.ranks.get(id)
        return tuple([one for one in among if ranks[one] == ranks[among[0]]]) if ranks else (among[0],)


def walked(network: Network, rank: Rank) -> Form | Tied:
    """Returns the nodes, inputs first, those of an add by the longest path behind them, then by rank.

    Inputs that tie are taken in any order, if it is seen that every other one gives the same form.

    Args:
        network: All of it.
        rank: Of a node, the same for the same network whatever its nodes are called.

    Returns:
        If it is not seen: the first of which it is not.
    """
    sources = _sources(network, rank)
    by_id = {node.id: node for node in network.nodes}
    order: dict[int, int] = {INPUT: -1}
    places: list[Place] = []
    stack = [network.output.id]
    while stack:
        id = stack[-1]
        left = [source for source in sources.of[id] if source not in order]
        if left:
            stack.append(left[0])
            if id in sources.ranks:
                first, *others = tied = sources.tied(id, left)
                if not all(_are_exchangeable(network, first, other, sources, rank, order) for other in others):
                    return Tied(tied)
        else:
            stack.pop()
            if id not in order:
                order[id] = len(places)
                where = [order[source] for source in sources.of[id]]
                if len(where) > 1 and by_id[id].layer.is_symmetric:
                    where.sort()
                places.append(Place(by_id[id].layer.text, tuple(where)))
    return tuple(places)


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
    network: Network, one: int, other: int, sources: _Sources, rank: Rank, placed: Container[int]
) -> bool:
    """Whether these two and what lies behind one of them alone can change places, and all else, and its inputs, stay.

    No also where more than one way to pair what lies behind them would have to be tried, but for single nodes.
    """
    swapped: dict[int, int] = {}
    left = [(one, other)]
    while left:
        first, second = left.pop()
        if swapped.get(first) == second:
            continue
        if first in placed or second in placed or first in swapped or second in swapped or rank(first) != rank(second):
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
    """Returns whether each node has its inputs after nodes have changed places."""
    by_id = {node.id: node for node in network.nodes}
    for node in network.nodes:
        if node.id in swapped or not swapped.keys().isdisjoint(node.inputs):
            there = by_id[swapped.get(node.id, node.id)]
            moved = [swapped.get(source, source) for source in node.inputs]
            kept = {*moved} == {*there.inputs} if node.layer.is_symmetric else moved == [*there.inputs]
            if node.layer != there.layer or not kept:
                return False
    return True
