"""Conversion of the parameters of ``dump_parameters`` into tensors and back, with all types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.compat.rafiki.model import Params

if TYPE_CHECKING:
    import torch

INDEX = "//index"
"""The tensor with the type of each parameter. Names of parameters contain no ``//``."""
WHOLE = "//whole"
"""The tensor of a template that dumps bytes, as some of SINGA-Auto do."""
_TORCH_DTYPES = frozenset(
    f"{kind}{bits}" for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in sizes
) | {"bool", "complex64", "complex128"}  # fmt: skip


class InvalidParamsFormatError(Exception):
    """``dump_parameters`` returned a value that cannot be stored; the message names it."""


def to_tensors(params: object) -> dict[str, torch.Tensor]:
    """Returns the parameters as tensors, with an index of types, order and plain numbers.

    Allowed are a dict with str, int, float, bool, None, bytes, and numpy scalars and arrays of any type except object;
    or bytes in place of the dict.

    Raises:
        InvalidParamsFormatError: a value has another type.
    """
    import torch

    if isinstance(params, bytes):
        return {WHOLE: torch.from_numpy(_bytes(params)), INDEX: torch.from_numpy(_bytes(b"{}"))}
    if not isinstance(params, Mapping):
        raise InvalidParamsFormatError(f"dump_parameters must return a dict, not {params!r:.100} ({_kind(params)})")
    index: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in params.items():
        if not isinstance(name, str) or "//" in name or not name:
            raise InvalidParamsFormatError(f"a parameter's name={name!r}: must be a string without //")
        index[name], array = _entry(name, value)
        if array is not None:
            tensors[name] = torch.from_numpy(array)
    tensors[INDEX] = torch.from_numpy(_bytes(json.dumps(index).encode()))
    return tensors


def from_tensors(tensors: Mapping[str, torch.Tensor]) -> Params:
    """Returns a copy of the parameters that ``to_tensors`` was given, with equal values, types and shapes.

    Raises:
        InvalidParamsFormatError: the tensors have no index.
    """
    if INDEX not in tensors:
        raise InvalidParamsFormatError(f"these weights are not from a model template: the tensor {INDEX} is missing")
    if WHOLE in tensors:
        return tensors[WHOLE].numpy().tobytes()
    index = json.loads(tensors[INDEX].numpy().tobytes())
    return {name: _value(entry, tensors.get(name)) for name, entry in index.items()}


def _entry(name: str, value: object) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
    """Returns the entry of a value in the index, and the array to store."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise InvalidParamsFormatError(
                f"parameter {name}: an array of objects can't be stored. Use numbers or strings"
            )
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        array = np.array(array, order="C")  # a writable, aligned copy
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
    remedy = ". Call .cpu().numpy() on it" if _kind(value) == "Tensor" else ""
    raise InvalidParamsFormatError(f"parameter {name}={_kind(value)}: must be a str, int, float or numpy array{remedy}")


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
    """Returns numpy's description of a type, with tuples in place of the lists of JSON."""
    if not isinstance(described, list):
        return described
    return [(_tuple(name), _descr(kind), *map(_tuple, shape)) for name, kind, *shape in described]


def _tuple(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def _bytes(data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(data), np.uint8)


def _kind(value: object) -> str:
    return type(value).__name__
