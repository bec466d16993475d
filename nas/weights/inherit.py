"""Inheritance by name: a network takes from other networks' weights what fits, however much the architectures differ.

What follows the weights, and what does not:

* **Batch-norm statistics travel with their channels.** ``running_mean`` and ``running_var`` are copied or sliced as the
  ``weight`` beside them is, so that an inherited channel is normalised as it was; fresh channels keep mean 0 and
  variance 1. ``num_batches_tracked`` comes along (integers are copied whole or not at all).
* **Optimiser state is never inherited.** Momentum of another architecture, at another learning rate, is no one's.
* **Learning-rate warm-up is the problem's.** A full learning rate in the first steps undoes what was inherited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_NO_DONOR = "no donor"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInheritance:
    """What became of one tensor."""

    how: Literal["copied", "sliced", "fresh"]
    share: float = 0.0
    """Share of its elements that were inherited."""
    donor: int | None = None
    """The place, among the donors, of the one that it came from."""
    why: str = ""
    """Why it was not copied whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritanceReport:
    """What ``inherit`` did, tensor by tensor, in the order of the network's ``state_dict``."""

    share: float
    """Share of the parameters (elements; buffers don't count) that were inherited; 0.0 where there are none."""
    main_donor: int | None
    """The place, among the donors, of the one that gave most parameters (of equals the better); None: nobody did."""
    tensors: Mapping[str, TensorInheritance]

    def summary(self) -> dict[str, Any]:
        """The report as JSON: ``share``, ``n_copied``, ``n_sliced``, ``n_fresh`` and ``not_copied``.

        ``not_copied`` maps the tensors that were not copied whole to the reason; without any donor it is empty, since
        the reason is the same for all.
        """
        hows = [tensor.how for tensor in self.tensors.values()]
        reasons = {n: t.why for n, t in self.tensors.items() if t.how != "copied" and t.why != _NO_DONOR}
        return {
            "share": self.share,
            "n_copied": hows.count("copied"),
            "n_sliced": hows.count("sliced"),
            "n_fresh": hows.count("fresh"),
            "not_copied": reasons,
        }


class Weights(Protocol):
    """Tensors that are read only when they are wanted (``nas.store.weights.StoredWeights``)."""

    @property
    def shapes(self) -> Mapping[str, Tensor]:
        """Every tensor by name, without its data: on torch's device ``meta``, or with it."""

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of these names, in any order; each counts only until the next one."""


class _Loaded:
    """A state dict."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = tensors

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.shapes[name]) for name in names)


def inherit(model: nn.Module, donors: Sequence[Mapping[str, Tensor] | Weights]) -> InheritanceReport:
    """Copies into ``model``, in place, what fits of the donors' weights, and says what was done.

    Each tensor of ``model.state_dict()`` is looked up by its name. It is taken from the best donor that has it in the
    same shape ("copied"); else from the best that has it with as many dimensions of other sizes, where the two overlap
    ("sliced": ``child[overlap] = donor[overlap]``, from index 0 on; the rest keeps its own initial values); else it
    stays as it is ("fresh"). A donor's tensor that holds a NaN or an infinity (also one that arises only in the child's
    dtype) gives nothing, and neither does one whose kind of number the child's can't hold. A parameter with two names
    (tied weights) is written once, by the name that fits best. Values are cast to the child's dtype; in the same dtype
    they are equal to the bit. Devices stay as they are. Only the tensors that are taken are read.

    Args:
        model: The child, freshly initialised.
        donors: State dicts, or weights that are still to be read; best first; may be empty.
    """
    sources = [_Loaded(donor) if isinstance(donor, Mapping) else donor for donor in donors]
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    children = [_Child(names, tensor, sources) for names, tensor in _distinct(state)]
    pending = children
    with torch.no_grad():
        while pending := _offer(pending, sources):
            pass
    tensors: dict[str, TensorInheritance] = {}
    n_elements = 0
    n_given: Counter[int] = Counter()  # by the donor's place
    for child in children:
        tensors |= dict.fromkeys(child.names, child.done)
        if not parameters.isdisjoint(child.names) and not is_lazy(child.tensor):
            n_elements += child.tensor.numel()
            if child.done.donor is not None:
                n_given[child.done.donor] += round(child.done.share * child.tensor.numel())
    share = n_given.total() / n_elements if n_elements else 0.0
    main = max(sorted(+n_given), key=n_given.__getitem__, default=None)
    in_order = {name: tensors[name] for name in state if name in tensors}
    return InheritanceReport(share=share, main_donor=main, tensors=in_order)


