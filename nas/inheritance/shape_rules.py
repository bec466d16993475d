"""Whether a tensor can give another anything: by kind, shape and groups, and by its values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.tensor_roles import Trait

NO_DATA = "it is on the device meta, without data"


def layout_refusal(tensor: Tensor) -> str | None:
    """Why a tensor's elements can't be told by their places, or None."""
    if is_lazy(tensor):
        return "its shape is not known yet"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"it is {'quantized' if tensor.is_quantized else str(tensor.layout).removeprefix('torch.')}, not dense"
    return None


def storage_refusal(tensor: Tensor) -> str | None:
    """Why nothing can be written into a tensor, or None."""
    return layout_refusal(tensor) or (NO_DATA if tensor.is_meta else None)


def reckonable(values: Tensor) -> Tensor:
    """Returns the same values in a type that torch computes with: it only keeps floats of eight bits."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize == 1 else values


def all_finite(values: Tensor) -> bool:
    """Returns whether there is no NaN and no infinity."""
    values = reckonable(values)
    if values.is_floating_point() and values.numel():
        return bool(torch.stack(torch.aminmax(values)).isfinite().all())  # a NaN is both; without a mask as large
    return bool(values.isfinite().all())


def value_refusal(values: Tensor, donor: Tensor) -> str | None:
    """Why the child can't hold what the donor's values became in its type, or None."""
    if not all_finite(values):
        return "not finite"
    is_whole = not (values.is_floating_point() or values.is_complex())
    if is_whole and values.dtype != donor.dtype and not torch.equal(values.double().cpu(), donor.double().cpu()):
        return f"values of {donor.dtype} do not fit {values.dtype}"
    return None


def shape_refusal(child: Tensor, donor: Tensor, trait: Trait) -> str | None:
    """Why the donor's tensor can't give anything, or None."""
    if (refusal := layout_refusal(donor)) is not None:
        return refusal
    if not torch.can_cast(donor.dtype, child.dtype):
        return f"{donor.dtype} does not fit {child.dtype}"
    if child.shape == donor.shape:
        return None
    if child.dim() != donor.dim():
        return f"other rank: {shapes_told(child, donor)}"
    if not (child.is_floating_point() or child.is_complex()):
        return f"integers are not sliced: {shapes_told(child, donor)}"
    if 0 in (*child.shape, *donor.shape):
        return f"no overlap: {shapes_told(child, donor)}"
    if trait.n_stacked > 1 and child.shape[0] != donor.shape[0]:
        return f"{trait.n_stacked} parts of other sizes, one behind the other: {shapes_told(child, donor)}"
    if trait.groups and _is_grouped_otherwise(child.shape, donor.shape, trait.groups):
        return f"other groups of channels: {shapes_told(child, donor)}"
    return None


def _is_grouped_otherwise(child: Sequence[int], donor: Sequence[int], groups: int) -> bool:
    """Returns whether what both have of two convolutions' weights would be of other pairs of channels.

    Groups of a donor can only be told from its shape: one with a single input channel may be depthwise. Those of a
    child move where its channels do, unless each channel is a group.
    """
    if groups == 1:
        return donor[0] > donor[1] == 1 < child[1]
    is_depthwise = groups == child[0] and child[1] == 1
    return child[1] != donor[1] or (child[0] != donor[0] and not is_depthwise)


def shapes_told(child: Tensor, donor: Tensor) -> str:
    """What is sliced into what."""
    return f"{tuple(donor.shape)} into {tuple(child.shape)}"
