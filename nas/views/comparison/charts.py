"""Charts of compared searches: the best so far with bands over seeds, and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nas.core.metric import Metric
from nas.views.comparison.curves import MIN_SEEDS, Axis, Curve, MeanCurve, best_so_far, mean_curve, mean_ranks
from nas.views.comparison.groups import Group
from nas.views.formatting import number
from nas.views.page.chart import GREATEST, Chart, Frame, Mark, Text, limited, ticks
from nas.views.page.legend import LegendItem, Path
from nas.views.page.shapes import circle

N_COLORS = 8
"""Colors of groups; later groups repeat them with dashes."""
X_NAMES = {"trials": "finished trials of the search stage", "hours": "hours of training, all trials together"}
_FRAME = Frame(width=620, height=320, left=72, right=606, top=16, bottom=266)
_N_SAMPLES = 60
_WORST = 0.1
"""Share of the curves' worst values that may lie beyond the axis."""


@dataclass(frozen=True, slots=True)
class _Axes:
    """The ranges of a chart; ``high`` may be the lower number, for ranks."""

    end: float
    low: float
    high: float

    def x(self, place: float) -> float:
        return _FRAME.left + (_FRAME.right - _FRAME.left) * place / (self.end or 1.0)

    def y(self, value: float) -> float:
        return _FRAME.up((value - self.low) / (self.high - self.low))

    def steps(self, points: Sequence[tuple[float, float]], end: float) -> str:
        """Returns the path of a step function through these points."""
        (place, value), *later = points
        path = f"M{self.x(place):.1f} {self.y(value):.1f}"
        path += "".join(f"H{self.x(place):.1f}V{self.y(value):.1f}" for place, value in later)
        return f"{path}H{self.x(end):.1f}"

    def band(self, curve: MeanCurve) -> str:
        """Returns the outline of the means' intervals."""
        halves = [mean.half or 0.0 for mean in curve.means]
        upper = [(p, m.value + h) for p, m, h in zip(curve.places, curve.means, halves, strict=True)]
        lower = [(p, m.value - h) for p, m, h in zip(curve.places, curve.means, halves, strict=True)]
        return f"{self.steps(upper, curve.end)}{self._back(lower)}Z"

    def _back(self, points: Sequence[tuple[float, float]]) -> str:
        """Returns the way back along a step function, to its first point."""
        path = f"V{self.y(points[-1][1]):.1f}"
        for (_, before), (place, _) in reversed(list(pairwise(points))):
            path += f"H{self.x(place):.1f}V{self.y(before):.1f}"
        return f"{path}H{self.x(points[0][0]):.1f}"


def color_of(place: int) -> str:
    """Returns the classes of the group at this place: its color, and dashes if colors repeat."""
    return f"s{place % N_COLORS}" + (f" d{min(2, place // N_COLORS)}" if place >= N_COLORS else "")


def group_legend(groups: Sequence[Group]) -> tuple[LegendItem, ...]:
    """Returns a line for each group."""
    return tuple(
        LegendItem(group.label, 28, (Path(f"mean {color_of(n)}", "M0 0H28"),)) for n, group in enumerate(groups)
    )


def best_chart(groups: Sequence[Group], metric: Metric, axis: Axis) -> Chart | None:
    """Returns the best so far: thin lines of searches, and of each group a band.

    None without scores of own weights.
    """
    single = [(n, c) for n, g in enumerate(groups) for s in g.searches if (c := best_so_far(s, axis)) is not None]
    means = [(n, m) for n, group in enumerate(groups) if (m := mean_curve(group, axis)) is not None]
    if not single:
        return None
    low, high = _bounds([curve for _, curve in single], metric)
    axes = _Axes(max(curve.end for _, curve in single), low, high)
    bands = [(n, curve) for n, curve in means if curve.means[0].n >= MIN_SEEDS]
    lines = [
        *(Path(f"band {color_of(n)}", axes.band(curve)) for n, curve in bands),
        *(Path(f"single {color_of(n)}", axes.steps(_points(c), c.end)) for n, c in single),
        *(Path(f"mean {color_of(n)}", axes.steps(_mean_points(c), c.end)) for n, c in means),
    ]
    better = "higher" if metric.direction == "maximize" else "lower"
    return _chart(
        axes,
        label=f"best {metric.name} so far by {X_NAMES[axis]}",
        values=ticks(min(low, high), max(low, high)),
        lines=lines,
        marks=[_end(axes, n, groups[n].label, c.end, c.means[-1].value) for n, c in means],
        names=(X_NAMES[axis], f"{metric.name} ({better} is better)"),
    )


