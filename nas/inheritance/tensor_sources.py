"""Sources of a child's tensors: the donors' tensors from which they may take values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.donor_weights import LazyWeights
from nas.inheritance.fused_tensors import inferred_parts
from nas.inheritance.head_groups import are_regrouped, n_query_heads
from nas.inheritance.rules import Rules
from nas.inheritance.tensor_roles import Role
from nas.storage.tensor_names import weight_name
from nas.storage.tensor_parts import TensorParts

_PLAIN = 2
"""The number of sizes of heads without groups and halves: their number and their size."""


class TensorSource(NamedTuple):
    """A donor's tensor from which a child's tensor may take its values.

    Attributes:
        donor: The index of the donor.
        name: The tensor's name in the donor.
        tensor: The tensor, maybe without data.
        why: The reason, if it is not the tensor of the same name.
        parts: The heads of an attention in it, if they are known.
        is_inferred: Whether the parts are concluded from the child's.
        is_regrouped: Whether the child has the donor's query heads in larger or smaller groups.
    """

    donor: int
    name: str
    tensor: Tensor
    why: str
    parts: TensorParts | None = None
    is_inferred: bool = False
    is_regrouped: bool = False

    def is_whole_for(self, tensor: Tensor, parts: TensorParts | None) -> bool:
        """Returns whether a child's tensor with these heads, if they are known, takes all of it.

        Plain heads of other sizes take the values of the same rows. Groups of query heads, and halves of rotary
        heads, would be mixed.
        """
        if is_lazy(self.tensor) or self.tensor.shape != tensor.shape:
            return False
        if parts is None or self.parts is None:
            return True
        if not parts.are_like(self.parts):
            return parts.has_same_rows(self.parts)
        if self.is_regrouped:
            return all(own[2:] == theirs[2:] for own, theirs in zip(parts.sizes, self.parts.sizes, strict=True))
        return parts == self.parts or all(len(sizes) == _PLAIN for sizes in parts.sizes)

    def how_split(self, parts: TensorParts | None) -> str:
        """Returns how the overlap with a child's tensor of these parts is taken, in words."""
        if parts is None or self.parts is None or not parts.are_like(self.parts):
            return ""
        if self.is_inferred:
            return f", in {len(parts.sizes)} equal parts"
        if self.is_regrouped:
            return f", by head, {self.parts.sizes[0][0]} key heads for {parts.sizes[0][0]}"
        return ", by head" if any(len(sizes) > 1 for sizes in parts.sizes) else ", by part"


def tensor_sources(
    names: Sequence[str],
    tensor: Tensor,
    donors: Sequence[tuple[LazyWeights, Mapping[str, str]]],
    rules: Rules,
    role: Role,
) -> list[TensorSource]:
    """Returns the possible sources of a child's tensor, best first.

    Args:
        names: The names of the tensor.
        tensor: The tensor.
        donors: The donors, best first, each with its tensor by the child's, if their layers have the same position.
        rules: Whether names or positions come first.
        role: The role of the tensor.
    """
    if is_lazy(tensor):
        return []
    by_name: list[TensorSource] = []
    by_structure: list[TensorSource] = []
    parts: list[TensorSource] = []
    for index, (donor, pairs) in enumerate(donors):
        used = set(pairs.values()) if rules.first == "structure" else set()
        for name in names:
            if name in pairs and pairs[name] != name:
                other, why = pairs[name], f"by structure, from {pairs[name]}"
                by_structure.append(_source(index, donor, other, why, role))
            elif name in donor.shapes and (name in pairs or name not in used):
                source = _source(index, donor, name, _origin(donor, name), role)
                (by_name if source.is_whole_for(tensor, role.parts) else parts).append(source)
    return [*by_structure, *by_name, *parts] if rules.first == "structure" else [*by_name, *by_structure, *parts]


def _origin(donor: LazyWeights, name: str) -> str:
    """Returns from which tensor the donor's is derived, in words; empty if from none."""
    origin = getattr(donor, "origins", {}).get(name)
    return "" if origin is None else f"from {origin}"


def _source(index: int, donor: LazyWeights, name: str, why: str, role: Role) -> TensorSource:
    """Returns a donor's tensor as a source, with its heads.

    Those of optimizer state are the weight's. They are concluded from the child's if the donor knows no heads at all.
    """
    known: Mapping[str, TensorParts] = getattr(donor, "parts", {})
    source, weight = TensorSource(index, name, donor.shapes[name], why), weight_name(name)
    if is_lazy(source.tensor):
        return source
    parts = known.get(weight) if known else inferred_parts(role.parts, source.tensor.shape)
    if parts is None or not parts.fit(source.tensor.shape):
        return source
    is_regrouped = are_regrouped(role.parts, role.n_queries, parts, n_query_heads(weight, known))
    return source._replace(parts=parts, is_inferred=not known, is_regrouped=is_regrouped)
