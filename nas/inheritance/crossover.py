"""Which tensors a child of two networks takes: those that its layers had in the parents that they are of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import node_of
from nas.inheritance.replay import names_in_graph
from nas.inheritance.tensor_matching import ChildTensor, Offer, Weights
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.module import graph_in
from nas.spaces.graphs.network import Network


def prefer_origins(
    crossing: Crossing,
    model: nn.Module,
    sources: Sequence[Weights],
    children: Sequence[ChildTensor],
    places: Sequence[int | None],
) -> list[str]:
    """Has each tensor of a child take that of its layer's origin before any other; what stood against it, if anything.

    Args:
        crossing: How the child's network was made.
        model: The child.
        sources: The donors, best first. Who stands for a parent that is none of them is the best that has its tensors
            and does not stand for the other.
        children: The child's tensors.
        places: Where the parents stand among the donors, as far as they do.
    """
    try:
        prefix, own_network = graph_in(model)
        network, kept = _kept(crossing)
    except PointError as error:
        return [f"not crossed: {error}"]
    if network != own_network:
        return ["not crossed: the crossing makes another network than the child's"]
    parents = {
        parent: place
        for parent, (place, own) in enumerate(zip(places, crossing.networks, strict=False))
        if place is not None and _is_of(sources[place], prefix, own)
    }
    notes = []
    for parent, own in enumerate(crossing.networks):
        if parent in parents:
            continue
        fitting = (place for place, source in enumerate(sources) if _is_of(source, prefix, own))
        found = next((place for place in fitting if place not in parents.values()), None)
        if found is None:
            notes.append(f"not crossed: no donor is left that has the network of parent {parent}")
        else:
            parents[parent] = found
    for child in children:
        name = next((name for name in child.names if name.startswith(f"{prefix}layers.")), None)
        node = 0 if name is None else node_of(name.removeprefix(prefix))
        if name is None or node not in kept:
            continue
        parent, origin = crossing.origins[node]
        if parent in parents:
            other = name.replace(f"{prefix}layers.{node}.", f"{prefix}layers.{origin}.", 1)
            if (tensor := sources[parents[parent]].shapes.get(other)) is not None:
                why = "" if other == name else f"by crossing, from {other}"
                child.prefer(Offer(parents[parent], other, tensor, why), without=parents.values())
    return notes


def _kept(crossing: Crossing) -> tuple[Network, set[int]]:
    """What the operations make of the crossing, and the nodes of it that were there all along.

    Whatever an operation put in, also the second half of a branch, goes by its name: it has no layer of a parent's.
    """
    network = crossing.network
    kept = {node.id for node in network.nodes}
    for operation in crossing.operations:
        network = operation.apply(network)
        kept &= {node.id for node in network.nodes}
    return network, kept


def _is_of(source: Weights, prefix: str, network: Network) -> bool:
    """Returns whether a donor's tensors are those of this network."""
    try:
        names_in_graph(source, prefix, network)
    except ConfigurationError:
        return False
    return True
