"""Inheritance of optimizer state: momentum and the like follow the parameters that they belong to.

A problem publishes the state beside the weights, and lets a child's optimizer inherit it:

    run.save({**network.state_dict(), **optimizer_tensors(optimizer, network)})
    ...
    run.inherit_optimizer(optimizer, network)

State is found by the parameter's name alone. Weights can come from a layer of another name: by structure, by a
crossing, or from a further donor beside a replay. The state is that of the name even then, or new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from copy import copy, deepcopy

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.donor_weights import LazyWeights, WeightsLike, donor_list, weights_of
from nas.inheritance.inherit import report_of
from nas.inheritance.reparametrization import REFUSAL, reparametrized_layers
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.inheritance.tensor_matching import ChildTensor, inherit_tensors
from nas.inheritance.tensor_roles import Role, Roles
from nas.inheritance.tensor_sources import tensor_sources
from nas.storage.tensor_names import OPTIMIZER, is_weight, unwrapped


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the optimizer's tensors by kind and parameter: ``optimizer/exp_avg/conv.weight``.

    Args:
        optimizer: The optimizer of the model's parameters.
        model: The model, which names them.
    """
    return {
        f"{OPTIMIZER}{kind}/{name}": value.detach()
        for name, parameter in unwrapped(model).named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def inherit_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, donors: Iterable[WeightsLike]
) -> InheritanceReport:
    """Copies into a new optimizer what fits of the donors' state.

    State is matched by the names of the parameters. A parameter takes its state from one donor. That donor must have
    published exactly the kinds that this optimizer keeps: Adam takes nothing from SGD. Sliced state is inherited in
    part; the rest is as before the first step. If some kind does not fit, the parameter starts without state. Step
    counts are inherited too: otherwise later momentum would get the bias correction of the first steps.

    Args:
        optimizer: The child's optimizer, before its first step; any of torch's but SparseAdam and LBFGS.
        model: The child.
        donors: Published tensors, with those of ``optimizer_tensors``, best first.

    Raises:
        ConfigurationError: ``donors`` is no list of donors, or the optimizer is one of the two.
    """
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        name = type(optimizer).__name__
        raise ConfigurationError(f"optimizer={name}: can't inherit its state. Leave it fresh, or choose another.")
    model = unwrapped(model)
    weights = [weights_of(donor) for donor in donor_list(donors)]
    published = [_kinds(donor) for donor in weights]
    first_state = _first_state(optimizer, model) if any(published) else {}
    parameters, roles, rules = dict(model.named_parameters()), Roles(model), Rules(rest="own")
    whole = {name for names in reparametrized_layers(model, parameters).values() for name in names}

    def child_of(name: str, kind: str, donors: Collection[int]) -> ChildTensor:
        """Returns one tensor of the state, with its sources among donors with these indices."""
        key, tensor = f"{OPTIMIZER}{kind}/{name}", first_state[name][kind]
        role = roles.of([name]) if tensor.shape == parameters[name].shape else Role(is_parameter=True)
        sources = tensor_sources([key], tensor, [(donor, {}) for donor in weights], rules, role)
        child = ChildTensor([key], tensor, [source for source in sources if source.donor in donors], role, rules)
        if name in whole:
            child.take_whole(next(filter(None, map(child.whole_source, sorted(donors))), None), REFUSAL)
        return child

    groups: dict[str, dict[str, ChildTensor]] = {}
    for name, state in first_state.items():
        fitting = {index for index, kinds in enumerate(published) if kinds.get(name) == state.keys()}
        shaped = [kind for kind, value in state.items() if value.dim()] or list(state)  # a count fits any donor
        groups[name] = {kind: child_of(name, kind, fitting) for kind in shaped}
    with torch.no_grad():
        inherit_tensors([child for group in groups.values() for child in group.values()], weights)
        counts: list[ChildTensor] = []
        for name, group in groups.items():
            fitting = {
                index for index in range(len(weights)) if all(_is_from(child, index) for child in group.values())
            }
            rest = {kind: child_of(name, kind, fitting) for kind in first_state[name] if kind not in group}
            group |= rest
            counts += rest.values()
        inherit_tensors(counts, weights)
    for name, group in groups.items():
        result = next(iter(group.values())).result
        if result is not None and all(_is_from(child, result.donor) for child in group.values()):
            optimizer.state[parameters[name]] |= first_state[name]
            continue
        for child in group.values():
            child.result, child.refusal = (
                None,
                child.refusal or "no donor published all kinds that this optimizer keeps",
            )
    children = [child for group in groups.values() for child in group.values()]
    tensors = {name: child.tensor for child in children for name in child.names}
    return report_of(children, tensors, bool(weights))


def _kinds(donor: LazyWeights) -> dict[str, set[str]]:
    """Returns the kinds of optimizer state that a donor published, by parameter."""
    found: dict[str, set[str]] = {}
    for key in donor.shapes:
        if not is_weight(key):
            kind, _, name = key.removeprefix(OPTIMIZER).partition("/")
            found.setdefault(name, set()).add(kind)
    return found


def _first_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Returns the optimizer's state of each parameter, by kind, after a step with zero gradients.

    Parameters without state, or with other state than tensors, are left out.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    probe = copy(optimizer)  # without hooks, a scheduler's step counter, and the attributes of a user's class
    for name, value in optimizer.__dict__.items():
        if name != "step":
            probe.__dict__.setdefault(name, copy(value))
    found: dict[str, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not (state := deepcopy(optimizer.state.get(parameter))):  # some optimizers have it before the first step
                zeros = torch.zeros_like(parameter, requires_grad=True)
                zeros.grad = torch.zeros_like(parameter)
                probe.state = defaultdict(dict)
                probe.param_groups = [{**group, "params": [zeros]}]
                probe.step()
                state = probe.state[zeros]
            if parameter in names and state and all(isinstance(value, Tensor) for value in state.values()):
                found[names[parameter]] = dict(state)
    return found


def _is_from(child: ChildTensor, donor: int | None) -> bool:
    return child.result is not None and child.result.donor == donor
