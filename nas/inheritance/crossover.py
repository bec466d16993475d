"""Inheritance from two parents: each layer of a crossing takes the tensors of its own parent."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import node_of
from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.replay import names_in_graph
from nas.inheritance.tensor_matching import ChildTensor
from nas.inheritance.tensor_sources import TensorSource
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.module import graph_in
from nas.spaces.graphs.network import Network


def prefer_origins(
    crossing: Crossing,
    model: nn.Module,
    donors: Sequence[LazyWeights],
    children: Sequence[ChildTensor],
    parents: Sequence[int | None],
) -> list[str]:
    """Makes each tensor of a child prefer the tensor that its layer had in its parent.

    Args:
        crossing: The crossing that made the child's network.
        model: The child.
        donors: The donors, best first.
        children: The child's tensors.
        parents: For each parent its index in ``donors``, or None. Then the best donor with the parent's tensors that
            does not stand for the other parent is used.

    Returns:
        Notes on what was not possible.
    """
    try:
        prefix, own_network = graph_in(model)
        network, kept_nodes = _kept(crossing)
    except PointError as error:
        return [f"not crossed: {error}"]
    if network != own_network:
        return ["not crossed: the crossing makes another network than the child's"]
    donor_of, notes = _donors_of_parents(crossing, donors, parents, prefix)
    for child in children:
        name = next((name for name in child.names if name.startswith(f"{prefix}layers.")), None)
        node = 0 if name is None else node_of(name.removeprefix(prefix))
        if name is None or node not in kept_nodes:
            continue
        parent, origin = crossing.origins[node]
        if parent in donor_of:
            donor = donor_of[parent]
            other = name.replace(f"{prefix}layers.{node}.", f"{prefix}layers.{origin}.", 1)
            if (tensor := donors[donor].shapes.get(other)) is not None:
                why = "" if other == name else f"by crossing, from {other}"
                child.prefer(TensorSource(donor, other, tensor, why), without=donor_of.values())
    return notes


def _donors_of_parents(
    crossing: Crossing, donors: Sequence[LazyWeights], parents: Sequence[int | None], prefix: str
) -> tuple[dict[int, int], list[str]]:
    """Returns the donor's index for each parent, and notes on parents without a donor."""
    found = {
        parent: index
        for parent, (index, network) in enumerate(zip(parents, crossing.networks, strict=False))
        if index is not None and _has_tensors_of(donors[index], prefix, network)
    }
    notes = []
    for parent, network in enumerate(crossing.networks):
        if parent in found:
            continue
        fitting = (index for index, donor in enumerate(donors) if _has_tensors_of(donor, prefix, network))
        donor = next((index for index in fitting if index not in found.values()), None)
        if donor is None:
            notes.append(f"not crossed: no donor is left that has the network of parent {parent}")
        else:
            found[parent] = donor
    return found, notes


def _kept(crossing: Crossing) -> tuple[Network, set[int]]:
    """Returns the network after the crossing's operations, and its nodes that existed before them.

    Nodes that an operation put in, also the second half of a branch, come from no parent's layer.
    """
    network = crossing.network
    kept = {node.id for node in network.nodes}
    for operation in crossing.operations:
        network = operation.apply(network)
        kept &= {node.id for node in network.nodes}
    return network, kept


def _has_tensors_of(donor: LazyWeights, prefix: str, network: Network) -> bool:
    try:
        names_in_graph(donor, prefix, network)
    except ConfigurationError:
        return False
    return True
