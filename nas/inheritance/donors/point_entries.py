"""The entries of a point that describe its architecture, in the order of its space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nas.core.point import Point, point_key

PointEntries: TypeAlias = Callable[[Point], Iterable[str]]
"""Returns the entries of a point, the most important first."""
_DISTRIBUTIONS = ("Distribution.uniform", "Distribution.normal")


def architecture_entries(point: Point, space: Mapping[str, Any]) -> list[str]:
    """Returns the entries of a point as texts, equal if name and value are equal.

    Lists and dicts are replaced by their entries. Constants are left out, and so are values of a ``Float`` or of a
    ``Distribution`` without ``q``. A learning rate or a dropout changes no tensor's shape.

    Args:
        point: The point, in any order of keys.
        space: The result of ``Space.to_json``. Names without an order in it are sorted.
    """
    return list(_entries(point, [space], ""))


def _entries(value: Any, described: Sequence[Mapping[str, Any]], path: str) -> Iterator[str]:
    """Yields the entries of a value, given the descriptions of its options."""
    if value and isinstance(value, dict):
        groups = [one for one in described if isinstance(one.get("parameters"), Mapping)]
        names = dict.fromkeys(name for group in groups for name in group.get("order") or ())
        ordered = [name for name in names if name in value]
        for name in [*ordered, *sorted(value.keys() - names.keys())]:
            options = [option for group in groups for option in _options(group["parameters"].get(name))]
            if not _is_left_out(options, is_option=len(described) > 1):
                yield from _entries(value[name], options, f"{path}/{point_key(name)}")
    elif value and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _entries(item, (), f"{path}/{index}")
    else:
        yield f"{path}={point_key(value)}"


def _options(described: Any) -> list[Mapping[str, Any]]:
    """Returns the descriptions of a value's options, if they have ``ParameterSpace``'s form."""
    is_choice = isinstance(described, Mapping) and described.get("type") == "Choice"
    options = described.get("options") or () if is_choice else (described,)
    return [option for option in options if isinstance(option, Mapping)]


def _is_left_out(described: Sequence[Mapping[str, Any]], *, is_option: bool) -> bool:
    """Returns whether the value is no architecture choice: an unrounded float or a constant."""
    kinds = [_kind(one) for one in described]
    return {*kinds} == {"Float"} or (kinds == ["constant"] and not is_option)


def _kind(described: Mapping[str, Any]) -> Any:
    """Returns the kind of a parameter; a distribution without ``q`` is a ``Float``."""
    is_float = described.get("type") in _DISTRIBUTIONS and described.get("q") is None
    return "Float" if is_float else described.get("type")
