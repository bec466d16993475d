"""A tensor of a child: what it may take of the donors', and how it takes it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.report import TensorInheritance
from nas.inheritance.rules import Rules
from nas.inheritance.shape_rules import NO_DATA, reckonable, shape_refusal, shapes_told, storage_refusal, value_refusal
from nas.inheritance.tensor_roles import Trait


class Weights(Protocol):
    """Tensors that are read only when they are wanted (``nas.storage.lazy_weights.StoredWeights``)."""

    @property
    def shapes(self) -> Mapping[str, Tensor]:
        """Every tensor by name, without its data: on torch's device ``meta``, or with it."""

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of these names, in any order; each counts only until the next one."""


class Offer(NamedTuple):
    """A donor's tensor that a child's may take."""

    place: int
    name: str
    tensor: Tensor
    why: str
    """Why it is not simply the one of the same name."""


class ChildTensor:
    """A tensor of the child, with all of its names, what it may take, and what became of it."""

    def __init__(
        self, names: Sequence[str], tensor: Tensor, offers: Sequence[Offer], trait: Trait, rules: Rules
    ) -> None:
        self.names = names
        self.tensor = tensor
        self.trait = trait
        self.done: TensorInheritance | None = None
        self.refusal: str | None = None
        self._rules = rules
        self._offers = offers
        self._n_refused = 0
        if (refusal := storage_refusal(tensor)) is not None:
            self.refusal = f"{refusal}; run one batch through the model first" if is_lazy(tensor) else refusal
        elif any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            self.refusal = "elements of it are one in memory, as expand makes them; clone it"

    def prefer(self, offer: Offer, without: Container[int]) -> None:
        """Has it take this before all else, and nothing else of the donors in these places."""
        self._offers = [offer, *(other for other in self._offers if other.place not in without)]

    def go_with(self, place: int) -> None:
        """Has it take what the donor in this place offers before what others do."""
        self._offers = sorted(self._offers, key=lambda offer: offer.place != place)

    def next_offer(self) -> Offer | None:
        """Returns the best tensor that is left and may fit."""
        while self._n_refused < len(self._offers):
            offer = self._offers[self._n_refused]
            if (refusal := shape_refusal(self.tensor, offer.tensor, self.trait)) is None:
                return offer
            self._refuse(offer.place, refusal)
        return None

    def take(self, donor: Tensor) -> None:
        """Writes the values of the donor that ``next_offer`` gave, where they overlap and all are finite."""
        place, _, _, why = self._offers[self._n_refused]
        child = self.tensor
        if donor.is_meta:
            self._refuse(place, NO_DATA)
            return
        values = donor.to(child.device, child.dtype)
        if values.untyped_storage().data_ptr() == child.untyped_storage().data_ptr():
            values = values.clone()  # a part of a supernet, say, which would be written over while it is read
        if (refusal := value_refusal(values, donor)) is not None:
            self._refuse(place, refusal)
            return
        if child.shape == donor.shape:
            self.write(values)
            self.done = TensorInheritance(how="copied", share=1.0, donor=place, why=why)
            return
        share = self._write_part(values)
        self.done = TensorInheritance(how="sliced", share=share, donor=place, why=shapes_told(child, donor))

    def write(self, values: Tensor) -> None:
        """Becomes these values, shrunk and perturbed as the rules say."""
        rules = self._rules
        if self.trait.is_parameter and (rules.shrink, rules.perturb) != (1.0, 0.0):
            values = rules.shrink * reckonable(values) + rules.perturb * reckonable(self.tensor)
        self.tensor.copy_(values)

    def _write_part(self, values: Tensor) -> float:
        """Becomes these values where both are, and what the rules say elsewhere; the share of the first."""
        child, rules = self.tensor, self._rules
        here, there = _overlap(child.shape, values.shape, child.dim() - self.trait.n_kernel_dims)
        is_mixed = self.trait.is_parameter and (rules.shrink, rules.perturb) != (1.0, 0.0)
        is_direct = not is_mixed and reckonable(child) is child
        whole = child if is_direct else reckonable(child).clone()
        part = reckonable(values)[there]
        if rules.rest == "scaled" and self.trait.is_weight:
            n_rows = part.shape[0]
            lost = math.sqrt(values[0].numel() / part[0].numel())
            part = part * lost if lost > 1 else part
            own = whole[n_rows:]
            if own.numel() and (spread := _spread(own)) > 0:
                own *= _spread(part) / spread * math.sqrt(part[0].numel() / own[0].numel())
            if whole[0].numel() > part[0].numel():
                whole[:n_rows] = 0
        whole[here] = part
        if not is_direct:
            self.write(whole)
        return part.numel() / child.numel()

    def _refuse(self, place: int, why: str) -> None:
        if self._n_refused == 0:
            self.refusal = f"donor at place {place}: {why}"
        self._n_refused += 1


def offers_of(
    names: Sequence[str],
    tensor: Tensor,
    sources: Sequence[Weights],
    aligned: Sequence[Mapping[str, str]],
    rules: Rules,
) -> list[Offer]:
    """What a child's tensor may take, the best first."""
    if is_lazy(tensor):
        return []
    named: list[Offer] = []
    placed: list[Offer] = []
    parts: list[Offer] = []
    for place, (source, pairs) in enumerate(zip(sources, aligned, strict=True)):
        taken = set(pairs.values()) if rules.first == "structure" else set()
        for name in names:
            if name in pairs and pairs[name] != name:
                other = pairs[name]
                placed.append(Offer(place, other, source.shapes[other], f"by structure, from {other}"))
            elif name in source.shapes and (name in pairs or name not in taken):
                offer = Offer(place, name, source.shapes[name], "")
                fits = not is_lazy(offer.tensor) and offer.tensor.shape == tensor.shape
                (named if fits else parts).append(offer)
    return [*placed, *named, *parts] if rules.first == "structure" else [*named, *placed, *parts]


