"""Tensors of a child and their sources: the donors' tensors from which they take values."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.donor_weights import LazyWeights
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
from nas.inheritance.tensor_roles import Role


class TensorSource(NamedTuple):
    """A donor's tensor from which a child's tensor may take its values.

    Attributes:
        donor: The index of the donor.
        name: The tensor's name in the donor.
        tensor: The tensor, maybe without data.
        why: The reason, if it is not the tensor of the same name.
    """

    donor: int
    name: str
    tensor: Tensor
    why: str


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
                if source.donor == donor and not is_lazy(source.tensor) and source.tensor.shape == self.tensor.shape
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
            if (refusal := shape_refusal(self.tensor, source.tensor, self.role)) is None:
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
        if child.shape == values.shape:
            self.write(cast)
            self.result = TensorInheritance(how="copied", share=1.0, donor=source.donor, why=source.why)
            return
        share = self._write_part(cast)
        why = shape_text(child, values)
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

    def _write_part(self, values: Tensor) -> float:
        """Copies the overlap, fills the rest by the rules, and returns the inherited share."""
        child, rules = self.tensor, self._rules
        child_part, donor_part = overlap(child.shape, values.shape, child.dim() - self.role.n_kernel_dims)
        is_direct = not self._is_mixed and upcast_float8(child) is child
        whole = child if is_direct else upcast_float8(child).clone()
        part = upcast_float8(values)[donor_part]
        if rules.rest == "scaled" and self.role.is_weight:
            n_rows = part.shape[0]
            scale = math.sqrt(values[0].numel() / part[0].numel())
            part = part * scale if scale > 1 else part
            new_rows = whole[n_rows:]
            if new_rows.numel() and (rms := _root_mean_square(new_rows)) > 0:
                new_rows *= _root_mean_square(part) / rms * math.sqrt(part[0].numel() / new_rows[0].numel())
            if whole[0].numel() > part[0].numel():
                whole[:n_rows] = 0
        whole[child_part] = part
        if not is_direct:
            self.write(whole)
        return part.numel() / child.numel()

    def _refuse(self, donor: int, why: str) -> None:
        if self._n_refused == 0:
            self.refusal = f"donor at index {donor}: {why}"
        self._n_refused += 1


def tensor_sources(
    names: Sequence[str],
    tensor: Tensor,
    donors: Sequence[LazyWeights],
    aligned: Sequence[Mapping[str, str]],
    rules: Rules,
) -> list[TensorSource]:
    """Returns the possible sources of a child's tensor, best first.

    Args:
        names: The names of the tensor.
        tensor: The tensor.
        donors: The donors, best first.
        aligned: For each donor, its tensor by the child's, if their layers have the same position.
        rules: Whether names or positions come first.
    """
    if is_lazy(tensor):
        return []
    by_name: list[TensorSource] = []
    by_structure: list[TensorSource] = []
    parts: list[TensorSource] = []
    for index, (donor, pairs) in enumerate(zip(donors, aligned, strict=True)):
        used = set(pairs.values()) if rules.first == "structure" else set()
        for name in names:
            if name in pairs and pairs[name] != name:
                other = pairs[name]
                by_structure.append(TensorSource(index, other, donor.shapes[other], f"by structure, from {other}"))
            elif name in donor.shapes and (name in pairs or name not in used):
                source = TensorSource(index, name, donor.shapes[name], "")
                fits = not is_lazy(source.tensor) and source.tensor.shape == tensor.shape
                (by_name if fits else parts).append(source)
    return [*by_structure, *by_name, *parts] if rules.first == "structure" else [*by_name, *by_structure, *parts]


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


def overlap(child: Sequence[int], donor: Sequence[int], n_plain: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Returns the overlap as slices of the child and of the donor.

    The first ``n_plain`` dimensions overlap from index 0 on, the others (of a kernel) around the middle.
    """
    child_part, donor_part = [], []
    for dimension, (child_size, donor_size) in enumerate(zip(child, donor, strict=True)):
        size = min(child_size, donor_size)
        is_plain = dimension < n_plain
        child_start, donor_start = (0, 0) if is_plain else ((child_size - size) // 2, (donor_size - size) // 2)
        child_part.append(slice(child_start, child_start + size))
        donor_part.append(slice(donor_start, donor_start + size))
    return tuple(child_part), tuple(donor_part)


def _root_mean_square(values: Tensor) -> float:
    wide = torch.promote_types(values.dtype, torch.float32)  # sums of squares overflow float16
    return float(torch.linalg.vector_norm(values, dtype=wide)) / math.sqrt(values.numel())
