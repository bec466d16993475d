"""Names and random values of the decisions of a search space, for tuners that mutate configurations.

The name of a decision is its path: ``root[conv]-choice[0][size]-uniform`` is ``size`` in the first option of the choice
``conv``. The value of a choice is ``{"_index": i, "_value": ...}``; ``split_index`` returns the option itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from . import parameter_expressions

_ROOT = "root"


def json2space(x: Any, oldy: Any = None, name: str = _ROOT) -> list[str]:
    """Returns the names of decisions, inner ones before outer ones.

    Args:
        x: The search space.
        oldy: Parameters; only decisions on their path are named. None: all decisions.
        name: The path of ``x``.

    Raises:
        RuntimeError: an option of a choice contains decisions, but no ``_name``.
    """
    if isinstance(x, dict) and "_type" in x:
        own, inner = f"{name}-{x['_type']}", []
        if x["_type"] == "choice" and oldy is not None:
            index = oldy["_index"]
            inner = json2space(x["_value"][index], oldy["_value"], f"{own}[{index}]")
        elif x["_type"] == "choice":
            inner = json2space(x["_value"], None, own)
        return [*inner, own]
    return [found for key, part in _parts(x) for found in json2space(part, _old(oldy, key), f"{name}[{key}]")]


def json2parameter(
    x: Any,
    is_rand: Mapping[str, bool],
    random_state: Any,
    oldy: Any = None,
    Rand: bool = False,  # noqa: N803 - the name that callers may use
    name: str = _ROOT,
) -> Any:
    """Returns parameters with new random values for some decisions; the rest is copied from ``oldy``.

    Args:
        x: The search space.
        is_rand: Whether to draw a decision and all below it, by the names of ``json2space``.
        random_state: Numpy's ``RandomState``.
        oldy: The earlier parameters; None if all decisions are drawn.
        Rand: Whether to draw everything.
        name: The path of ``x``.

    Raises:
        RuntimeError: see ``json2space``.
    """
    if isinstance(x, dict) and "_type" in x:
        own, values = f"{name}-{x['_type']}", x["_value"]
        if not (Rand or is_rand[own]):
            return copy.deepcopy(oldy)
        if x["_type"] != "choice":
            return getattr(parameter_expressions, x["_type"])(*values, random_state)
        index = int(random_state.randint(len(values)))
        return {
            "_index": index,
            "_value": json2parameter(values[index], is_rand, random_state, None, True, f"{own}[{index}]"),
        }
    if not isinstance(x, dict | list):
        return copy.deepcopy(x)
    found = {
        key: json2parameter(part, is_rand, random_state, _old(oldy, key), Rand, f"{name}[{key}]")
        for key, part in _parts(x)
    }
    return found if isinstance(x, dict) else list(found.values())


def _parts(x: Any) -> list[tuple[Any, Any]]:
    """Returns the parts of an object or list, by key or index."""
    if isinstance(x, dict):
        return list(x.items())
    if not isinstance(x, list):
        return []
    for option in x:
        if isinstance(option, dict) and "_name" not in option:
            raise RuntimeError(f"option {option!r:.200} must have a '_name', because it contains a search space")
    return list(enumerate(x))


def _old(oldy: Any, key: Any) -> Any:
    return None if oldy is None else oldy[key]