def settle_by_leaders(
    children: Sequence[ChildTensor],
    of_all: Sequence[ChildTensor],
    leaders: Mapping[str, str],
    sources: Sequence[Weights],
) -> None:
    """Settles weights first, and then has what goes with each take of the same donor, where that has it.

    Args:
        children: Those that are to be settled.
        of_all: Those of the whole model, of which some have taken something already.
        leaders: By a tensor's name, that of the weight that it goes with, as ``leaders_of`` tells.
        sources: The donors.
    """
    heads = set(leaders.values())
    settle([child for child in children if not heads.isdisjoint(child.names)], sources)
    gave = {
        name: child.done.donor
        for child in of_all
        for name in child.names
        if child.done and child.done.donor is not None
    }
    left = [child for child in children if child.done is None and heads.isdisjoint(child.names)]
    for child in left:
        places = (gave.get(leaders[name]) for name in child.names if name in leaders)
        if (place := next((place for place in places if place is not None), None)) is not None:
            child.go_with(place)
    settle(left, sources)


def settle(children: Sequence[ChildTensor], sources: Sequence[Weights]) -> None:
    """Offers each child what it may take until it has something or there is nothing left."""
    while children := _offer(children, sources):
        pass


def _offer(children: Sequence[ChildTensor], sources: Sequence[Weights]) -> list[ChildTensor]:
    """Offers each child its best donor that is left; the children that asked for one and could not take it."""
    wanted: dict[int, dict[str, list[ChildTensor]]] = {}
    asked = []
    for child in children:
        if (offer := child.next_offer()) is not None:
            wanted.setdefault(offer.place, {}).setdefault(offer.name, []).append(child)
            asked.append(child)
    for place, by_name in sorted(wanted.items()):
        for name, values in sources[place].read(by_name):
            for child in by_name[name]:
                child.take(values)
    return [child for child in asked if child.done is None]


def _overlap(child: Sequence[int], donor: Sequence[int], n_plain: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What both have, in the child and in the donor: from index 0 on, and of the dimensions behind from the middle."""
    here, there = [], []
    for n, (one, other) in enumerate(zip(child, donor, strict=True)):
        size = min(one, other)
        margins = (0, 0) if n < n_plain else ((one - size) // 2, (other - size) // 2)
        here.append(slice(margins[0], margins[0] + size))
        there.append(slice(margins[1], margins[1] + size))
    return tuple(here), tuple(there)


def _spread(values: Tensor) -> float:
    """Returns the root of the mean square."""
    wide = torch.promote_types(values.dtype, torch.float32)  # sums of squares are beyond float16
    return float(torch.linalg.vector_norm(values, dtype=wide)) / math.sqrt(values.numel())
