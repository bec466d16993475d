"""Points: members of a space as plain JSON data."""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

from nas.core.errors import PointError
from nas.core.validation import MAX_DEPTH

Point: TypeAlias = dict[str, Any]
"""One member of a space: plain JSON data (dict, list, str, int, finite float, bool, None)."""


def point_key(point: Any) -> str:
    """The canonical JSON of a point (or a value in one), equal for equal points; 1, 1.0 and True are three values.

    Raises:
        PointError: it is not JSON (a tuple passes for a list, and a number for the name that it would become).
    """
    try:
        return json.dumps(point, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PointError(f"{point!r} is not plain JSON data ({error}); use plain Python types") from error


def is_json(value: Any, *, depth: int = MAX_DEPTH) -> bool:
    """Whether the value is plain data that JSON gives back unchanged: no tuple, subclass, NaN or number as a name.

    Args:
        value: Any.
        depth: How deep lists and dicts may lie in one another.
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
