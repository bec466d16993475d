"""Tensors of a child, and what they take from their sources."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.head_groups import regrouped
from nas.inheritance.report import TensorInheritance
from nas.inheritance.rules import Rules
from nas.inheritance.shape_rules import (
    NO_DATA,
    shape_refusal,
    shape_text,
    storage_refusal,
    upcast_float8,
    value_refusal,
)
from nas.inheritance.tensor_blocks import blocks
from nas.inheritance.tensor_roles import Role
from nas.inheritance.tensor_sources import TensorSource


class ChildTensor:
    """A tensor of the child with its names, its possible sources, and its result.

    Attributes:
        names: All names of the tensor; several for tied weights.
        tensor: The tensor in the model.
        role: The role of the tensor in the model.
        result: What was inherited, or None: nothing so far.
        refusal: The reason why the tensor, or its first source, can't be used, or None.
    """

    def __init__(
        self, names: Sequence[str], tensor: Tensor, sources: Sequence[TensorSource], role: Role, rules: Rules
    ) -> None:
        self.names = names
        self.tensor = tensor
        self.role = role
        self.result: TensorInheritance | None = None
        self.refusal: str | None = None
        self._rules = rules
        self._sources = sources
        self._n_refused = 0
        if (refusal := storage_refusal(tensor)) is not None:
            self.refusal = f"{refusal}; run one batch through the model first" if is_lazy(tensor) else refusal
        elif any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            self.refusal = "several elements share memory, as after expand; clone it"

    def prefer(self, source: TensorSource, without: Container[int]) -> None:
        """Puts a source first, and removes all other sources from the donors with these indices."""
        self._sources = [source, *(other for other in self._sources if other.donor not in without)]

    def whole_source(self, donor: int) -> TensorSource | None:
        """Returns the best source from this donor that has the tensor's shape, or None."""
        return next(
            (
                source
                for source in self._sources
                if source.donor == donor and source.is_whole_for(self.tensor, self.role.parts)
            ),
            None,
        )

    def take_whole(self, source: TensorSource | None, refusal: str) -> None:
        """Leaves this source alone, whose values are neither shrunk nor perturbed; None: the tensor stays new."""
        self._rules = replace(self._rules, shrink=1.0, perturb=0.0)
        if source is None and self._sources:
            self.refusal = self.refusal or refusal
        self._sources = [] if source is None else [source]

    def prefer_donor(self, donor: int) -> None:
        """Puts the sources from this donor first."""
        self._sources = sorted(self._sources, key=lambda source: source.donor != donor)

    def next_source(self) -> TensorSource | None:
        """Returns the best source that is left and has a fitting shape."""
        while self._n_refused < len(self._sources):
            source = self._sources[self._n_refused]
            if (refusal := shape_refusal(self.tensor, source.tensor, self.role, source.parts)) is None:
                return source
            self._refuse(source.donor, refusal)
        return None

    def take(self, values: Tensor) -> None:
        """Copies the values of the source that ``next_source`` returned, if all are finite."""
        source = self._sources[self._n_refused]
        child = self.tensor
        if values.is_meta:
            self._refuse(source.donor, NO_DATA)
            return
        cast = values.to(child.device, child.dtype)
        if cast.untyped_storage().data_ptr() == child.untyped_storage().data_ptr():
            cast = cast.clone()  # a slice of a supernet, say, which would be overwritten while it is read
        if (refusal := value_refusal(cast, values)) is not None:
            self._refuse(source.donor, refusal)
            return
        if source.is_whole_for(child, self.role.parts):
            self.write(cast)
            self.result = TensorInheritance(how="copied", share=1.0, donor=source.donor, why=source.why)
            return
        share = self._write_part(cast, source)
        is_resampled = self.role.grid is not None and self.role.grid.is_resized(child, values)
        how = ", resampled" if is_resampled else source.how_split(self.role.parts)
        why = f"{shape_text(child, values)}{how}{', ' * bool(source.why)}{source.why}"
        self.result = TensorInheritance(how="sliced", share=share, donor=source.donor, why=why)

    def write(self, values: Tensor) -> None:
        """Sets the tensor to these values, shrunk and perturbed by the rules."""
        rules = self._rules
        if self._is_mixed:
            values = rules.shrink * upcast_float8(values) + rules.perturb * upcast_float8(self.tensor)
        self.tensor.copy_(values)

    @property
    def _is_mixed(self) -> bool:
        """Whether the rules shrink or perturb this tensor."""
        return self.role.is_parameter and (self._rules.shrink, self._rules.perturb) != (1.0, 0.0)

    def _write_part(self, values: Tensor, source: TensorSource) -> float:
        """Copies the overlap, fills the rest by the rules, and returns the inherited share."""
        child, values, parts = self.tensor, upcast_float8(values), source.parts
        if source.is_regrouped and parts is not None and self.role.parts is not None:
            values, parts = regrouped(values, parts, self.role.parts)
        if self.role.grid is not None and self.role.grid.is_resized(child, values):
            values = self.role.grid.resampled(values, self.role.grid.side(child))
        is_direct = not self._is_mixed and upcast_float8(child) is child
        whole = child if is_direct else upcast_float8(child).clone()
        is_scaled = self._rules.rest == "scaled" and self.role.is_weight
        found = blocks(whole, values, self.role, parts)
        n_given = sum(block.take(is_scaled=is_scaled) for block in found)
        if not is_direct:
            self.write(whole)
        return n_given / child.numel()

    def _refuse(self, donor: int, why: str) -> None:
        if self._n_refused == 0:
            self.refusal = f"donor at index {donor}: {why}"
        self._n_refused += 1


def inherit_by_layer(
    children: Sequence[ChildTensor],
    whole_model: Sequence[ChildTensor],
    channel_weights: Mapping[str, str],
    donors: Sequence[LazyWeights],
) -> None:
    """Inherits channel weights first; the other tensors of their channels then prefer the same donor.

    Args:
        children: The tensors that have no result yet.
        whole_model: All tensors of the model, with the results so far.
        channel_weights: By tensor name, the name of its channel weight (``layer_alignment.channel_weights``).
        donors: The donors, best first.
    """
    first = set(channel_weights.values())
    inherit_tensors([child for child in children if not first.isdisjoint(child.names)], donors)
    donor_by_name = {name: child.result.donor for child in whole_model if child.result for name in child.names}
    others = [child for child in children if child.result is None and first.isdisjoint(child.names)]
    for child in others:
        found = (donor_by_name.get(channel_weights[name]) for name in child.names if name in channel_weights)
        donor = next((donor for donor in found if donor is not None), None)
        if donor is not None:
            child.prefer_donor(donor)
    inherit_tensors(others, donors)


def inherit_tensors(children: Sequence[ChildTensor], donors: Sequence[LazyWeights]) -> None:
    """Copies into each child tensor from the best of its sources that works."""
    while children := _try_sources(children, donors):
        pass


def _try_sources(children: Sequence[ChildTensor], donors: Sequence[LazyWeights]) -> list[ChildTensor]:
    """Tries the next source of each child tensor; returns the tensors that could not take theirs."""
    needed: dict[int, dict[str, list[ChildTensor]]] = {}
    tried = []
    for child in children:
        if (source := child.next_source()) is not None:
            needed.setdefault(source.donor, {}).setdefault(source.name, []).append(child)
            tried.append(child)
    for donor, by_name in sorted(needed.items()):
        for name, values in donors[donor].read(by_name):
            for child in by_name[name]:
                child.take(values)
    return [child for child in tried if child.result is None]
