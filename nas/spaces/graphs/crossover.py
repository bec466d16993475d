"""Crossover of two networks: the beginning of one and the end of the other, cut where all goes through one node."""

from __future__ import annotations

import random

from nas.errors import PointError
from nas.spaces.graphs.network import INPUT, MAX_NODES, Network, Node


def crossed(first: Network, second: Network, rng: random.Random) -> Network | None:
    """A network that begins as one and ends as the other; None where no two cuts fit together.

    The beginning keeps the names of its nodes, and so does the end but for those that are taken already. Which parent a
    node came from is not recorded: where both have its name and shape, its weights are the better parent's.

    Args:
        first: Begins.
        second: Ends. Its layers take as many channels as they are given, so only sizes of images have to fit.
        rng: Draws the cuts, the same for the same state.
    """
    cuts = [(one, other) for one in bottlenecks(first) for other in bottlenecks(second)]
    rng.shuffle(cuts)
    for one, other in cuts:
        if first.shapes[one][1:] == second.shapes[other][1:]:
            try:
                return _joined(first, one, second, other)
            except PointError:  # an add in the end takes other channels than the beginning gives
                continue
    return None


def bottlenecks(network: Network) -> list[int]:
    """The nodes but the last through which each way from the input to the output goes, in order."""
    last_use = {source: place for place, node in enumerate(network.nodes) for source in node.inputs}
    found = []
    reach = last_use[INPUT]
    for place, node in enumerate(network.nodes[:-1]):
        if reach <= place:
            found.append(node.id)
        reach = max(reach, last_use[node.id])
    return found


def _joined(first: Network, one: int, second: Network, other: int) -> Network:
    """The nodes of the first up to one, and those of the second behind the other."""
    begins = first.nodes[: 1 + first.nodes.index(first[one])]
    ends = second.nodes[1 + second.nodes.index(second[other]) :]
    taken = {node.id for node in (*begins, *ends)}
    free = (id for id in range(1, MAX_NODES + 1) if id not in taken)
    names = {other: one}
    for node in ends:
        name = next(free, None) if any(node.id == begun.id for begun in begins) else node.id
        if name is None:
            raise PointError(f"more than {MAX_NODES} nodes")
        names[node.id] = name
    moved = [Node(names[node.id], node.layer, tuple(names[source] for source in node.inputs)) for node in ends]
    return Network(first.input_shape, (*begins, *moved))
