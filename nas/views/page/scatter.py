"""The first two objectives of every trial against each other, and the front."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from sys import float_info
from typing import TYPE_CHECKING

from nas.core.pareto import numbers_on_front
from nas.core.shared_scores import shared_scores
from nas.core.supernet import is_epoch
from nas.core.trial import State, Trial
from nas.views.formatting import number
from nas.views.page.chart import WITH_SHARED_WEIGHTS, Chart, Frame, Mark, Text, limited, n_digits, ticks
from nas.views.page.dots import MAX_MARKS, dots
from nas.views.page.legend import LegendItem, Path, score_item
from nas.views.page.shapes import circle, diamond, square

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_FRAME = Frame(width=1180, height=460, left=86, right=1140, top=22, bottom=402)
_LOG_FROM = 50.0
"""The greatest value as a multiple of the least from which an axis is logarithmic."""
_RADIUS = 4.0


def objectives_scatter(lineage: Lineage, metrics: Sequence[Metric], *, winner: int | None = None) -> Chart:
    """Returns a chart of the first objective over the second.

    If these are all objectives, it shows the lines of the fronts as well.

    Args:
        lineage: The trials; each stage has a front of its own.
        metrics: Two or more; a trial is on the front by all of them.
        winner: The trial whose number is written beside its mark.
    """
    return _Scatter(lineage, metrics, winner).chart()


class _Axis:
    """Maps values to places between ``start`` and ``end``."""

    def __init__(self, metric: Metric, values: Sequence[float], start: float, end: float) -> None:
        self.metric, self.start, self.end = metric, start, end
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.is_log = low > 0 and high / low >= _LOG_FROM
        self.scale: Callable[[float], float] = math.log10 if self.is_log else limited
        first, last = self.scale(low), self.scale(high)
        pad = (last - first or abs(last) or 1.0) * 0.05
        self.first, self.last = first - pad, last + pad

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (self.scale(value) - self.first) / (self.last - self.first)

    def marks(self) -> list[float]:
        """Returns the values that have a text on the axis."""
        if not self.is_log:
            return ticks(self.first, self.last)
        first, last = math.floor(self.first), math.ceil(self.last)
        powers = range(max(first, float_info.min_10_exp), min(last, float_info.max_10_exp) + 1)
        steps = (1, 2, 5) if self.last - self.first < 3 else (1,)
        values = (float(step) * 10.0**power for power in powers for step in steps)
        return [value for value in values if self.first <= self.scale(value) <= self.last]

    @property
    def name(self) -> str:
        better = "higher" if self.metric.direction == "maximize" else "lower"
        return f"{self.metric.name} ({better} is better{', logarithmic' if self.is_log else ''})"


def _labeled(marks: Sequence[float]) -> list[tuple[float, str]]:
    """Returns the marks on an axis with different texts, in full up to ten millions."""
    digits = max([5, *map(n_digits, marks)])
    return [(m, f"{m:,.0f}" if 1e3 <= abs(m) < 1e7 and m == int(m) else f"{m:.{digits}g}") for m in marks]


class _Scatter:
    def __init__(self, lineage: Lineage, metrics: Sequence[Metric], winner: int | None) -> None:
        self.metrics, self.winner = metrics, winner
        trials = sorted(lineage, key=lambda trial: trial.number)
        self.first_stage = trials[0].stage if trials else ""
        self.on_front, self.shared = numbers_on_front(trials, metrics), shared_scores(trials)
        values = ((t, t.value(metrics[0].name), t.value(metrics[1].name)) for t in trials if not is_epoch(t))
        self.scored = [(t, first, second) for t, first, second in values if first is not None and second is not None]
        self.x = _Axis(metrics[1], [second for _, _, second in self.scored], _FRAME.left, _FRAME.right)
        self.y = _Axis(metrics[0], [first for _, first, _ in self.scored], _FRAME.bottom, _FRAME.top)

    def chart(self) -> Chart:
        across, up = (self.x.marks(), self.y.marks()) if self.scored else ([], [])
        columns = "".join(f"M{self.x.at(value):.1f} {_FRAME.top}V{_FRAME.bottom + 5}" for value in across)
        front_last = sorted(self.scored, key=lambda entry: entry[0].number in self.on_front)
        return Chart(
            frame=_FRAME,
            label=f"{self.metrics[0].name} and {self.metrics[1].name} of every trial, and the front",
            grid=_FRAME.lines([_FRAME.bottom, *map(self.y.at, up)]) + columns,
            ticks=(
                *(Text(_FRAME.left - 8, self.y.at(v) + 4, text, "end") for v, text in _labeled(up)),
                *(Text(self.x.at(v), _FRAME.bottom + 19, text) for v, text in _labeled(across)),
                *self.remark(),
            ),
            lines=(*self.dots(), *self.fronts()),
            marks=tuple(self.mark(*entry) for entry in front_last if self.has_mark(entry[0])),
            notes=tuple(self.winners()),
            x_name=self.x.name,
            y_name=self.y.name,
            legend=tuple(self.legend()),
        )

    def remark(self) -> Iterator[Text]:
        if not self.scored:
            yield Text(_FRAME.left + 12, _FRAME.bottom - 12, "no trial has both scores yet", "start")

    def has_mark(self, trial: Trial) -> bool:
        """Returns whether a trial has its own mark: not one of many behind the front."""
        return len(self.scored) <= MAX_MARKS or trial.number in self.on_front or trial.stage != self.first_stage

    def dots(self) -> Iterator[Path]:
        """Yields the trials without a mark."""
        if len(self.scored) > MAX_MARKS:
            without = (entry for entry in self.scored if not self.has_mark(entry[0]))
            yield dots("", ((self.x.at(second), self.y.at(first)) for _, first, second in without))

    def fronts(self) -> Iterator[Path]:
        """Yields each stage's front as a staircase, if there are two objectives."""
        if len(self.metrics) > 2:
            return
        leading = [entry for entry in self.scored if entry[0].number in self.on_front]
        leading.sort(key=lambda entry: self.metrics[0].rank(entry[1]), reverse=True)
        for stage in sorted({trial.stage for trial, _, _ in leading}):
            places = [(self.x.at(second), self.y.at(first)) for t, first, second in leading if t.stage == stage]
            steps = "".join(f"V{y:.1f}H{x:.1f}" for x, y in places[1:])
            path = f"M{places[0][0]:.1f} {places[0][1]:.1f}{steps}"
            yield Path("front" if stage == self.first_stage else "front final", path)

    def mark(self, trial: Trial, first: float, second: float) -> Mark:
        kind = "final" if trial.stage != self.first_stage else str(trial.state).lower()
        leads = trial.number in self.on_front
        r = _RADIUS * (1.25 if leads else 1.0)
        shape = diamond(1.4 * r) if kind == "final" else square(0.8 * r) if kind == "stopped" else circle(r)
        scores = ", ".join(f"{m.name} {number(v)}" for m, v in zip(self.metrics, (first, second), strict=False))
        title = f"trial {trial.number}: {scores}{', on the front' if leads else ''}"
        if trial.number in self.shared:
            kind, title = f"{kind} shared", f"{title}, {WITH_SHARED_WEIGHTS}"
        place = f"{self.x.at(second):.1f} {self.y.at(first):.1f}"
        return Mark(trial.number, f"{kind} leading" if leads else kind, place, shape, title)

    def winners(self) -> Iterator[Text]:
        for trial, first, second in self.scored:
            if trial.number == self.winner:
                yield Text(self.x.at(second), self.y.at(first) - 12, f"★ {trial.number}", kind="end final")

    def legend(self) -> Iterator[LegendItem]:
        if not self.scored:
            return
        if self.shared:
            yield score_item("shared", f"scored {WITH_SHARED_WEIGHTS}")
        yield score_item("", "complete")
        by = "both" if len(self.metrics) == 2 else f"all {len(self.metrics)} objectives"
        yield score_item("leading", f"on the front by {by}", circle(5))
        if any(t.state == State.STOPPED for t, _, _ in self.scored):
            yield score_item("stopped", "stopped (competes with none)", square(4))
        for stage in dict.fromkeys(t.stage for t, _, _ in self.scored if t.stage != self.first_stage):
            yield score_item("final", f"stage {stage}", diamond(6))
