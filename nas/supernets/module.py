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

from torch import nn

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point
from nas.core.validation import closest_names
from nas.spaces.parameters.space import Parameter, ParameterSpace


class SearchableModule(nn.Module, ABC):
    """A module with decisions that a point takes.

    Decisions of the same name are one decision, in the whole network.
    """

    @abstractmethod
    def decisions(self) -> Mapping[str, Parameter]:
        """Returns the values of each decision, by name; without those of modules inside."""

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
    those of the network. Modules that share a parameter, such as a tied head, share it in the copy.

    Raises:
        PointError: the point lacks a decision, or has a value that is not allowed.
    """
    copies: dict[int, Any] = {}  # deepcopy takes what it finds here for copied already
    for module in _outside_choices(network):
        if isinstance(module, SearchableModule):
            copies[id(module)] = module.subnet(point)
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


def _share(copied: nn.Module, network: nn.Module) -> None:
    """Shares parameters of a subnet as the network does, if they have the same shape."""
    owners: dict[int, list[str]] = {}
    names = [name for name, _ in copied.named_parameters(remove_duplicate=False)]
    for name in names if len(names) > 1 else ():  # most options have one parameter
        owners.setdefault(id(network.get_parameter(name)), []).append(name)
    for first, *others in owners.values():
        shared = copied.get_parameter(first)
        for name in others:
            module, _, own = name.rpartition(".")
            if copied.get_parameter(name).shape == shared.shape:
                setattr(copied.get_submodule(module), own, shared)


def _outside_choices(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the module and those in it, except what is in a searchable module."""
    yield module
    if not isinstance(module, SearchableModule):
        for child in module.children():
            yield from _outside_choices(child)


def _is_empty(hooks: object) -> bool:
    """Returns whether this is an empty table of hooks; deepcopy takes long for it."""
    return type(hooks) is OrderedDict and not hooks
