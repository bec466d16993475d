"""Parameters of points as columns: numbers, texts, and counts of a network's layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nas.core.metric import is_finite
from nas.core.point import flat_point
from nas.core.trial import Trial

Value = float | str
_MAX_ITEMS = 32


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter and its value in each trial; None if the point has none."""

    name: str
    values: tuple[Value | None, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether all its values are numbers."""
        return not any(isinstance(value, str) for value in self.values)

    @property
    def options(self) -> list[Value]:
        """Its different values in order, numbers before texts."""
        found = {value for value in self.values if value is not None}
        return sorted(found, key=lambda value: (isinstance(value, str), value))


def varying_parameters(trials: Sequence[Trial]) -> list[Parameter]:
    """Returns the parameters with at least two different values, one of which may be none."""
    rows = [dict(_features(trial.point)) for trial in trials]
    names = dict.fromkeys(name for row in rows for name in row)
    found = (Parameter(name, tuple(row.get(name) for row in rows)) for name in names)
    return [parameter for parameter in found if len({*parameter.values}) > 1]


def _features(point: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in flat_point(point).items():
        if isinstance(value, list):
            yield from _items(name, value)
        elif (known := _value(value)) is not None:
            yield name, known


def _items(name: str, values: list[Any]) -> Iterator[tuple[str, Value]]:
    """Yields the items of a list, or the numbers of a network's layers by kind."""
    kinds = [_kind(value) for value in values]
    if values and all(kind is not None for kind in kinds):
        yield f"{name}: layers", float(len(values))
        for kind, n in Counter(kinds).items():
            yield f"{name}: {kind}", float(n)
        return
    for place, value in enumerate(values[:_MAX_ITEMS]):
        if (known := _value(value)) is not None:
            yield f"{name}[{place}]", known


def _kind(layer: Any) -> str | None:
    if isinstance(layer, Mapping):
        return str(layer["op"]) if "op" in layer else None
    return layer[0] if isinstance(layer, list) and layer and isinstance(layer[0], str) else None


def _value(value: Any) -> Value | None:
    if isinstance(value, bool | str):
        return str(value)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 and is_finite(value) else None
