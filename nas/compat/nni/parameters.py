"""Conversion between the parameters of an NNI trial (any JSON) and a point (a JSON object)."""

from __future__ import annotations

from typing import Any

from nas.core.point import Point

_KEY = "parameters"


def to_point(parameters: Any) -> Point:
    """Returns the parameters if they are an object, and else an object that contains them."""
    if isinstance(parameters, dict) and parameters.keys() != {_KEY}:
        return parameters
    return {_KEY: parameters}


def to_parameters(point: Point) -> Any:
    """Returns the parameters that ``to_point`` was given."""
    return point[_KEY] if point.keys() == {_KEY} else point
