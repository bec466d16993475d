"""Reasons why a tensor can't be inherited: its kind of number, shape, groups or values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from nas.inheritance.tensor_roles import Role
from nas.storage.tensor_parts import TensorParts

NO_DATA = "it is on the device meta, without data"


def layout_refusal(tensor: Tensor) -> str | None:
    """Returns why a tensor's elements have no fixed positions, or None."""
    if is_lazy(tensor):
        return "its shape is not known yet"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"it is {'quantized' if tensor.is_quantized else str(tensor.layout).removeprefix('torch.')}, not dense"
    return None


def storage_refusal(tensor: Tensor) -> str | None:
    """Returns why nothing can be written into a tensor, or None."""
    return layout_refusal(tensor) or (NO_DATA if tensor.is_meta else None)


def upcast_float8(values: Tensor) -> Tensor:
    """Returns the values, as float32 if they are float8, with which torch can't compute."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize == 1 else values


def all_finite(values: Tensor) -> bool:
    """Returns whether there is no NaN and no infinity."""
    values = upcast_float8(values)
    if values.is_floating_point() and values.numel():
        return bool(
            torch.stack(torch.aminmax(values)).isfinite().all()
        )  # a NaN is both; needs no mask of the same size
    return bool(values.isfinite().all())


def value_refusal(values: Tensor, donor: Tensor) -> str | None:
    """Returns why the donor's values, cast to the child's type, can't be used, or None."""
    if not all_finite(values):
        return "not finite"
    is_whole = not (values.is_floating_point() or values.is_complex())
    if is_whole and values.dtype != donor.dtype and not torch.equal(values.double().cpu(), donor.double().cpu()):
        return f"values of {donor.dtype} do not fit {values.dtype}"
    return None


def shape_refusal(child: Tensor, donor: Tensor, role: Role, parts: TensorParts | None = None) -> str | None:
    """Returns why nothing of the donor's tensor can be used, or None.

    Args:
        child: The child's tensor.
        donor: The donor's.
        role: The role of the child's.
        parts: The heads of the donor's, if they are known.
    """
    if (refusal := layout_refusal(donor)) is not None:
        return refusal
    if not torch.can_cast(donor.dtype, child.dtype):
        return f"{donor.dtype} does not fit {child.dtype}"
    if child.shape == donor.shape and (role.parts is None or parts is None or role.parts.has_same_rows(parts)):
        return None
    if child.dim() != donor.dim():
        return f"other rank: {shape_text(child, donor)}"
    if not (child.is_floating_point() or child.is_complex()):
        return f"integers are not sliced: {shape_text(child, donor)}"
    if 0 in (*child.shape, *donor.shape):
        return f"no overlap: {shape_text(child, donor)}"
    if role.parts is not None and parts is not None:
        return None if role.parts.are_like(parts) else f"other layout of heads: {shape_text(child, donor)}"
    if role.n_stacked > 1 and child.shape[0] != donor.shape[0]:
        return f"{role.n_stacked} stacked parts of other sizes: {shape_text(child, donor)}"
    if (
        role.grid is not None
        and role.grid.is_resized(child, donor)
        and not role.grid.side(child) * role.grid.side(donor)
    ):
        return f"positions of images in no square grid: {shape_text(child, donor)}"
    if role.is_fused and (refusal := _fused_refusal(child, donor, role)) is not None:
        return refusal
    if role.groups and _is_grouped_otherwise(child.shape, donor.shape, role.groups):
        return f"other groups of channels: {shape_text(child, donor)}"
    return None


def _fused_refusal(child: Tensor, donor: Tensor, role: Role) -> str | None:
    """Returns why the rows of stacked projections can't be matched; None if there are as many."""
    dim = int(role.is_transposed) if role.parts is None else role.parts.dim
    if child.shape[dim] == donor.shape[dim]:
        return None
    if role.parts is None:
        return f"may stack projections, and its module has no tensor_parts: {shape_text(child, donor)}"
    return f"stacks projections, and the donor's are not known: {shape_text(child, donor)}"


def _is_grouped_otherwise(child: Sequence[int], donor: Sequence[int], groups: int) -> bool:
    """Returns whether the overlap of two convolutions' weights connects other channels in each of them.

    The donor's groups are known from its shape alone: with a single input channel it may be depthwise. The child's
    groups move with its channels, unless each channel is a group.
    """
    if groups == 1:
        return donor[0] > donor[1] == 1 < child[1]
    is_depthwise = groups == child[0] and child[1] == 1
    return child[1] != donor[1] or (child[0] != donor[0] and not is_depthwise)


def shape_text(child: Tensor, donor: Tensor) -> str:
    """Returns both shapes as text, the donor's first."""
    return f"{tuple(donor.shape)} into {tuple(child.shape)}"
