"""Networks with choices: their space, the selection of a point, and the subnet of a point.

>>> network = nn.Sequential(nn.Conv2d(3, 16, 3), LayerChoice({"tanh": nn.Tanh(), "relu": nn.ReLU()}, "activation"))
>>> space_of(network)
ParameterSpace({'activation': one of 'tanh', 'relu'})
>>> select(network, {"activation": "tanh"})  # for all later forward passes
>>> subnet(network, {"activation": "tanh"})  # a network of its own, with copies of the tensors
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point
from nas.core.validation import closest_names
from nas.spaces.parameters.space import Parameter, ParameterSpace

_HOOKS = tuple(name for name in vars(nn.Module()) if "_hook" in name)
"""The attributes in which torch keeps a module's hooks."""


class SearchableModule(nn.Module, ABC):
    """A module with decisions that a point takes.

    Decisions of the same name are one decision, in the whole network.
    """

    @abstractmethod
    def decisions(self) -> Mapping[str, Parameter]:
        """Returns the values of each decision, by name.

        Decisions of modules inside may be left out.
        """

    @abstractmethod
    def select(self, point: Point) -> None:
        """Selects a point for later forward passes; not in modules inside, which `select` finds by itself.

        Raises:
            PointError: the point lacks a decision, or has a value that is not allowed.
        """

    @abstractmethod
    def subnet(self, point: Point) -> nn.Module:
        """Returns a module of only what the point uses.

        Names of tensors are those in this module. Tensors are copies: whole, or a part of each dimension.

        Raises:
            PointError: as for ``select``.
        """


def space_of(network: nn.Module) -> ParameterSpace:
    """Returns the space of all decisions in a network, in the order of its modules.

    Raises:
        ConfigurationError: there is no decision, or two of the same name have different values.
    """
    found: dict[str, Parameter] = {}
    for module in searchable_modules(network):
        for name, parameter in module.decisions().items():
            if found.setdefault(name, parameter) != parameter:
                raise ConfigurationError(
                    f"decision {name!r}: must have the same values everywhere in the network, "
                    f"found {found[name]} and {parameter}. Give one of them another name."
                )
    if not found:
        raise ConfigurationError(f"{type(network).__name__}: must have a decision. Put a LayerChoice into it.")
    return ParameterSpace(found)


def select(network: nn.Module, point: Point) -> None:
    """Selects a point in the whole network, for all later forward passes.

    Names without a decision are ignored.

    Raises:
        PointError: the point lacks a decision, or has a value that is not allowed.
    """
    for module in searchable_modules(network):
        module.select(point)


def subnet(network: nn.Module, point: Point) -> nn.Module:
    """Returns a copy of the network in which each searchable module is its subnet.

    It computes what the network computes with ``select(network, point)``. The names in its ``state_dict`` are among
    those of the network. Modules that share a parameter or a buffer, such as a tied head, share it in the copy. Hooks
    are kept, also those of choices.

    Raises:
        PointError: the point lacks a decision, or has a value that is not allowed.
    """
    copies: dict[int, Any] = {}  # deepcopy takes what it finds here for copied already
    for module in _outside_choices(network):
        if isinstance(module, SearchableModule):
            copies[id(module)] = _with_hooks(module.subnet(point), module)
        else:
            copies |= {id(hooks): OrderedDict() for hooks in vars(module).values() if _is_empty(hooks)}
    copied: nn.Module = copy.deepcopy(network, copies)
    _share(copied, network)
    return copied


def searchable_modules(network: nn.Module) -> Iterator[SearchableModule]:
    """Yields all searchable modules of a network, each once, outer ones before those in them."""
    return (module for module in network.modules() if isinstance(module, SearchableModule))


def value_of(point: Point, name: str) -> Any:
    """Returns the value of a decision.

    Raises:
        PointError: the point has no such name.
    """
    if name not in point:
        raise PointError(f"{name}: must be in the point. It has {closest_names(name, point) or 'no names'}.")
    return point[name]


def _with_hooks(alone: nn.Module, module: SearchableModule) -> nn.Module:
    """Returns a subnet with the hooks of its searchable module."""
    for name in _HOOKS:
        if isinstance(hooks := getattr(module, name), dict):
            getattr(alone, name).update(hooks)
        elif hooks is not None:  # whether backward hooks are full
            setattr(alone, name, hooks)
    return alone


def _share(copied: nn.Module, network: nn.Module) -> None:
    """Shares tensors of a subnet as the network does, if they have the same shape."""
    owners: dict[int, list[str]] = {}
    tensors: dict[str, Tensor] = dict(copied.named_parameters(remove_duplicate=False))
    tensors |= dict(copied.named_buffers(remove_duplicate=False))
    for name in tensors if len(tensors) > 1 else ():  # most options have one tensor
        if (source := _tensor(network, name)) is not None:
            owners.setdefault(id(source), []).append(name)
    for first, *others in owners.values():
        for name in others:
            module, _, own = name.rpartition(".")
            if tensors[name].shape == tensors[first].shape:
                setattr(copied.get_submodule(module), own, tensors[first])


def _tensor(network: nn.Module, name: str) -> object:
    """Returns the tensor of this name, or None if the network has no such name."""
    found: object = network
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _outside_choices(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the module and those in it, except what is in a searchable module."""
    yield module
    if not isinstance(module, SearchableModule):
        for child in module.children():
            yield from _outside_choices(child)


def _is_empty(hooks: object) -> bool:
    """Returns whether this is an empty table of hooks; deepcopy takes long for it."""
    return type(hooks) is OrderedDict and not hooks
