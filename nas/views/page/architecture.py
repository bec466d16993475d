"""The drawing of a point: a network's layers as boxes, or each block's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nas.views.formatting import number

BOX_WIDTH, BOX_HEIGHT = 196, 38
_STEP_X, _STEP_Y = 214, 62
_MARGIN = 8
_MAX_TEXT = 34
_NUMBERED = re.compile(r"(.*?)[_.]?(\d+)")


class Box(NamedTuple):
    """A layer or a block: its corner, two texts, and whether the parent lacks it."""

    x: int
    y: int
    name: str
    about: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Architecture:
    """Boxes and the paths between them, from top to bottom, and their size in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[str, ...]


class _Layer(NamedTuple):
    name: str
    about: str
    inputs: tuple[str, ...]


def draw_architecture(
    point: Mapping[str, Any], parent: Mapping[str, Any] | None, *, max_boxes: int
) -> Architecture | None:
    """Returns the drawing of a point, or None without layers or numbered parameters.

    It is None for too many layers as well.

    Args:
        point: The point. Layers are dicts with ``id``, ``op`` and ``inputs``, or lists such as ``["attention", 0, 1]``.
        parent: The parent's point. Boxes that it lacks are new.
        max_boxes: The largest number of boxes.
    """
    layers = _layers(point) or _blocks(point)
    if not 1 < len(layers) <= max_boxes:
        return None
    known = None if parent is None else _layers(parent) or _blocks(parent)
    places = _places(layers)
    boxes = tuple(
        Box(*places[key], layer.name, layer.about, known is not None and known.get(key) != layer)
        for key, layer in layers.items()
    )
    edges = tuple(
        _edge(places[source], places[key])
        for key, layer in layers.items()
        for source in layer.inputs
        if source in places
    )
    width = max(x for x, _ in places.values()) + BOX_WIDTH + 3 * _MARGIN
    height = max(y for _, y in places.values()) + BOX_HEIGHT + _MARGIN
    return Architecture(width, height, boxes, edges)


def _layers(point: Mapping[str, Any]) -> dict[str, _Layer]:
    """Returns the layers of the first network in a point, by id."""
    for value in _lists(point):
        if value and all(isinstance(node, Mapping) and {"id", "op", "inputs"} <= node.keys() for node in value):
            return _nodes(value)
    layers = point.get("layers")
    if isinstance(layers, list) and layers and all(_is_listed(layer) for layer in layers):
        found = {str(i): _Layer(name, "", ()) for i, name in enumerate(("passage", "question")) if name in point}
        listed = enumerate(layers, len(found))
        return found | {str(i): _Layer(_short(kind), "", tuple(map(str, inputs))) for i, (kind, *inputs) in listed}
    return {}


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> dict[str, _Layer]:
    found = {"0": _Layer("input", "", ())} if any(0 in _inputs(node) for node in nodes) else {}
    for node in nodes:
        rest = {key: value for key, value in node.items() if key not in ("id", "op", "inputs")}
        inputs = tuple(map(str, _inputs(node)))
        found[str(node["id"])] = _Layer(_short(f"{node['op']} {node['id']}"), _about(rest), inputs)
    return found


def _inputs(node: Mapping[str, Any]) -> list[Any]:
    return node["inputs"] if isinstance(node["inputs"], list) else []


def _blocks(point: Mapping[str, Any]) -> dict[str, _Layer]:
    """Returns a box for each number at the end of parameters, such as ``width_1``."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in point.items():
        found = _NUMBERED.fullmatch(name)
        if found and not isinstance(value, list | dict):
            groups.setdefault(found[2], {})[found[1] or "value"] = value
    in_order = sorted(groups, key=int)
    return {key: _Layer(f"block {int(key)}", _about(groups[key]), ()) for key in in_order}


def _lists(point: Any) -> Iterator[list[Any]]:
    """Yields the lists of a point and of its inner dicts."""
    for value in point.values():
        if isinstance(value, Mapping):
            yield from _lists(value)
        elif isinstance(value, list):
            yield value


def _is_listed(layer: Any) -> bool:
    return isinstance(layer, list) and bool(layer) and isinstance(layer[0], str)


def _about(values: Mapping[str, Any]) -> str:
    texts = (f"{name} {number(v) if isinstance(v, float) else v}" for name, v in values.items() if v is not None)
    return _short(", ".join(texts))


def _short(text: Any) -> str:
    line = str(text)
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"


def _places(layers: Mapping[str, _Layer]) -> dict[str, tuple[int, int]]:
    """Returns places: each layer below its inputs, or three in a row without any."""
    has_edges = any(layer.inputs for layer in layers.values())
    rows: dict[str, int] = {}
    for place, (key, layer) in enumerate(layers.items()):
        above = [rows[source] for source in layer.inputs if source in rows]
        rows[key] = max(above, default=-1) + 1 if has_edges else place // 3
    n_in_row: dict[int, int] = {}
    places = {}
    for key, row in rows.items():
        column = n_in_row.get(row, 0)
        n_in_row[row] = column + 1
        places[key] = (_MARGIN + column * _STEP_X, _MARGIN + row * _STEP_Y)
    return places


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    """Returns a path from a box to a lower one, around on the right if long."""
    (x1, y1), (x2, y2) = source, target
    x1, y1, x2 = x1 + BOX_WIDTH // 2, y1 + BOX_HEIGHT, x2 + BOX_WIDTH // 2
    if y2 - y1 <= _STEP_Y - BOX_HEIGHT:
        middle = (y1 + y2) // 2
        return f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"
    out, y1 = max(x1, x2) + BOX_WIDTH // 2, y1 - BOX_HEIGHT // 2
    return f"M{x1 + BOX_WIDTH // 2} {y1}C{out + 24} {y1} {out + 24} {y2 - 8} {x2 + 20} {y2}"
