"""Layers whose weight is computed from other tensors, which are inherited together or not at all.

A part of these tensors does not give that part of the donor's weight. It may also break what the layer guarantees, such
as a spectral norm of 1. Recognized are ``torch.nn.utils.parametrize`` (with a user's own parametrizations), the
older ``weight_norm`` and ``spectral_norm``, and the masks of ``torch.nn.utils.prune``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.tensor_matching import ChildTensor
from nas.inheritance.tensor_sources import TensorSource

REFUSAL = "a reparametrized layer is inherited whole or not at all: the donor's has another size or other tensors"
_DAMAGED = "a reparametrized layer is inherited whole or not at all: another tensor of it can't be used"
_PARAMETRIZATIONS = "parametrizations."


def reparametrized_layers(model: nn.Module, names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the tensors that determine the weights of each reparametrized layer, by the layer's prefix.

    Args:
        model: The model.
        names: The names of its tensors.
    """
    known = [*names]
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own = {f"{prefix}{name}" for name in _names_by_hook(module)}
        if is_parametrized(module):
            own |= {name for name in known if name.startswith(f"{prefix}{_PARAMETRIZATIONS}")}
        if members := [name for name in known if name in own]:
            found[prefix] = members
    return found


def _names_by_hook(module: nn.Module) -> Iterator[str]:
    """Yields the names of the tensors from which hooks compute a weight before each forward pass."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            yield from (f"{hook.name}_{part}" for part in "gv")
        elif isinstance(hook, SpectralNorm):
            yield from (f"{hook.name}_{part}" for part in ("orig", "u", "v"))
        elif isinstance(hook, BasePruningMethod):
            yield from (f"{hook._tensor_name}_{part}" for part in ("orig", "mask"))


class ReparametrizedLayer:
    """The tensors of a reparametrized layer, which take all their values from one donor.

    Args:
        prefix: The prefix of the layer in the names of its tensors.
        tensors: Its tensors that may inherit.
        n_tensors: The number of all its tensors.
    """

    def __init__(self, prefix: str, tensors: Sequence[ChildTensor], n_tensors: int) -> None:
        self._prefix = prefix
        self._tensors = tensors
        self._n_tensors = n_tensors
        self._initial: list[Tensor] = []

    def choose_donor(self, donors: Sequence[LazyWeights]) -> None:
        """Leaves each tensor the source from the best donor that has the whole layer, or none."""
        found = next(filter(None, (self._sources(index, donor) for index, donor in enumerate(donors))), None)
        for position, child in enumerate(self._tensors):
            child.take_whole(found[position] if found else None, REFUSAL)
        self._initial = [child.tensor.clone() for child in self._tensors] if found else []

    def undo_part(self) -> bool:
        """Restores the initial values if only some of the tensors were inherited. Returns whether it did."""
        if all(child.result is None for child in self._tensors):
            return False
        if len(self._tensors) == self._n_tensors and all(child.result is not None for child in self._tensors):
            return False
        for child, initial in zip(self._tensors, self._initial, strict=True):
            child.tensor.copy_(initial)
            child.result, child.refusal = None, child.refusal or _DAMAGED
        return True

    def _sources(self, index: int, donor: LazyWeights) -> list[TensorSource] | None:
        """Returns this donor's source for each tensor, or None if its layer is another."""
        found: list[TensorSource] = []
        prefixes: set[str] = set()
        for child in self._tensors:
            source, own = child.whole_source(index), next(n for n in child.names if n.startswith(self._prefix))
            part = own.removeprefix(self._prefix)
            if source is None or not source.name.endswith(part):
                return None
            found.append(source)
            prefixes.add(source.name.removesuffix(part))
        if len(prefixes) != 1 or len(found) < self._n_tensors:
            return None
        start = f"{prefixes.pop()}{_PARAMETRIZATIONS}"
        n_parametrizations = sum(name.startswith(start) for name in donor.shapes)
        n_own = sum(source.name.startswith(start) for source in found)
        return found if n_parametrizations == n_own else None


def layers_among(layers: Mapping[str, Sequence[str]], children: Sequence[ChildTensor]) -> list[ReparametrizedLayer]:
    """Returns the reparametrized layers with those of their tensors that may inherit."""
    by_name = {name: child for child in children for name in child.names}
    return [
        ReparametrizedLayer(prefix, [by_name[name] for name in names if name in by_name], len(names))
        for prefix, names in layers.items()
    ]
