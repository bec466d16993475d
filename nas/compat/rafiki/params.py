"""What ``dump_parameters`` gives, as tensors that the store keeps with a digest each, and back, with every type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.compat.rafiki.model import Params

if TYPE_CHECKING:
    import torch

INDEX = "//index"
"""The tensor that says what the others are; no name of a parameter holds ``//``, as in Rafiki."""
WHOLE = "//whole"
"""The one tensor beside the index of a template that dumps bytes, as some of SINGA-Auto's do."""
_TORCH_DTYPES = frozenset(
    f"{kind}{bits}" for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in sizes
) | {"bool", "complex64", "complex128"}  # fmt: skip


class InvalidParamsFormatError(Exception):
    """``dump_parameters`` gave something that can't be kept, which is named."""


def to_tensors(params: object) -> dict[str, torch.Tensor]:
    """Returns the parameters as tensors; texts as their bytes, numbers in an index, which also keeps types and order.

    Allowed are str, int, float, bool, None, bytes, numpy's scalars and arrays of any type but object; or, in place of
    the dict, bytes.

    Raises:
        InvalidParamsFormatError: anything else, by its name.
    """
    import torch

    if isinstance(params, bytes):
        return {WHOLE: torch.from_numpy(_bytes(params)), INDEX: torch.from_numpy(_bytes(b"{}"))}
    if not isinstance(params, Mapping):
        raise InvalidParamsFormatError(f"dump_parameters must give a dict, not {params!r:.100} ({_kind(params)})")
    index: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in params.items():
        if not isinstance(name, str) or "//" in name or not name:
            raise InvalidParamsFormatError(f"a parameter's name ({name!r}) must be a text without //")
        index[name], array = _entry(name, value)
        if array is not None:
            tensors[name] = torch.from_numpy(array)
    tensors[INDEX] = torch.from_numpy(_bytes(json.dumps(index).encode()))
    return tensors


def from_tensors(tensors: Mapping[str, torch.Tensor]) -> Params:
    """Returns the parameters that ``to_tensors`` was given, equal in value, type and shape, in memory of their own.

    Raises:
        InvalidParamsFormatError: they are no template's.
    """
    if INDEX not in tensors:
        raise InvalidParamsFormatError("these weights are no model template's: their index is not there")
    if WHOLE in tensors:
        return tensors[WHOLE].numpy().tobytes()
    index = json.loads(tensors[INDEX].numpy().tobytes())
    return {name: _value(entry, tensors.get(name)) for name, entry in index.items()}


def _entry(name: str, value: object) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
    """What the index says of a value, and the array that is stored."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise InvalidParamsFormatError(f"parameter {name}: an array of objects can't be kept; dump numbers or text")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        array = np.array(array, order="C")  # writable, aligned, and nobody else's
        if str(array.dtype) in _TORCH_DTYPES:
            return {"is": kind}, array
        entry = {"is": kind, "dtype": np.lib.format.dtype_to_descr(array.dtype), "shape": list(array.shape)}
        return entry, _bytes(array.tobytes())
    if isinstance(value, str):
        return {"is": "str"}, _bytes(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return {"is": "bytes"}, _bytes(value)
    if value is None or isinstance(value, bool | int | float):
        return {"is": "value", "value": value}, None
    remedy = "; call .cpu().numpy() on it" if _kind(value) == "Tensor" else ""
    raise InvalidParamsFormatError(
        f"parameter {name} ({_kind(value)}) must be a str, int, float or numpy array{remedy}"
    )


def _value(entry: Mapping[str, Any], tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return entry["value"]
    array: np.ndarray[Any, Any] = tensor.cpu().numpy()
    if entry["is"] == "str":
        return array.tobytes().decode("utf-8", "surrogatepass")
    if entry["is"] == "bytes":
        return array.tobytes()
    if "dtype" in entry:
        dtype = np.lib.format.descr_to_dtype(_descr(entry["dtype"]))
        array = np.frombuffer(bytearray(array.tobytes()), dtype).reshape(entry["shape"])
    else:
        array = array.copy()
    return array[()] if entry["is"] == "scalar" else array


def _descr(described: Any) -> Any:
    """numpy's description of a type, whose tuples JSON made lists."""
    if not isinstance(described, list):
        return described
    return [tuple(_descr(part) if place == 1 else _shape(part) for place, part in enumerate(f)) for f in described]


def _shape(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def _bytes(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(data), np.uint8)


def _kind(value: object) -> str:
    return type(value).__name__
