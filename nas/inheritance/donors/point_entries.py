"""What a point says about the architecture, one entry after the other, in the order of its space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nas.core.point import Point, point_key


def architecture_entries(point: Point, space: Mapping[str, Any]) -> list[str]:
    """The entries of a point, as texts that are equal where name and value are; of lists and dicts, those within.

    What a ``Float`` says is left out: no tensor's shape follows from a learning rate or a dropout. So are constants.

    Args:
        point: In any order of its keys.
        space: What ``Space.describe`` says, or a search's identity. Names that it gives no order go by the alphabet.
    """
    return list(_entries(point, [space], ""))


def _entries(value: Any, described: Sequence[Mapping[str, Any]], path: str) -> Iterator[str]:
    """Those of a value for which the space has these descriptions: one for each option that it may be."""
    if value and isinstance(value, dict):
        groups = [one for one in described if isinstance(one.get("parameters"), Mapping)]
        names = dict.fromkeys(name for group in groups for name in group.get("order") or ())
        for name in [*(name for name in names if name in value), *sorted(value.keys() - names.keys())]:
            below = [option for group in groups for option in _options(group["parameters"].get(name))]
            if not _is_beside(below, is_option=len(described) > 1):
                yield from _entries(value[name], below, f"{path}/{point_key(name)}")
    elif value and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _entries(item, (), f"{path}/{index}")
    else:
        yield f"{path}={point_key(value)}"


def _options(described: Any) -> list[Mapping[str, Any]]:
    """What a value may be, as far as the space describes it as ``ParameterSpace`` does."""
    is_choice = isinstance(described, Mapping) and described.get("type") == "Choice"
    options = described.get("options") or () if is_choice else (described,)
    return [option for option in options if isinstance(option, Mapping)]


def _is_beside(described: Sequence[Mapping[str, Any]], *, is_option: bool) -> bool:
    """Whether it is no choice of an architecture: a number without steps, or a constant that tells no option."""
    kinds = [one.get("type") for one in described]
    return {*kinds} == {"Float"} or (kinds == ["constant"] and not is_option)
