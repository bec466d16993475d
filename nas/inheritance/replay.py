"""Replays the operations that made a child's network on a donor's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.channel_edits import Weights, node_of
from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.growth import grow, new_blocks
from nas.inheritance.growth_checks import OTHER_NETWORK, check_transformer, transformer_in
from nas.inheritance.morphism import check_weights, outcome, replay
from nas.inheritance.report import TensorInheritance
from nas.inheritance.shape_rules import all_finite, storage_refusal
from nas.inheritance.tensor_matching import ChildTensor
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import graph_in
from nas.spaces.graphs.network import Network
from nas.spaces.growth import Growth


@dataclass(frozen=True, slots=True)
class _Replay:
    """A derivation on the tensors of one kind of network.

    Attributes:
        prefix: The beginning of the names of the network's tensors in the child.
        names: Returns the names of a donor's tensors; raises ConfigurationError if they are of another network.
        run: Returns the child's tensors for the donor's, both by their names without the prefix.
        is_new: Returns whether the operations put in the layer of a tensor, with outputs of 0.
    """

    prefix: str
    names: Callable[[LazyWeights], list[str]]
    run: Callable[[Mapping[str, Tensor]], Weights]
    is_new: Callable[[str], bool]


def replay_on_best(
    derivation: Derivation | Growth,
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
        replayed = _of_graph(derivation, model) if isinstance(derivation, Derivation) else _of_growth(derivation, model)
    except PointError as error:
        return None, [f"not replayed: {error}"]
    refusals: list[str] = []
    known_parents = (index for index in parents if index is not None)
    for index in dict.fromkeys((*known_parents, *range(len(donors)))):
        donor = donors[index]
        try:
            names = replayed.names(donor)
        except ConfigurationError as error:
            refusals.append(str(error))
            continue
        tensors = {name: tensor.clone() for name, tensor in donor.read(names)}
        if refusal := next(filter(None, map(storage_refusal, tensors.values())), None):
            refusals.append(refusal)
            continue
        if _write(replayed, tensors, index, children):
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


def _of_graph(derivation: Derivation, model: nn.Module) -> _Replay:
    """Returns the replay on a network graph.

    Raises:
        PointError: the model has no graph, or the operations make another one.
    """
    prefix, own_network = graph_in(model)
    network, new_nodes = outcome(derivation.network, derivation.operations)
    if network != own_network:
        raise PointError(OTHER_NETWORK)
    return _Replay(
        prefix,
        names=lambda donor: names_in_graph(donor, prefix, derivation.network),
        run=lambda tensors: replay(derivation.network, tensors, derivation.operations)[1],
        is_new=lambda name: node_of(name) in new_nodes,
    )


def _of_growth(growth: Growth, model: nn.Module) -> _Replay:
    """Returns the replay on a transformer.

    Raises:
        PointError: the model has no transformer, or the operations make another one or change its function.
    """
    prefix, own = transformer_in(model, growth.grown, growth.operations)
    known = {f"{prefix}{name}" for name in check_transformer(growth.grown, own)}
    beside = {name: tensor for name, tensor in model.state_dict().items() if name not in known}
    new = {f"layers.{block}" for block in new_blocks(growth.sizes.n_layers, growth.operations)}

    def names(donor: LazyWeights) -> list[str]:
        inner = {name.removeprefix(prefix): t for name, t in donor.shapes.items() if name.startswith(prefix)}
        parts = getattr(donor, "parts", {}).get(f"{prefix}layers.0.self_attn.in_proj_weight")
        found = check_transformer(growth.sizes, inner, None if parts is None else parts.sizes[0][0])
        for name in ("embed.weight", "positions.weight", "head.weight"):
            if name in inner and name in own and len(inner[name]) != len(own[name]):
                raise ConfigurationError(f"weights: {name} has {len(inner[name])} rows, the child's {len(own[name])}")
        _check_same_shapes(beside, donor.shapes)
        return [f"{prefix}{name}" for name in found]

    return _Replay(
        prefix,
        names=names,
        run=lambda tensors: grow(growth.sizes, tensors, growth.operations)[1],
        is_new=lambda name: ".".join(name.split(".", 2)[:2]) in new,
    )


def _check_same_shapes(own: Mapping[str, Tensor], donor: Mapping[str, Tensor]) -> None:
    """Checks the tensors that no operation grows, by their names in the child and the donor.

    Raises:
        ConfigurationError: a shape differs, so that the function changes.
    """
    for name in (name for name, tensor in own.items() if name in donor and not is_lazy(tensor)):
        if own[name].shape != (shape := donor[name].shape):
            raise ConfigurationError(
                f"weights: {name} has shape {tuple(shape)}, the child's {tuple(own[name].shape)}, and no operation "
                "grows it"
            )


def _write(replayed: _Replay, tensors: Mapping[str, Tensor], donor: int, children: Sequence[ChildTensor]) -> bool:
    """Writes the derivation's result on a donor's tensors; returns False if it is not finite."""
    prefix = replayed.prefix
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    values = {f"{prefix}{name}": tensor for name, tensor in replayed.run(own).items()}
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
        if replayed.is_new(name.removeprefix(prefix)):
            child.result = TensorInheritance(how="inserted", donor=donor, why="operations")
        elif values[name] is tensors.get(name):
            child.result = TensorInheritance(how="copied", share=1.0, donor=donor)
        else:
            child.result = TensorInheritance(how="morphed", share=1.0, donor=donor, why="operations")
    return True
