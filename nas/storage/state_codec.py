"""Training state (of optimizers, generators) as JSON and tensors, without pickling.

Types that JSON does not have are objects whose first key names the type: ``{"tuple": [...]}``, ``{"float": "inf"}``,
``{"dict": [[key, value], ...]}``, ``{"counter": [...]}``. ``tensor``, ``array`` and ``scalar`` hold a tensor's name.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from nas.core.errors import ConfigurationError, CorruptError

Json: TypeAlias = Any

_SAME = (bool, int, str)
_REMEDY = (
    "a resume point holds tensors, arrays, numbers, text, None, and dicts, lists and tuples of them. "
    "Leave it out of state_dict() and create it again in load_state_dict()."
)


def encode_state(value: object, where: str, tensors: dict[str, torch.Tensor]) -> Json:
    """Returns the value as JSON. ``decode_state`` restores equal types and bits.

    Args:
        value: Tensors, arrays, numbers, text, None, and dicts, lists and tuples of them.
        where: Name of the value in tensors' names and errors, such as ``part 2 (SGD)``.
        tensors: Receives the tensors and arrays by name.

    Raises:
        ConfigurationError: a value of another type; the message names its key and type.
    """
    kind = type(value)
    if value is None or kind in _SAME:
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list) and kind is list:
        return [encode_state(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple) and kind in (tuple, torch.Size):
        return {"tuple": encode_state(list(value), where, tensors)}
    if isinstance(value, dict) and kind in (dict, OrderedDict, Counter):
        pairs = [[_key(key, where), encode_state(item, f"{where}[{key!r}]", tensors)] for key, item in value.items()]
        return {"counter" if kind is Counter else "dict": pairs}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value.detach(), where, tensors)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and kind in (np.ndarray, np.memmap)):
        try:
            tensors[where] = torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError) as error:  # a type that torch lacks, or another byte order
            raise ConfigurationError(f"{where} is an array of {value.dtype}: {_REMEDY}") from error
        return {"array" if isinstance(value, np.ndarray) else "scalar": where}
    raise ConfigurationError(f"{where} is of type {kind.__module__}.{kind.__qualname__}: {_REMEDY}")


def decode_state(tree: Json, tensors: Mapping[str, torch.Tensor], device: str = "cpu") -> Any:
    """Returns the value that ``encode_state`` encoded.

    Args:
        tree: The JSON.
        tensors: The tensors by name, on the CPU. The returned value may share their memory.
        device: Device of tensors that were not on the CPU.

    Raises:
        CorruptError: ``encode_state`` does not write such JSON, or a tensor is missing.
    """
    if tree is None or type(tree) in (*_SAME, float):
        return tree
    if isinstance(tree, list):
        return [decode_state(item, tensors, device) for item in tree]
    match tree:
        case {"float": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case {"tuple": list(items)}:
            return tuple(decode_state(items, tensors, device))
        case {"dict": list(pairs)}:
            return dict(_decode_pair(pair, tensors, device) for pair in pairs)
        case {"counter": list(pairs)}:
            return Counter(dict(_decode_pair(pair, tensors, device) for pair in pairs))
        case {"tensor": str(name)} if name in tensors:
            found = _with_strides(tensors[name], tree.get("strides"))
            return found.to(device) if tree.get("moves") else found
        case {"array": str(name)} if name in tensors:
            return tensors[name].numpy()
        case {"scalar": str(name)} if name in tensors:
            return tensors[name].numpy()[()]
    raise CorruptError(f"{tree!r:.80} is not an encoded state")


def _key(key: object, where: str) -> Json:
    """Returns a dict's key as JSON."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        encoded = encode_state(key, f"key {key!r:.80} of {where}", tensors)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; keys are numbers, text, None, and tuples of them") from error
    if tensors:
        raise ConfigurationError(f"key {key!r:.80} of {where} must be a number, text, None, or a tuple of them")
    return encoded


def _decode_pair(pair: Json, tensors: Mapping[str, torch.Tensor], device: str) -> tuple[Hashable, Any]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise CorruptError(f"{pair!r:.80} is not a pair of key and value")
    key = decode_state(pair[0], {})
    try:
        hash(key)
    except TypeError as error:
        raise CorruptError(f"{pair[0]!r:.80} can't be a key") from error
    return key, decode_state(pair[1], tensors, device)


def _encode_tensor(tensor: torch.Tensor, where: str, tensors: dict[str, torch.Tensor]) -> Json:
    if type(tensor) is not torch.Tensor:
        raise ConfigurationError(f"{where} is of type {type(tensor).__qualname__}: make it a plain tensor first")
    tensors[where] = tensor
    encoded: dict[str, Json] = {"tensor": where}
    if tensor.device.type != "cpu":
        encoded["moves"] = True
    if tensor.layout == torch.strided and tensor.stride() != _row_major(tensor.shape):
        encoded |= {"strides": list(tensor.stride())} if _is_dense(tensor.shape, tensor.stride()) else {}
    return encoded


def _with_strides(tensor: torch.Tensor, strides: Json) -> torch.Tensor:
    """Returns the tensor in its former memory layout, which can affect bits of results."""
    if strides is None:
        return tensor
    fit = isinstance(strides, list) and len(strides) == tensor.dim() and all(type(s) is int for s in strides)
    if not fit or not _is_dense(tensor.shape, strides):
        raise CorruptError(f"a tensor of shape {tuple(tensor.shape)} can't have the strides {strides!r:.80}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(length, 1)
    return tuple(reversed(strides))


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether the elements fill their memory without gaps or overlaps."""
    size = 1
    for stride, length in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != size:
            return False
        size *= length
    return all(0 <= stride <= size for stride in strides)
