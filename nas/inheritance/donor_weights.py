"""The weights of donors: state dicts, modules, or stored weights that are read when needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.attention import parts_of
from nas.storage.tensor_parts import TensorParts

_EXTRA = "_extra_state"  # the result of a module's get_extra_state, of any type


class LazyWeights(Protocol):
    """A donor's tensors, read when needed (``nas.storage.lazy_weights.StoredWeights``)."""

    @property
    def shapes(self) -> Mapping[str, Tensor]:
        """All tensors by name, with their data or without it (on torch's device ``meta``)."""

    @property
    def parts(self) -> Mapping[str, TensorParts]:
        """The heads of tensors of attentions by name, if they are known."""

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of these names, in any order; each is valid until the next one."""


WeightsLike: TypeAlias = Mapping[str, Tensor] | LazyWeights | nn.Module


class _LoadedWeights:
    """A state dict, and the heads of its tensors if they are known."""

    def __init__(self, tensors: Mapping[str, Tensor], parts: Mapping[str, TensorParts]) -> None:
        self.shapes = tensors
        self.parts = parts

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.shapes[name]) for name in names)


def donor_list(donors: Iterable[WeightsLike]) -> list[WeightsLike]:
    """Returns the donors of a call as a list.

    Raises:
        ConfigurationError: ``donors`` is a single donor, or no iterable.
    """
    if isinstance(donors, Mapping | nn.Module | str) or not isinstance(donors, Iterable):
        raise ConfigurationError(f"donors={type(donors).__name__}: must be a list, the best first. Give [donor].")
    return list(donors)


def weights_of(donor: WeightsLike) -> LazyWeights:
    """Returns a donor's tensors.

    Raises:
        ConfigurationError: ``donor`` is of another type, or a dict that holds other things than tensors.
    """
    parts: Mapping[str, TensorParts] = {}
    if isinstance(donor, nn.Module):
        parts, donor = parts_of(donor), donor.state_dict()
    if not isinstance(donor, Mapping):
        if not hasattr(donor, "shapes"):
            raise ConfigurationError(f"donor={type(donor).__name__}: must be a state dict, a module or weights")
        return donor
    for name, value in donor.items():
        if isinstance(name, str) and (isinstance(value, Tensor) or name.rpartition(".")[2] == _EXTRA):
            continue
        what = "a dict: give that" if isinstance(value, Mapping) else f"a {type(value).__name__}: leave it out"
        raise ConfigurationError(f"a donor must be a state dict: tensors by name; {name!r} of it is {what}")
    return _LoadedWeights({name: tensor for name, tensor in donor.items() if isinstance(tensor, Tensor)}, parts)
