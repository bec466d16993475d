"""Optimizer state that is inherited: momentum and the like travel with the parameters that they belong to.

A problem that wants it publishes the state beside the weights and has a child's optimizer take it:

    run.save({**network.state_dict(), **optimizer_tensors(optimizer, network)})
    ...
    run.inherit_optimizer(optimizer, network)

State is found by the parameter's name alone: where weights come of a layer of another name (``Rules.first`` structure,
a cousin as donor beside a replay, a crossing), momentum is that of the name, or fresh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from copy import copy, deepcopy

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.inherit import report_of
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.inheritance.tensor_matching import ChildTensor, Weights, offers_of, settle
from nas.inheritance.tensor_roles import Trait, Traits
from nas.inheritance.tensor_sources import Donor, listed, source_of
from nas.storage.tensor_names import OPTIMIZER, is_weight


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the optimizer's tensors by kind and parameter: ``optimizer/exp_avg/conv.weight``.

    Args:
        optimizer: Of the model's parameters.
        model: Names them.
    """
    return {
        f"{OPTIMIZER}{kind}/{name}": value.detach()
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def inherit_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, donors: Iterable[Donor]) -> InheritanceReport:
    """Has a fresh optimizer go on with what fits of the donors' state, by the names of the parameters.

    A parameter takes it from one donor, which published the very kinds that this optimizer keeps of it: Adam takes
    nothing of SGD. What was sliced comes in part, and the rest is as before the first step; a parameter of which
    something does not fit begins afresh. Counts of steps come along: else later momentum would be corrected as that of
    the first steps.

    Args:
        optimizer: Of the child, before its first step; any of torch's but SparseAdam and LBFGS.
        model: The child.
        donors: What was published, among it ``optimizer_tensors``; best first.

    Raises:
        ConfigurationError: donors that are no list of such, or one of the two optimizers.
    """
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        name = type(optimizer).__name__
        raise ConfigurationError(f"optimizer ({name}) can't inherit its state; leave it fresh, or choose another")
    sources = [source_of(donor) for donor in listed(donors)]
    published = [_kinds(source) for source in sources]
    wanted = _first_state(optimizer, model) if any(published) else {}
    parameters, traits, rules = dict(model.named_parameters()), Traits(model), Rules(rest="own")

    def child_of(name: str, kind: str, places: Collection[int]) -> ChildTensor:
        """One tensor of the state, which takes what donors in these places offer."""
        key, tensor = f"{OPTIMIZER}{kind}/{name}", wanted[name][kind]
        trait = traits.of([name]) if tensor.shape == parameters[name].shape else Trait(is_parameter=True)
        offers = offers_of([key], tensor, sources, [{}] * len(sources), rules)
        return ChildTensor([key], tensor, [offer for offer in offers if offer.place in places], trait, rules)

    groups: dict[str, dict[str, ChildTensor]] = {}
    for name, own in wanted.items():
        places = {place for place, kinds in enumerate(published) if kinds.get(name) == own.keys()}
        decisive = [kind for kind, value in own.items() if value.dim()] or list(own)  # a count fits anywhere
        groups[name] = {kind: child_of(name, kind, places) for kind in decisive}
    with torch.no_grad():
        settle([child for group in groups.values() for child in group.values()], sources)
        counts: list[ChildTensor] = []
        for name, group in groups.items():
            places = {place for place in range(len(sources)) if all(_is_of(child, place) for child in group.values())}
            rest = {kind: child_of(name, kind, places) for kind in wanted[name] if kind not in group}
            group |= rest
            counts += rest.values()
        settle(counts, sources)
    for name, group in groups.items():
        donor = next(iter(group.values())).done
        if donor is not None and all(_is_of(child, donor.donor) for child in group.values()):
            optimizer.state[parameters[name]] |= wanted[name]
            continue
        for child in group.values():
            child.done, child.refusal = None, child.refusal or "no donor published all that this optimizer keeps of it"
    children = [child for group in groups.values() for child in group.values()]
    state = {name: child.tensor for child in children for name in child.names}
    return report_of(children, state, bool(sources))


def _kinds(source: Weights) -> dict[str, set[str]]:
    """What a donor published of its optimizer's state: by parameter, the kinds."""
    found: dict[str, set[str]] = {}
    for key in source.shapes:
        if not is_weight(key):
            kind, _, name = key.removeprefix(OPTIMIZER).partition("/")
            found.setdefault(name, set()).add(kind)
    return found


def _first_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """What the optimizer keeps of each parameter, by kind: as a step on zeros without a gradient leaves it.

    Parameters of which it keeps nothing, or what is no tensor, are left out.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    probe = copy(optimizer)  # without hooks, a scheduler's way to count steps, and what a user's class holds
    for name, value in optimizer.__dict__.items():
        if name != "step":
            probe.__dict__.setdefault(name, copy(value))
    found: dict[str, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not (state := deepcopy(optimizer.state.get(parameter))):  # some have it from the beginning
                zeros = torch.zeros_like(parameter, requires_grad=True)
                zeros.grad = torch.zeros_like(parameter)
                probe.state = defaultdict(dict)
                probe.param_groups = [{**group, "params": [zeros]}]
                probe.step()
                state = probe.state[zeros]
            if parameter in names and state and all(isinstance(value, Tensor) for value in state.values()):
                found[names[parameter]] = dict(state)
    return found


def _is_of(child: ChildTensor, place: int | None) -> bool:
    return child.done is not None and child.done.donor == place
