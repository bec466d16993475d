"""A chart before it is drawn: grid, lines, marks and texts with their places in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nas.views.page.legend import LegendItem, Path

GREATEST = 1e300
"""Axes end here: differences of greater numbers may be infinite."""
WITH_SHARED_WEIGHTS = "with shared weights, no accuracy of the architecture"


class Text(NamedTuple):
    """A text at a place; ``anchor`` is the part of it that stands there."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    kind: str = ""


class Mark(NamedTuple):
    """A trial's mark; ``title`` is shown if the mouse is over it."""

    trial: int
    kind: str
    place: str
    shape: str
    title: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Size of a chart, and the edges of the area inside its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    def up(self, share: float) -> float:
        """Returns the height of a share of the area, from 0 at the bottom."""
        return self.bottom - (self.bottom - self.top) * max(0.0, min(1.0, share))

    def lines(self, heights: Iterable[float]) -> str:
        """Returns horizontal grid lines."""
        return "".join(f"M{self.left:.0f} {y:.1f}H{self.right:.0f}" for y in heights)

    def texts(self, values: Sequence[float], height_of: Callable[[float], float]) -> Iterator[Text]:
        """Yields the texts of the axis on the left; no two ticks have the same text.

        All have the same number of decimals. Great numbers, and those with many decimals, have the digits they need.
        """
        decimals = max(map(_n_decimals, values), default=0)
        digits = max(map(n_digits, values), default=1)
        for value in values:
            text = f"{value:.{decimals}f}" if abs(value) < 1e6 and decimals < 7 else f"{value:.{digits}g}"
            yield Text(self.left - 8, height_of(value) + 4, text, "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Content of a chart, in the order in which it is drawn.

    Attributes:
        frame: The chart's size.
        label: The chart's name for screen readers.
        grid: The grid's path.
        ticks: Texts of the axes.
        lines: Lines below the marks.
        marks: Marks of trials.
        notes: Texts beside marks.
        x_name: The name of the axis from left to right.
        y_name: The name of the axis from bottom to top.
        legend: The meaning of lines and marks.
    """

    frame: Frame
    label: str
    grid: str
    ticks: tuple[Text, ...]
    lines: tuple[Path, ...]
    marks: tuple[Mark, ...]
    notes: tuple[Text, ...] = ()
    x_name: str = ""
    y_name: str = ""
    legend: tuple[LegendItem, ...] = ()


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """Returns about ``n`` round numbers from ``low`` to ``high``.

    The steps are 1, 2 or 5 times a power of ten.
    """
    if not high > low:
        return [low]
    raw = (high - low) / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def n_digits(tick: float) -> int:
    """Returns the number of significant digits of a tick, which has at most 12."""
    mantissa, _, _ = f"{tick:.11e}".partition("e")
    return len(mantissa.rstrip("0").lstrip("-").replace(".", ""))


def _n_decimals(tick: float) -> int:
    _, _, exponent = f"{tick:.11e}".partition("e")
    return max(0, n_digits(tick) - 1 - int(exponent))


def limited(value: float) -> float:
    """Returns the value as a float, at most the greatest one on an axis."""
    return float(max(-GREATEST, min(GREATEST, value)))
