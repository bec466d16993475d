"""Samples of marks and edges that explain a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nas.views.page.palette import N_STEPS, ScoreScale
from nas.views.page.shapes import circle

_CHARACTER = 6.2  # mean width in 12 px text


class Path(NamedTuple):
    """A path with the class that gives its color."""

    kind: str
    shape: str


@dataclass(frozen=True, slots=True)
class LegendItem:
    """A sample and its meaning.

    Attributes:
        text: The meaning.
        width: The sample's width.
        paths: The sample, vertically centered at 0.
        kind: The class of the group of these paths.
        x: The place of the paths' origin.
    """

    text: str
    width: float
    paths: tuple[Path, ...]
    kind: str = ""
    x: float = 0.0


def ramp_item(scale: ScoreScale, name: str) -> LegendItem:
    """Returns the steps of the color of a score with this name."""
    worse = " or worse" if scale.is_clipped else ""
    text = f"{name} {scale.text(scale.low)}{worse} to {scale.text(scale.high)}"
    steps = (Path(f"mark q{i}", f"M{14 * i} -6h14v12h-14Z") for i in range(N_STEPS))
    return LegendItem(text, 14.0 * N_STEPS, tuple(steps))


def edge_item(kind: str, text: str) -> LegendItem:
    """Returns an edge of this kind: ``line``, ``donor`` or ``wedge``."""
    shape = "M0 -.6L28 -2.6V2.6L0 .6Z" if kind == "wedge" else "M0 0H28"
    return LegendItem(text, 28, (Path(f"edge {kind}", shape),))


def node_item(paths: Sequence[Path], kind: str, text: str) -> LegendItem:
    """Returns a mark of the tree; its kind is a state, ``final`` or ``line winner``."""
    return LegendItem(text, 24, tuple(paths), f"node {kind}", x=12)


def score_item(kind: str, text: str, shape: str = circle(4)) -> LegendItem:
    """Returns a mark of a chart."""
    return LegendItem(text, 12, (Path(f"score {kind}".rstrip(), shape),), x=6)


def legend_rows(items: Sequence[LegendItem], width: float) -> tuple[list[tuple[LegendItem, float, float]], float]:
    """Returns the items with their places in rows of at most this width, and the height."""
    x, y, placed = 0.0, 10.0, []
    for item in items:
        needed = item.width + 8 + len(item.text) * _CHARACTER
        if x > 0 and x + needed > width:
            x, y = 0.0, y + 22
        placed.append((item, x, y))
        x += needed + 20
    return placed, y + 18
