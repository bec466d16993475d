"""All operations by kind, and reading them from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import closest_names, short_repr
from nas.spaces.graphs.branching import Branch, Merge, Split
from nas.spaces.graphs.inserting import (
    InsertActivation,
    InsertBlock,
    InsertConv,
    InsertLinear,
    InsertNorm,
    InsertResidual,
)
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.removing import Disconnect, Remove
from nas.spaces.graphs.resizing import GrowKernel, Narrow, ShrinkKernel, Widen
from nas.spaces.graphs.skipping import AddSkip, ConcatSkip
from nas.spaces.graphs.striding import DelayStride, FuseStride

OPERATIONS: dict[str, type[Operation]] = {
    operation.kind: operation
    for operation in (
        Widen, Narrow, GrowKernel, ShrinkKernel, InsertConv, InsertLinear, InsertNorm, InsertActivation, InsertBlock,
        InsertResidual, AddSkip, ConcatSkip, Branch, Split, Merge, DelayStride, FuseStride, Remove, Disconnect,
    )
}  # fmt: skip


def operation_from_json(data: Any) -> Operation:
    """Returns the operation that ``to_json`` gave.

    Raises:
        PointError: the data is no operation.
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in OPERATIONS:
        known = closest_names(str(kind), OPERATIONS)
        raise PointError(f"operation={short_repr(data)}: must be a dict whose kind is one of {known}")
    names = dict.fromkeys(field.name for field in fields(OPERATIONS[kind]))
    values = {name: value for name, value in data.items() if name != "kind"}
    if values.keys() != names.keys():
        raise PointError(f"operation {kind}: it must have {', '.join(names)}, and has {', '.join(values) or 'nothing'}")
    return OPERATIONS[kind](**values)


def operations_from_json(name: str, data: Any) -> tuple[Operation, ...]:
    """Returns the operations of a list, in order.

    Raises:
        PointError: the data is no list (the message has ``name``), or an item is no operation.
    """
    if not isinstance(data, list):
        raise PointError(f"{name}: operations={short_repr(data)}: must be a list")
    return tuple(map(operation_from_json, data))
