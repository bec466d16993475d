"""Inheritance by name: a network takes from other networks' weights what fits, however much the architectures differ.

What follows the weights, and what does not:

* **Batch-norm statistics travel with their channels.** ``running_mean`` and ``running_var`` are copied or sliced as the
  ``weight`` beside them is, so that an inherited channel is normalised as it was; fresh channels keep mean 0 and
  variance 1. ``num_batches_tracked`` comes along (integers are copied whole or not at all).
* **Optimiser state is never inherited.** Momentum of another architecture, at another learning rate, is no one's.
* **Learning-rate warm-up is the problem's.** A full learning rate in the first steps undoes what was inherited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_MAX_NAMES = 50  # keeps a trial's record small
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
    tensors: Mapping[str, TensorInheritance]

    def summary(self) -> dict[str, Any]:
        """The report as small JSON: ``share``, ``n_copied``, ``n_sliced``, ``n_fresh`` and ``not_copied``.

        ``not_copied`` maps the first 50 tensors that were not copied whole to the reason; without any donor it is
        empty, since the reason is the same for all.
        """
        hows = [tensor.how for tensor in self.tensors.values()]
        reasons = {n: t.why for n, t in self.tensors.items() if t.how != "copied" and t.why != _NO_DONOR}
        return {
            "share": self.share,
            "n_copied": hows.count("copied"),
            "n_sliced": hows.count("sliced"),
            "n_fresh": hows.count("fresh"),
            "not_copied": dict(list(reasons.items())[:_MAX_NAMES]),
        }


def inherit(model: nn.Module, donors: Sequence[Mapping[str, Tensor]]) -> InheritanceReport:
    """Copies into ``model``, in place, what fits of the donors' weights, and says what was done.

    Each tensor of ``model.state_dict()`` is looked up by its name. It is taken from the best donor that has it in the
    same shape ("copied"); else from the best that has it with as many dimensions of other sizes, where the two overlap
    ("sliced": ``child[overlap] = donor[overlap]``, from index 0 on; the rest keeps its own initial values); else it
    stays as it is ("fresh"). A donor's tensor that holds a NaN or an infinity (also one that arises only in the child's
    dtype) gives nothing, and neither does one whose kind of number the child's can't hold. A parameter with two names
    (tied weights) is written once, by the name that fits best. Values are cast to the child's dtype; in the same dtype
    they are equal to the bit. Devices stay as they are.

    Args:
        model: The child, freshly initialised.
        donors: State dicts, best first; may be empty.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    tensors: dict[str, TensorInheritance] = {}
    n_inherited = n_elements = 0
    with torch.no_grad():
        for names, child in _distinct(state):
            tensors |= dict.fromkeys(names, done := _take(child, names, donors))
            if not parameters.isdisjoint(names) and not is_lazy(child):
                n_elements += child.numel()
                n_inherited += round(done.share * child.numel())
    share = n_inherited / n_elements if n_elements else 0.0
    return InheritanceReport(share=share, tensors={name: tensors[name] for name in state if name in tensors})


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


def _take(child: Tensor, names: Sequence[str], donors: Sequence[Mapping[str, Tensor]]) -> TensorInheritance:
    """Writes to ``child`` what the best fitting donor has under one of its names."""
    if is_lazy(child):
        return TensorInheritance(how="fresh", why="its shape is not known yet; run one batch through the model first")
    found = [(place, donor[name]) for place, donor in enumerate(donors) for name in names if name in donor]
    found.sort(key=lambda offer: offer[1].shape != child.shape)  # stable: the same shape first, then the best donor
    why = "no donor has this name" if donors else _NO_DONOR
    for rank, (place, donor) in enumerate(found):
        refusal = _refusal(child, donor)
        if refusal is None:
            values = donor.to(child.device, child.dtype)
            if values.isfinite().all():
                overlap = tuple(slice(min(sizes)) for sizes in zip(child.shape, donor.shape, strict=True))
                child[overlap].copy_(values[overlap])
                if child.shape == donor.shape:
                    return TensorInheritance(how="copied", share=1.0, donor=place)
                share = child[overlap].numel() / child.numel()
                return TensorInheritance(how="sliced", share=share, donor=place, why=_shapes(child, donor))
            refusal = "not finite"
        if rank == 0:
            why = f"donor {place}: {refusal}"
    return TensorInheritance(how="fresh", why=why)


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
