"""Changes of a point against its parent's: ``width_1 32 → 24``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.core.validation import first_of
from nas.views.formatting import number

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.trial import Trial

MAX_CHANGES = 40
_ABSENT = "none"
_MAX_TEXT = 120
_MISSING = object()


class Change(NamedTuple):
    """A value of a point in the parent and in the child, or ``none``."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


def changes(lineage: Lineage, trial: Trial) -> list[Change] | None:
    """Returns the changes against the first parent, or None without a parent in the lineage."""
    parent = next((number for number in trial.parents if number in lineage), None)
    return None if parent is None else point_changes(lineage[parent].point, trial.point)


def changes_text(found: list[Change] | None) -> str | None:
    """Returns the changes in one line, or None if there is no parent."""
    if found is None:
        return None
    return first_of(found, MAX_CHANGES) or "same point"


def point_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Returns the changes from one point to another, in the order of the points."""
    return [*_changes("", before, after)]


def _changes(name: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after and type(before) is type(after):
        return
    pairs = _parts(name, before, after)
    if pairs is None:
        texts = _text(before), _text(after)
        if texts[0] == texts[1]:  # floats that differ in later digits
            texts = repr(before)[:_MAX_TEXT], repr(after)[:_MAX_TEXT]
        yield Change(name, *texts)
        return
    for inner, old, new in pairs:
        yield from _changes(inner, old, new)


def _parts(name: str, before: Any, after: Any) -> list[tuple[str, Any, Any]] | None:
    """Returns names and inner values of two dicts or lists, or None for other values."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        prefix = f"{name}." if name else ""
        return [(f"{prefix}{key}", *_both(before, after, key)) for key in dict.fromkeys([*before, *after])]
    if not isinstance(before, list) or not isinstance(after, list):
        return None
    old_nodes, new_nodes = _by_id(before), _by_id(after)
    if old_nodes is not None and new_nodes is not None:
        ids = dict.fromkeys([*old_nodes, *new_nodes])
        return [(f"{name}[{key}]", *_both(old_nodes, new_nodes, key)) for key in ids]
    if len(before) != len(after):
        return None
    return [(f"{name}[{i}]", old, new) for i, (old, new) in enumerate(zip(before, after, strict=True))]


def _both(before: Mapping[Any, Any], after: Mapping[Any, Any], key: Any) -> tuple[Any, Any]:
    return before.get(key, _MISSING), after.get(key, _MISSING)


def _by_id(values: list[Any]) -> dict[Any, Any] | None:
    """Returns the nodes of a network by id, or None for another list."""
    if not all(isinstance(value, Mapping) and isinstance(value.get("id"), int | str) for value in values):
        return None
    found = {value["id"]: value for value in values}
    return found if values and len(found) == len(values) else None


def _text(value: Any) -> str:
    """Returns a value in short; a node of a network is ``conv (inputs [3], channels 16)``."""
    if value is _MISSING or value is None:
        return _ABSENT
    if isinstance(value, Mapping) and "op" in value:
        rest = ", ".join(f"{key} {inner}" for key, inner in value.items() if key not in ("id", "op"))
        text = f"{value['op']}{f' ({rest})' if rest else ''}"
    else:
        text = number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