def rank_chart(groups: Sequence[Group], metric: Metric, axis: Axis) -> Chart | None:
    """Returns the mean ranks over the common seeds; None without one, or for one group."""
    ranks = mean_ranks(groups, metric, axis)
    if not ranks:
        return None
    axes = _Axes(max(curve.end for curve in ranks.values()), len(groups) + 0.3, 0.7)
    places = {group.label: n for n, group in enumerate(groups)}
    return _chart(
        axes,
        label=f"mean rank by {X_NAMES[axis]}",
        values=[float(rank) for rank in range(1, len(groups) + 1)],
        lines=[Path(f"mean {color_of(places[label])}", axes.steps(_points(c), c.end)) for label, c in ranks.items()],
        marks=[_end(axes, places[label], label, c.end, c.values[-1]) for label, c in ranks.items()],
        names=(X_NAMES[axis], "mean rank (1 is the best)"),
    )


def _points(curve: Curve) -> list[tuple[float, float]]:
    return list(zip(curve.places, map(limited, curve.values), strict=True))


def _mean_points(curve: MeanCurve) -> list[tuple[float, float]]:
    return [(place, limited(mean.value)) for place, mean in zip(curve.places, curve.means, strict=True)]


def _end(axes: _Axes, n: int, label: str, end: float, value: float) -> Mark:
    place = f"{axes.x(end):.1f} {axes.y(value):.1f}"
    return Mark(n, f"group {color_of(n)}", place, circle(3.5), f"{label}: {number(value)}")


def _bounds(curves: Sequence[Curve], metric: Metric) -> tuple[float, float]:
    """Returns the ends of the axis, without the worst values, those of first trials."""
    values = sorted(_sampled(curves), key=metric.rank)
    worst, best = values[int(len(values) * _WORST)], values[-1]
    pad = (abs(best - worst) or abs(best) or 1.0) * 0.08
    return max(-GREATEST, min(best, worst) - pad), min(GREATEST, max(best, worst) + pad)


def _sampled(curves: Sequence[Curve]) -> Iterator[float]:
    """Yields the values of the curves at equally spaced places."""
    for curve in curves:
        places = (curve.end * (n + 1) / _N_SAMPLES for n in range(_N_SAMPLES))
        yield from (limited(value) for place in places if (value := curve.at(place)) is not None)


def _chart(
    axes: _Axes,
    *,
    label: str,
    values: Sequence[float],
    lines: Iterable[Path],
    marks: Iterable[Mark],
    names: tuple[str, str],
) -> Chart:
    """Returns a chart with its grid and the texts of its axes."""
    places = [place for place in ticks(0.0, axes.end, 6) if place <= axes.end]
    steps = "".join(f"M{axes.x(place):.1f} {_FRAME.bottom}v5" for place in places)
    return Chart(
        frame=_FRAME,
        label=label,
        grid=_FRAME.lines([*map(axes.y, values), _FRAME.bottom]) + steps,
        ticks=(*_FRAME.texts(values, axes.y), *(Text(axes.x(p), _FRAME.bottom + 18, f"{p:g}") for p in places)),
        lines=tuple(lines),
        marks=tuple(marks),
        x_name=names[0],
        y_name=names[1],
    )
