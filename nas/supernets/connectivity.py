"""Edges of a cell that its output depends on, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from nas.core.point import Point

NONE = "none"
"""The option of an edge that passes nothing on."""
Edge: TypeAlias = tuple[int, int]
"""Source and target, as indices of nodes."""
_EDGE = re.compile(r"(.*)_(\d{1,3})_(\d{1,3})")
_INPUTS = re.compile(r"(.*)_inputs_\d{1,3}")


def live_edges(edges: Iterable[Edge], n_nodes: int) -> list[Edge]:
    """Returns the edges on a way from the first to the last node.

    Args:
        edges: The edges; targets are greater than sources.
        n_nodes: The number of nodes.
    """
    kept = list(edges)
    reached, used = {0}, {n_nodes - 1}
    for source, target in sorted(kept, key=lambda edge: edge[1]):
        if source in reached:
            reached.add(target)
    for source, target in sorted(kept, key=lambda edge: -edge[1]):
        if target in used:
            used.add(source)
    return [(source, target) for source, target in kept if source in reached and target in used]


def has_layer(point: Point, name: str) -> bool:
    """Returns whether a network has a decision's layer; not if its node chooses other inputs."""
    if (match := _EDGE.fullmatch(name)) is None:
        return True
    source, target, chosen = int(match[2]), int(match[3]), point.get(f"{match[1]}_inputs_{match[3]}")
    inputs = chosen if isinstance(chosen, list) else [chosen]
    return source in inputs or source >= target or not all(type(index) is int for index in inputs)


def is_connected(point: Point) -> bool:
    """Returns whether each cell has a live edge; true for a point without cells.

    Edges have names such as ``op_0_2``, from node 0 to node 2. A cell has three nodes or more and all their edges, and
    the names of its edges begin alike. One such name alone is a layer, and cells with a choice of inputs are connected.
    """
    return all(_live(point, cell, edges) for cell, edges in _cells(point).items())


def _live(point: Point, cell: str, edges: list[Edge]) -> list[Edge]:
    """Returns the live edges of a cell."""
    passing = [(i, j) for i, j in edges if point[f"{cell}_{i}_{j}"] != NONE]
    return live_edges(passing, 1 + max(j for _, j in edges))


def _cells(point: Point) -> dict[str, list[Edge]]:
    """Returns the edges of each cell, by the first part of their names."""
    found: dict[str, list[Edge]] = {}
    for name in point:
        if match := _EDGE.fullmatch(name):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3])))
    choosing = {match[1] for name in point if (match := _INPUTS.fullmatch(name))}
    return {cell: edges for cell, edges in found.items() if cell not in choosing and _is_complete(edges)}


def _is_complete(edges: list[Edge]) -> bool:
    """Returns whether three nodes or more have all edges to later ones, and no others."""
    last = max(j for _, j in edges)
    return 1 < last < len(edges) + 1 and set(edges) == {(i, j) for j in range(1, last + 1) for i in range(j)}
