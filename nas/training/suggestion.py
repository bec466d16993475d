"""Points that a trial suggests to the tuner."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point, is_json
from nas.core.supernet import epoch_of
from nas.spaces.space import Space
from nas.storage.record_size import SUGGESTED_BYTES, json_size


def checked_suggestion(points: Sequence[Point], space: Space | None) -> tuple[Point, ...]:
    """Returns copies of the points.

    Args:
        points: Points of the space, best first; no supernet epochs.
        space: The problem's space; None: not known.

    Raises:
        ConfigurationError: a point is not in the space, or all together are too large for a record.
    """
    given = list(points)
    if not is_json(given):
        raise ConfigurationError(
            f"run.suggest_points({given!r:.200}): must be plain JSON data. Use plain Python types."
        )
    for index, point in enumerate(given):
        _check(f"run.suggest_points[{index}]", point, space)
    if (size := json_size(given)) > SUGGESTED_BYTES:
        raise ConfigurationError(
            f"run.suggest_points: {len(given)} points take {size} bytes of JSON: must be at most {SUGGESTED_BYTES}. "
            "Suggest fewer, the best first."
        )
    return tuple(json.loads(json.dumps(given)))


def _check(name: str, point: object, space: Space | None) -> None:
    if not isinstance(point, dict) or epoch_of(point) is not None:
        raise ConfigurationError(
            f"{name}={point!r:.200}: must be a point that can be trained. Give a dict of parameters."
        )
    try:
        if space is not None:
            space.validate(point)
    except PointError as error:
        raise ConfigurationError(f"{name}: must be in the space: {error}") from error
