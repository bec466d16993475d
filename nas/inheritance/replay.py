"""Replays the operations that made a child's network on a donor's tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import node_of
from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.morphism import check_weights, outcome, replay
from nas.inheritance.report import TensorInheritance
from nas.inheritance.shape_rules import all_finite, storage_refusal
from nas.inheritance.tensor_matching import ChildTensor
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import graph_in
from nas.spaces.graphs.network import Network


def replay_on_best(
    derivation: Derivation,
    model: nn.Module,
    donors: Sequence[LazyWeights],
    children: Sequence[ChildTensor],
    parents: Sequence[int | None],
) -> tuple[int | None, list[str]]:
    """Writes the result of the derivation on the first donor that has its tensors.

    Args:
        derivation: The operations that made the child's network.
        model: The child.
        donors: The donors, best first.
        children: The child's tensors.
        parents: Indices of donors that are tried before the others.

    Returns:
        The donor's index, or None and the reason in a note.
    """
    try:
        prefix, own_network = graph_in(model)
        network, new_nodes = outcome(derivation.network, derivation.operations)
    except PointError as error:
        return None, [f"not replayed: {error}"]
    if network != own_network:
        return None, ["not replayed: the operations make another network than the child's"]
    refusals: list[str] = []
    known_parents = (index for index in parents if index is not None)
    for index in dict.fromkeys((*known_parents, *range(len(donors)))):
        donor = donors[index]
        try:
            names = names_in_graph(donor, prefix, derivation.network)
        except ConfigurationError as error:
            refusals.append(str(error))
            continue
        tensors = {name: tensor.clone() for name, tensor in donor.read(names)}
        if refusal := next(filter(None, map(storage_refusal, tensors.values())), None):
            refusals.append(refusal)
            continue
        if _write(derivation, tensors, prefix, index, new_nodes, children):
            return index, []
        refusals.append("not finite")
    return None, [f"not replayed: {refusals[0]}"]


def names_in_graph(donor: LazyWeights, prefix: str, network: Network) -> list[str]:
    """Returns the names of a donor's tensors that begin with the prefix of its graph.

    Raises:
        ConfigurationError: they are not the tensors of this network.
    """
    inner = {name: tensor for name, tensor in donor.shapes.items() if name.startswith(f"{prefix}layers.")}
    check_weights(network, {name.removeprefix(prefix): tensor for name, tensor in inner.items()})
    return [*inner]


def _write(
    derivation: Derivation,
    tensors: Mapping[str, Tensor],
    prefix: str,
    donor: int,
    new_nodes: Collection[int],
    children: Sequence[ChildTensor],
) -> bool:
    """Writes the derivation's result on a donor's tensors; returns False if it is not finite."""
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    _, morphed = replay(derivation.network, own, derivation.operations)
    values = {f"{prefix}{name}": tensor for name, tensor in morphed.items()}
    found: list[tuple[ChildTensor, str]] = []
    for child in children:
        name = next((name for name in child.names if name in values), None)
        if name is not None:
            found.append((child, name))
    cast = [values[name].to(child.tensor.device, child.tensor.dtype) for child, name in found]
    if not all(map(all_finite, cast)):
        return False
    for (child, name), tensor in zip(found, cast, strict=True):
        child.write(tensor)
        if node_of(name.removeprefix(prefix)) in new_nodes:
            child.result = TensorInheritance(how="inserted", donor=donor, why="operations")
        elif values[name] is tensors.get(name):
            child.result = TensorInheritance(how="copied", share=1.0, donor=donor)
        else:
            child.result = TensorInheritance(how="morphed", share=1.0, donor=donor, why="operations")
    return True
