"""Points: members of a space as plain JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from nas.core.errors import PointError
from nas.core.validation import MAX_DEPTH

Point: TypeAlias = dict[str, Any]
"""One member of a space: plain JSON data (dict, list, str, int, finite float, bool, None)."""


def point_key(point: Any) -> str:
    """Returns the canonical JSON of a point or of a value in it.

    1, 1.0 and True differ. A tuple counts as a list, and a number as a key counts as its text.

    Raises:
        PointError: it is not JSON.
    """
    try:
        return json.dumps(point, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PointError(f"{point!r} is not plain JSON data ({error}). Use plain Python types") from error


def is_json(value: Any, *, depth: int = MAX_DEPTH) -> bool:
    """Returns whether JSON keeps the value unchanged.

    It does not keep tuples, subclasses, NaN, or numbers as keys.

    Args:
        value: The value.
        depth: The maximum depth of nested lists and dicts.
    """
    if depth < 0:
        return False
    if type(value) is dict:
        return all(type(name) is str and is_json(item, depth=depth - 1) for name, item in value.items())
    if type(value) is list:
        return all(is_json(item, depth=depth - 1) for item in value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def flat_point(point: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a point without nested dicts; names are joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in point.items():
        flat |= flat_point(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
