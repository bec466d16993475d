"""A child that is made of a donor's tensors by the operations that made its network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import node_of
from nas.inheritance.morphism import check_weights, outcome, replay
from nas.inheritance.report import TensorInheritance
from nas.inheritance.shape_rules import all_finite, storage_refusal
from nas.inheritance.tensor_matching import ChildTensor, Weights
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import graph_in
from nas.spaces.graphs.network import Network


def replay_on_best(
    derivation: Derivation,
    model: nn.Module,
    sources: Sequence[Weights],
    children: Sequence[ChildTensor],
    parents: Sequence[int | None],
) -> tuple[int | None, list[str]]:
    """Writes what the derivation makes of the first donor that has its tensors: which, or what stood against it.

    Args:
        derivation: How the child's network was made.
        model: The child.
        sources: The donors, best first.
        children: The child's tensors.
        parents: Places of donors that are tried before the others.
    """
    try:
        prefix, own = graph_in(model)
        network, new = outcome(derivation.network, derivation.operations)
    except PointError as error:
        return None, [f"not replayed: {error}"]
    if network != own:
        return None, ["not replayed: the operations make another network than the child's"]
    refusals: list[str] = []
    for place in dict.fromkeys((*(place for place in parents if place is not None), *range(len(sources)))):
        source = sources[place]
        try:
            names = names_in_graph(source, prefix, derivation.network)
        except ConfigurationError as error:
            refusals.append(str(error))
            continue
        donor = {name: tensor.clone() for name, tensor in source.read(names)}
        if refusal := next(filter(None, map(storage_refusal, donor.values())), None):
            refusals.append(refusal)
            continue
        if _write(derivation, donor, prefix, place, new, children):
            return place, []
        refusals.append("not finite")
    return None, [f"not replayed: {refusals[0]}"]  # of the first


def names_in_graph(source: Weights, prefix: str, network: Network) -> list[str]:
    """Returns the names of a donor's tensors behind the prefix of its graph.

    Raises:
        ConfigurationError: they are not those of this network.
    """
    inner = {name: tensor for name, tensor in source.shapes.items() if name.startswith(f"{prefix}layers.")}
    check_weights(network, {name.removeprefix(prefix): tensor for name, tensor in inner.items()})
    return [*inner]


def _write(
    derivation: Derivation,
    donor: Mapping[str, Tensor],
    prefix: str,
    place: int,
    new: Collection[int],
    children: Sequence[ChildTensor],
) -> bool:
    """Writes what becomes of a donor's tensors, where all of it is finite in the child; whether it was."""
    own = {name.removeprefix(prefix): tensor for name, tensor in donor.items()}
    _, morphed = replay(derivation.network, own, derivation.operations)
    values = {f"{prefix}{name}": tensor for name, tensor in morphed.items()}
    found = [(child, name) for child in children if (name := next((n for n in child.names if n in values), None))]
    cast = [values[name].to(child.tensor.device, child.tensor.dtype) for child, name in found]
    if not all(map(all_finite, cast)):
        return False
    for (child, name), tensor in zip(found, cast, strict=True):
        child.write(tensor)
        if node_of(name.removeprefix(prefix)) in new:
            child.done = TensorInheritance(how="inserted", donor=place, why="operations")
        elif values[name] is donor.get(name):
            child.done = TensorInheritance(how="copied", share=1.0, donor=place)
        else:
            child.done = TensorInheritance(how="morphed", share=1.0, donor=place, why="operations")
    return True