def _offer(children: Sequence[_Child], sources: Sequence[Weights]) -> list[_Child]:
    """Offers each child its best donor that is left; the children that asked for one and could not take it."""
    wanted: dict[int, dict[str, list[_Child]]] = {}
    asked = []
    for child in children:
        if (offer := child.next_offer()) is not None:
            place, name = offer
            wanted.setdefault(place, {}).setdefault(name, []).append(child)
            asked.append(child)
    for place, by_name in sorted(wanted.items()):
        for name, values in sources[place].read(by_name):
            for child in by_name[name]:
                child.take(place, values)
    return [child for child in asked if child.done.how == "fresh"]


def _distinct(state: Mapping[str, Tensor]) -> Iterator[tuple[list[str], Tensor]]:
    """Each tensor once, with all of its names."""
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):  # what a module's get_extra_state returns may be anything
            continue
        key: object = name
        if not is_lazy(tensor) and (address := tensor.untyped_storage().data_ptr()):
            key = (address, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        names.setdefault(key, []).append(name)
    return ((group, state[group[0]]) for group in names.values())


class _Child:
    """A tensor of the child, with all of its names, the donors' tensors that it may take, and what became of it."""

    def __init__(self, names: Sequence[str], tensor: Tensor, sources: Sequence[Weights]) -> None:
        self.names = names
        self.tensor = tensor
        self.done = TensorInheritance(how="fresh", why="no donor has this name" if sources else _NO_DONOR)
        if is_lazy(tensor):
            why = "its shape is not known yet; run one batch through the model first"
            self.done, sources = TensorInheritance(how="fresh", why=why), ()
        found = [(p, name, s.shapes[name]) for p, s in enumerate(sources) for name in names if name in s.shapes]
        found.sort(key=lambda offer: offer[2].shape != tensor.shape)  # stable: the same shape first, the best donor
        self._offers = found
        self._n_refused = 0

    def next_offer(self) -> tuple[int, str] | None:
        """The donor and the name of the best tensor that is left and may fit."""
        while self._n_refused < len(self._offers):
            place, name, donor = self._offers[self._n_refused]
            if (refusal := _refusal(self.tensor, donor)) is None:
                return place, name
            self._refuse(place, refusal)
        return None

    def take(self, place: int, donor: Tensor) -> None:
        """Writes the donor's values, where they overlap and all are finite."""
        child = self.tensor
        values = donor.to(child.device, child.dtype)
        if not _all_finite(values):
            self._refuse(place, "not finite")
            return
        overlap = tuple(slice(min(sizes)) for sizes in zip(child.shape, donor.shape, strict=True))
        child[overlap].copy_(values[overlap])
        if child.shape == donor.shape:
            self.done = TensorInheritance(how="copied", share=1.0, donor=place)
        else:
            share = child[overlap].numel() / child.numel()
            self.done = TensorInheritance(how="sliced", share=share, donor=place, why=_shapes(child, donor))

    def _refuse(self, place: int, why: str) -> None:
        if self._n_refused == 0:
            self.done = TensorInheritance(how="fresh", why=f"donor {place}: {why}")
        self._n_refused += 1


def _all_finite(values: Tensor) -> bool:
    if values.is_floating_point() and values.numel() and values.dtype.itemsize > 1:
        return bool(torch.stack(torch.aminmax(values)).isfinite().all())  # a NaN is both; without a mask as large
    return bool(values.isfinite().all())


def _refusal(child: Tensor, donor: Tensor) -> str | None:
    """Why the donor's tensor can't give anything, or None."""
    if not torch.can_cast(donor.dtype, child.dtype):
        return f"{donor.dtype} does not fit {child.dtype}"
    if child.shape == donor.shape:
        return None
    if child.dim() != donor.dim():
        return f"other rank: {_shapes(child, donor)}"
    if not (child.is_floating_point() or child.is_complex()):
        return f"integers are not sliced: {_shapes(child, donor)}"
    if 0 in (*child.shape, *donor.shape):
        return f"no overlap: {_shapes(child, donor)}"
    return None


def _shapes(child: Tensor, donor: Tensor) -> str:
    return f"{tuple(donor.shape)} into {tuple(child.shape)}"
