"""NNI's search spaces: the JSON files of NNI v0.5 to v2, as `ParameterSpace`.

A name maps to ``{"_type": ..., "_value": ...}``. The types sample as in NNI v1: ``randint`` excludes its upper bound,
and q-types are clipped to their bounds. Unlike in NNI, normal types are cut off at 5 standard deviations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError
from nas.spaces.parameters.distribution import Distribution
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace

MAX_SUBSETS = 10_000


def load_nni_space(source: str | Path | Mapping[str, Any]) -> ParameterSpace:
    """Returns the space of an NNI experiment.

    Args:
        source: The path of a JSON file, or its content.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is invalid. The message names the entry and says what
            is allowed.
    """
    if isinstance(source, Mapping):
        return ParameterSpace(_group(source, ""))
    try:
        content = json.loads(Path(source).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"the search space {source} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"the search space {source} must be JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"the search space {source} must be an object of names, each with a _type and a _value"
        )
    return ParameterSpace(_group(content, ""))


def _group(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {name: _parameter(value, f"{path}{name}") for name, value in content.items() if name != "_name"}


def _parameter(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping) or not {"_type", "_value"} <= entry.keys():
        raise ConfigurationError(f"{name}={entry!r:.200}: must be an object with _type and _value")
    make = _TYPES.get(entry["_type"])
    if make is None:
        raise ConfigurationError(f"{name}: _type={entry['_type']!r}: must be one of {', '.join(_TYPES)}")
    try:
        return make(entry["_value"], name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _numbers(value: Any, n: Sequence[int], what: str) -> list[float]:
    is_list = isinstance(value, list | tuple) and len(value) in n
    if not is_list or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in value):
        raise ConfigurationError(f"_value={value!r:.200}: must be {what}")
    return list(value)


def _choice(value: Any, name: str) -> Any:
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"_value={value!r:.200}: must be a list of at least one option")
    return _one_of([_option(item, name) for item in _distinct(value)])


def _distinct(items: Sequence[Any]) -> list[Any]:
    """Returns the items without repeated ones; 1, 1.0 and True differ."""
    return list({repr(item): item for item in items}.values())


def _one_of(options: Sequence[Any]) -> Any:
    return Choice(*options) if len(options) > 1 else options[0]


def _option(item: Any, name: str) -> Any:
    """Returns a value, or a nested space: an object whose ``_name`` prefixes its names."""
    if not isinstance(item, dict) or not any(isinstance(v, dict) and "_type" in v for v in item.values()):
        return item
    if not isinstance(item.get("_name"), str):
        raise ConfigurationError(f"option {item!r:.200} must have a _name, since it is a nested space")
    return {"_name": item["_name"], **_group(item, f"{name}.{item['_name']}.")}


def _randint(value: Any, _: str) -> Int:
    numbers = _numbers(value, (1, 2), "[lower, upper] (upper excluded), or [upper]")
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers
    if low != int(low) or high != int(high) or low >= high:
        raise ConfigurationError(f"_value={value!r}: must be whole numbers, the lower less than the upper")
    return Int(int(low), int(high) - 1)


def _uniform(log: bool) -> Callable[[Any, str], Float]:
    def make(value: Any, _: str) -> Float:
        low, high = _numbers(value, (2,), "[low, high]")
        return Float(low, high, log=log)

    return make


def _distribution(kind: Any, n: int, log: bool) -> Callable[[Any, str], Distribution]:
    words = "low, high" if kind == "uniform" else "mu, sigma"

    def make(value: Any, _: str) -> Distribution:
        numbers = _numbers(value, (n,), f"[{words}, q]" if n == 3 else f"[{words}]")
        return Distribution(kind, numbers[0], numbers[1], log=log, q=numbers[2] if n == 3 else None)

    return make


def _layer_choice(value: Any, _: str) -> Any:
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"_value={value!r:.200}: must be a list of at least one layer")
    return _one_of([{"_value": item, "_idx": index} for index, item in enumerate(value)])


def _input_choice(value: Any, _: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("candidates"), list):
        raise ConfigurationError(f"_value={value!r:.200}: must be an object with candidates and n_chosen")
    subsets = _subsets(value["candidates"], value.get("n_chosen"), "n_chosen")
    return _one_of([{"_value": [value["candidates"][i] for i in subset], "_idx": list(subset)} for subset in subsets])


def _mutable_layer(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(layer, dict) for layer in value.values()) or not value:
        raise ConfigurationError(f"_value={value!r:.200}: must be an object of layers' names, each with a layer_choice")
    return {layer: _layer(content, f"{name}.{layer}") for layer, content in value.items()}


def _layer(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    layers, inputs = content.get("layer_choice"), content.get("optional_inputs", [])
    if not isinstance(layers, list) or not layers or not isinstance(inputs, list):
        raise ConfigurationError(f"{name} must have layer_choice, a list, and may have optional_inputs, a list")
    subsets = _subsets(inputs, content.get("optional_input_size", 0), "optional_input_size")
    chosen = [[inputs[i] for i in subset] for subset in subsets]
    return {"chosen_layer": _one_of(_distinct(layers)), "chosen_inputs": _one_of(_distinct(chosen))}


def _subsets(candidates: Sequence[Any], size: Any, what: str) -> list[tuple[int, ...]]:
    """Returns the subsets of a size, a range of sizes, or any size (None), as indices."""
    if size is None:
        sizes: Any = [0, len(candidates)]
    else:
        sizes = [size, size] if isinstance(size, int) else size
    is_range = isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(n, int) for n in sizes)
    if not is_range or not 0 <= sizes[0] <= sizes[1] <= len(candidates):
        allowed = f"a whole number up to the number of candidates ({len(candidates)}), or [least, most]"
        raise ConfigurationError(f"{what}={size!r}: must be {allowed}")
    found: list[tuple[int, ...]] = []
    for n in range(sizes[0], sizes[1] + 1):
        for subset in combinations(range(len(candidates)), n):
            found.append(subset)
            if len(found) > MAX_SUBSETS:
                raise ConfigurationError(f"{what}={size!r}: gives more than {MAX_SUBSETS} sets of inputs. Allow fewer.")
    return found


_TYPES: dict[str, Callable[[Any, str], Any]] = {
    "choice": _choice,
    "randint": _randint,
    "uniform": _uniform(log=False),
    "loguniform": _uniform(log=True),
    "quniform": _distribution("uniform", 3, log=False),
    "qloguniform": _distribution("uniform", 3, log=True),
    "normal": _distribution("normal", 2, log=False),
    "qnormal": _distribution("normal", 3, log=False),
    "lognormal": _distribution("normal", 2, log=True),
    "qlognormal": _distribution("normal", 3, log=True),
    "layer_choice": _layer_choice,
    "input_choice": _input_choice,
    "mutable_layer": _mutable_layer,
}
