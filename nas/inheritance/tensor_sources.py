"""Donors as they are given: state dicts, modules, or weights that are still to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.tensor_matching import Weights

Donor: TypeAlias = Mapping[str, Tensor] | Weights | nn.Module
_EXTRA = "_extra_state"  # what a module's get_extra_state returns may be anything


class _Loaded:
    """A state dict."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = tensors

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.shapes[name]) for name in names)


def listed(donors: Iterable[Donor]) -> list[Donor]:
    """Returns the donors of a call, in their order.

    Raises:
        ConfigurationError: they are one donor, or nothing that can be gone through.
    """
    if isinstance(donors, Mapping | nn.Module | str) or not isinstance(donors, Iterable):
        raise ConfigurationError(f"donors (a {type(donors).__name__}) must be a list, the best first; give [donor]")
    return list(donors)


def source_of(donor: Donor) -> Weights:
    """Returns a donor's tensors, read when they are wanted.

    Raises:
        ConfigurationError: it is no donor, or a dict of other things than tensors.
    """
    if isinstance(donor, nn.Module):
        donor = donor.state_dict()
    if not isinstance(donor, Mapping):
        if not hasattr(donor, "shapes"):
            raise ConfigurationError(f"a donor (a {type(donor).__name__}) must be a state dict, a module or weights")
        return donor
    for name, value in donor.items():
        if isinstance(name, str) and (isinstance(value, Tensor) or name.rpartition(".")[2] == _EXTRA):
            continue
        what = "a dict: give that" if isinstance(value, Mapping) else f"a {type(value).__name__}: leave it out"
        raise ConfigurationError(f"a donor must be a state dict: tensors by name; {name!r} of it is {what}")
    return _Loaded({name: tensor for name, tensor in donor.items() if isinstance(tensor, Tensor)})
