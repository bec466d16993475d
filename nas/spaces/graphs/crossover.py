"""Crossover of two networks: the first part of one and the last part of the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import short_repr
from nas.spaces.graphs.network import INPUT, MAX_NODES, Network, Node
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.operations import operations_from_json

CROSSING = "crossing"
"""The key of a crossing in a proposal's derivation."""
_FIELDS = ("networks", "cuts", "begins", "operations")


@dataclass(frozen=True)
class Crossing:
    """A network made of two, as recorded in a proposal.

    Attributes:
        networks: The two networks, in the order of the proposal's parents.
        cuts: A node of each. The child has the nodes of one up to its cut, then the nodes of the other after its cut.
        begins: The index of the network that gives the first part, 0 or 1.
        operations: The operations on the child afterwards, in order.
        network: The child, before any operation.
        origins: For each node of it, the index of the network that it comes from, and its id there.

    Raises:
        PointError: a path passes beside a cut, or the two parts do not fit.
    """

    networks: tuple[Network, Network]
    cuts: tuple[int, int]
    begins: int
    operations: tuple[Operation, ...] = ()
    network: Network = field(init=False, compare=False, repr=False)
    origins: dict[int, tuple[int, int]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for index, (network, cut) in enumerate(zip(self.networks, self.cuts, strict=True)):
            allowed = bottlenecks(network)
            if type(cut) is not int or cut not in allowed:
                raise PointError(
                    f"cuts[{index}]={short_repr(cut)}: must be a node that all paths go through. "
                    f"Choose one of {allowed}"
                )
        if type(self.begins) is not int or self.begins not in (0, 1):
            raise PointError(
                f"{CROSSING}: begins={short_repr(self.begins)}: must be 0 or 1, "
                "the index of the network of the first part"
            )
        begins, ends = self.begins, 1 - self.begins
        first, second = self.networks[begins], self.networks[ends]
        beginning = first.nodes[: 1 + first.nodes.index(first[self.cuts[begins]])]
        end = second.nodes[1 + second.nodes.index(second[self.cuts[ends]]) :]
        names = _names(beginning, end, max(node.id for node in (*first.nodes, *second.nodes)))
        sources = {**names, self.cuts[ends]: self.cuts[begins]}
        moved = [Node(names[node.id], node.layer, tuple(sources[source] for source in node.inputs)) for node in end]
        object.__setattr__(self, "network", Network(first.input_shape, (*beginning, *moved)))
        origins = {node.id: (begins, node.id) for node in beginning}
        object.__setattr__(self, "origins", origins | {name: (ends, id) for id, name in names.items()})

    @property
    def swapped(self) -> Crossing:
        """The same crossing, with the two networks in the other order."""
        (one, other), (cut, other_cut) = self.networks, self.cuts
        return Crossing((other, one), (other_cut, cut), 1 - self.begins, self.operations)

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"crossing": {...}}`` with the fields, for a proposal's ``derivation``."""
        found = {
            "networks": [network.to_json() for network in self.networks],
            "cuts": list(self.cuts),
            "begins": self.begins,
            "operations": [operation.to_json() for operation in self.operations],
        }
        return {CROSSING: found}

    @classmethod
    def from_json(cls, data: Any) -> Crossing | None:
        """Returns the crossing of a proposal's ``derivation``, or None if it has none.

        Raises:
            PointError: the crossing is invalid.
        """
        if not isinstance(data, Mapping) or CROSSING not in data:
            return None
        found = data[CROSSING]
        if not isinstance(found, Mapping) or {*found} != {*_FIELDS}:
            raise PointError(f"{CROSSING}={short_repr(found)}: must be a dict of {', '.join(_FIELDS)}")
        networks, cuts, begins = found["networks"], found["cuts"], found["begins"]
        for name, value in (("networks", networks), ("cuts", cuts)):
            if not isinstance(value, list) or len(value) != 2:
                raise PointError(f"{CROSSING}: {name}={short_repr(value)}: must be a list of two")
        one, other = map(Network.from_json, networks)
        return cls((one, other), (cuts[0], cuts[1]), begins, operations_from_json(CROSSING, found["operations"]))


def crossed(
    networks: tuple[Network, Network],
    begins: int,
    rng: random.Random,
    refusal: Callable[[Network], str | None] = lambda network: None,
) -> Crossing | None:
    """Returns a crossing of two networks, or None if no two cuts give a valid network.

    Args:
        networks: The two networks.
        begins: The index of the network that gives the first part. The other's layers adapt to its channels, so only
            image sizes have to fit.
        rng: Draws the cuts.
        refusal: Returns why a network is not allowed, or None.
    """
    first, second = networks
    cuts = [(one, other) for one in bottlenecks(first) for other in bottlenecks(second)]
    rng.shuffle(cuts)
    for one, other in cuts:
        if first.shapes[one][1:] == second.shapes[other][1:]:
            try:
                crossing = Crossing(networks, (one, other), begins)
            except PointError:  # an add in the last part needs other channels
                continue
            if refusal(crossing.network) is None:
                return crossing
    return None


def bottlenecks(network: Network) -> list[int]:
    """Returns the nodes that all paths to the output go through, in order, without the output."""
    last_use = {source: place for place, node in enumerate(network.nodes) for source in node.inputs}
    found = []
    reach = last_use[INPUT]
    for place, node in enumerate(network.nodes[:-1]):
        if reach <= place:
            found.append(node.id)
        reach = max(reach, last_use[node.id])
    return found


def _names(beginning: tuple[Node, ...], end: tuple[Node, ...], greatest: int) -> dict[int, int]:
    """Returns the child's ids of the last part's nodes.

    They keep ids that the first part does not use. Others get ids above the greatest of both
    networks, or else the smallest free ids.

    Raises:
        PointError: there are more nodes than ids.
    """
    first_ids = {node.id for node in beginning}
    taken = first_ids | {node.id for node in end}
    free = (id for id in (*range(greatest + 1, MAX_NODES + 1), *range(1, greatest + 1)) if id not in taken)
    names = {}
    for node in end:
        name = next(free, None) if node.id in first_ids else node.id
        if name is None:
            n_nodes = len(beginning) + len(end)
            raise PointError(f"the two parts have {n_nodes} nodes; they must have at most {MAX_NODES}. Remove some.")
        names[node.id] = name
    return names
