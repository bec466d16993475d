"""Paths of the tree's edges: curves between two marks, and ways between the rows of marks."""

from __future__ import annotations

_SHORTEST, _LONGEST = 14.0, 160.0  # from the end of a curve to its control point


def curve(start: tuple[float, float], end: tuple[float, float], half_width: float) -> str:
    """Returns a curve from the right of one mark to the left of another.

    In one column it connects their left sides.

    Args:
        start: The middle of the first mark.
        end: The middle of the other one.
        half_width: Half the width of a mark.
    """
    (x1, y1), (x2, y2) = start, end
    side1, side2 = (1, -1) if x1 < x2 else (-1, -1) if x1 == x2 else (-1, 1)
    x1, x2 = x1 + side1 * half_width, x2 + side2 * half_width
    bend = min(max(abs(x2 - x1) / 2, _SHORTEST), _LONGEST)
    return f"M{x1:.1f} {y1:.1f}{_bow(x1 + side1 * bend, y1, x2 + side2 * bend, y2, x2)}"


def way_around(
    start: tuple[float, float], end: tuple[float, float], *, half_width: float, column: float, row: float
) -> str:
    """Returns a way from one mark to another, some columns to its right.

    It runs between two rows, so that no mark hides it, and changes rows only between two columns.

    Args:
        start: The middle of the first mark.
        end: The middle of the other one.
        half_width: Half the width of a mark.
        column: The distance of two columns.
        row: The distance of two rows.
    """
    (x1, y1), (x2, y2) = start, end
    gap = column - 2 * half_width
    lane = y1 + (row / 2 if y2 > y1 else -row / 2)
    x1, x2 = x1 + half_width, x2 - half_width
    first = _bow(x1 + gap / 2, y1, x1 + gap / 2, lane, x1 + gap)
    last = _bow(x2 - gap / 2, lane, x2 - gap / 2, y2, x2)
    return f"M{x1:.1f} {y1:.1f}{first}H{x2 - gap:.1f}{last}"


def _bow(x1: float, y1: float, x2: float, y2: float, x: float) -> str:
    """Returns a Bezier curve to (x, y2) with two control points."""
    return f"C{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f} {x:.1f} {y2:.1f}"
