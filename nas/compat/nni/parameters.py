"""The parameters of an NNI trial, which may be any JSON, as a point, which is an object; and back."""

from __future__ import annotations

from typing import Any

from nas.core.point import Point

_KEY = "parameters"


def point_of(parameters: Any) -> Point:
    """Returns the point of these parameters: themselves, where they are an object."""
    if isinstance(parameters, dict) and parameters.keys() != {_KEY}:
        return parameters
    return {_KEY: parameters}


def parameters_of(point: Point) -> Any:
    """Returns the parameters of which ``point_of`` made this."""
    return point[_KEY] if point.keys() == {_KEY} else point
