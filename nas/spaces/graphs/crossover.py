"""Crossover of two networks: the beginning of one and the end of the other, cut where all goes through one node."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import shown
from nas.spaces.graphs.network import INPUT, MAX_NODES, Network, Node
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.operations import operations_from_json

CROSSING = "crossing"
"""Where a proposal's derivation holds one."""
_FIELDS = ("networks", "cuts", "begins", "operations")


@dataclass(frozen=True)
class Crossing:
    """How a network was made of two: recorded in a proposal, so that each node takes the weights that were its own.

    Attributes:
        networks: The two, in the order of the proposal's parents.
        cuts: A node of each: the child has all up to that of one, and then all that is behind that of the other.
        begins: The place of the one whose beginning it is, 0 or 1.
        operations: What was done to the child then, in order.
        network: The child, before any operation.
        origins: By its nodes, the place of the network that each is of, and what it is called there.

    Raises:
        PointError: not all goes through a cut, or what one gives does not fit the other's end; says which and why.
    """

    networks: tuple[Network, Network]
    cuts: tuple[int, int]
    begins: int
    operations: tuple[Operation, ...] = ()
    network: Network = field(init=False, compare=False, repr=False)
    origins: dict[int, tuple[int, int]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for place, (network, cut) in enumerate(zip(self.networks, self.cuts, strict=True)):
            allowed = bottlenecks(network)
            if type(cut) is not int or cut not in allowed:
                raise PointError(
                    f"cuts[{place}] ({shown(cut)}) must be a node that all goes through; choose one of {allowed}"
                )
        if type(self.begins) is not int or self.begins not in (0, 1):
            raise PointError(f"{CROSSING}: begins ({shown(self.begins)}) must be 0 or 1, whose beginning it is")
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
    def turned(self) -> Crossing:
        """The same child of the same two, named in the other order."""
        (one, other), (cut, other_cut) = self.networks, self.cuts
        return Crossing((other, one), (other_cut, cut), 1 - self.begins, self.operations)

    def to_json(self) -> dict[str, Any]:
        """``{"crossing": {"networks": ..., "cuts": ..., "begins": ..., "operations": ...}}``, of a ``derivation``."""
        found = {
            "networks": [network.to_json() for network in self.networks],
            "cuts": list(self.cuts),
            "begins": self.begins,
            "operations": [operation.to_json() for operation in self.operations],
        }
        return {CROSSING: found}

    @classmethod
    def from_json(cls, data: Any) -> Crossing | None:
        """What a proposal's ``derivation`` says; None where it holds no ``crossing``.

        Raises:
            PointError: it holds one that can't be.
        """
        if not isinstance(data, Mapping) or CROSSING not in data:
            return None
        found = data[CROSSING]
        if not isinstance(found, Mapping) or {*found} != {*_FIELDS}:
            raise PointError(f"{CROSSING} ({shown(found)}) must be a dict of {', '.join(_FIELDS)}")
        networks, cuts, begins = found["networks"], found["cuts"], found["begins"]
        for name, value in (("networks", networks), ("cuts", cuts)):
            if not isinstance(value, list) or len(value) != 2:
                raise PointError(f"{CROSSING}: {name} ({shown(value)}) must be a list of two")
        one, other = map(Network.from_json, networks)
        return cls((one, other), (cuts[0], cuts[1]), begins, operations_from_json(CROSSING, found["operations"]))


def crossed(
    networks: tuple[Network, Network],
    begins: int,
    rng: random.Random,
    refusal: Callable[[Network], str | None] = lambda network: None,
) -> Crossing | None:
    """Returns a network that begins as one and ends as the other; None where no two cuts give one that may be.

    Args:
        networks: The two.
        begins: The place of the one that begins. The other's layers take as many channels as they are given, so only
            sizes of images have to fit.
        rng: Draws the cuts, the same for the same state.
        refusal: Why a network may not be; None: it may.
    """
    first, second = networks
    cuts = [(one, other) for one in bottlenecks(first) for other in bottlenecks(second)]
    rng.shuffle(cuts)
    for one, other in cuts:
        if first.shapes[one][1:] == second.shapes[other][1:]:
            try:
                crossing = Crossing(networks, (one, other), begins)
            except PointError:  # an add in the end takes other channels than the beginning gives
                continue
            if refusal(crossing.network) is None:
                return crossing
    return None


def bottlenecks(network: Network) -> list[int]:
    """Returns the nodes but the last through which each way from the input to the output goes, in order."""
    last_use = {source: place for place, node in enumerate(network.nodes) for source in node.inputs}
    found = []
    reach = last_use[INPUT]
    for place, node in enumerate(network.nodes[:-1]):
        if reach <= place:
            found.append(node.id)
        reach = max(reach, last_use[node.id])
    return found


def _names(beginning: tuple[Node, ...], end: tuple[Node, ...], greatest: int) -> dict[int, int]:
    """By the nodes of the end, their numbers in the child: their own, where these are not the beginning's.

    Else numbers above the greatest of both networks, and where these run out the smallest that are free.

    Raises:
        PointError: there are more nodes than numbers.
    """
    begun = {node.id for node in beginning}
    taken = begun | {node.id for node in end}
    free = (id for id in (*range(greatest + 1, MAX_NODES + 1), *range(1, greatest + 1)) if id not in taken)
    names = {}
    for node in end:
        name = next(free, None) if node.id in begun else node.id
        if name is None:
            n_nodes = len(beginning) + len(end)
            raise PointError(f"the two have {n_nodes} nodes; they must have at most {MAX_NODES}; remove some")
        names[node.id] = name
    return names
