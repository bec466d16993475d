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


def live_labels(point: Point) -> set[str]:
    """Returns the names of a point's edges that their cells' outputs depend on.

    Edges have names such as ``op_0_2``, from node 0 to node 2. A cell has all edges of its nodes, and the names of its
    edges begin alike. Cells with a choice of inputs are none of these.
    """
    return {f"{cell}_{i}_{j}" for cell, edges in _cells(point).items() for i, j in _live(point, cell, edges)}


def has_layer(point: Point, name: str) -> bool:
    """Returns whether a network has a decision's layer; not if its node chooses other inputs."""
    match = _EDGE.fullmatch(name)
    chosen = None if match is None else point.get(f"{match[1]}_inputs_{match[3]}")
    return match is None or chosen is None or int(match[2]) in (chosen if isinstance(chosen, list) else [chosen])


def is_connected(point: Point) -> bool:
    """Returns whether each cell has a live edge; true for a point without cells."""
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
    return {cell: edges for cell, edges in found.items() if _is_complete(edges) and not _has_inputs(point, cell)}


def _is_complete(edges: list[Edge]) -> bool:
    """Returns whether the edges are those from each node to all later ones."""
    last = max(j for _, j in edges)
    return last < len(edges) + 1 and set(edges) == {(i, j) for j in range(1, last + 1) for i in range(j)}


def _has_inputs(point: Point, cell: str) -> bool:
    """Returns whether the cell's nodes choose their inputs."""
    return any(name.startswith(f"{cell}_inputs_") for name in point)
