"""The first two objectives of every trial against each other, and the front, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from flows.cli.formatting import markup, number
from flows.views.page.curve import GREATEST, SHARED, ticks
from flows.views.page.marks import LegendItem
from nas.core.pareto import numbers_on_front
from nas.core.shared_scores import shared_scores
from nas.core.supernet import is_epoch
from nas.core.trial import State, Trial

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_WIDTH, _HEIGHT = 1180.0, 460.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 86.0, 40.0, 22.0, 58.0
_LOG_FROM = 50.0
"""The greatest value as a multiple of the least from which an axis is logarithmic."""
_RADIUS = 4.0

SCATTER_CSS = """
.front{fill:none;stroke:var(--series);stroke-width:2}
.front.final{stroke:var(--accent)}
.score.leading{fill-opacity:1;stroke:var(--ink);stroke-width:1.2}
"""


def objectives_scatter(
    lineage: Lineage, metrics: Sequence[Metric], *, winner: int | None = None
) -> tuple[str, list[LegendItem]]:
    """An SVG of the first objective over the second, and what explains it; of exactly two also the fronts' lines.

    Args:
        lineage: The trials; each stage has a front of its own.
        metrics: Two or more; a trial is on the front by all of them.
        winner: The trial whose number is written beside its mark.
    """
    scatter = _Scatter(lineage, metrics, winner)
    return scatter.svg(), list(scatter.legend())


class _Axis:
    """From values to places between ``start`` and ``end``."""

    def __init__(self, metric: Metric, values: Sequence[float], start: float, end: float) -> None:
        self.metric, self.start, self.end = metric, start, end
        low, high = min(values, default=0.0), max(values, default=1.0)
        self.is_log = low > 0 and high / low >= _LOG_FROM
        self.scale: Callable[[float], float] = math.log10 if self.is_log else _limited
        first, last = self.scale(low), self.scale(high)
        pad = (last - first or abs(last) or 1.0) * 0.05
        self.first, self.last = first - pad, last + pad

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (self.scale(value) - self.first) / (self.last - self.first)

    def marks(self) -> Iterator[tuple[float, str]]:
        """Place and text of each mark on the axis."""
        if not self.is_log:
            for mark in ticks(self.first, self.last):
                yield self.at(mark), _round_number(mark)
            return
        powers = range(math.floor(self.first), math.ceil(self.last) + 1)
        steps = (1, 2, 5) if self.last - self.first < 3 else (1,)
        for mark in (float(step) * 10.0**power for power in powers for step in steps):
            if self.first <= self.scale(mark) <= self.last:
                yield self.at(mark), _round_number(mark)

    @property
    def text(self) -> str:
        better = "higher" if self.metric.direction == "maximize" else "lower"
        return f"{markup(self.metric.name)} ({better} is better{', logarithmic' if self.is_log else ''})"


def _limited(value: float) -> float:
    """Returns the value, at most the greatest one on an axis."""
    return max(-GREATEST, min(GREATEST, value))


def _round_number(mark: float) -> str:
    """A mark on an axis, in full up to ten millions."""
    return f"{mark:,.0f}" if 1e3 <= abs(mark) < 1e7 and mark == int(mark) else f"{mark:.5g}"


class _Scatter:
    def __init__(self, lineage: Lineage, metrics: Sequence[Metric], winner: int | None) -> None:
        self.metrics, self.winner = metrics, winner
        trials = sorted(lineage, key=lambda trial: trial.number)
        self.first_stage = trials[0].stage if trials else ""
        self.on_front, self.shared = numbers_on_front(trials, metrics), shared_scores(trials)
        values = ((t, t.value(metrics[0].name), t.value(metrics[1].name)) for t in trials if not is_epoch(t))
        self.scored = [(t, first, second) for t, first, second in values if first is not None and second is not None]
        self.x = _Axis(metrics[1], [second for _, _, second in self.scored], _LEFT, _WIDTH - _RIGHT)
        self.y = _Axis(metrics[0], [first for _, first, _ in self.scored], _HEIGHT - _BOTTOM, _TOP)

    def svg(self) -> str:
        marks = sorted(self.scored, key=lambda entry: entry[0].number in self.on_front)  # the front above the others
        body = "".join([*self.axes(), *self.lines(), *(self.mark(*entry) for entry in marks), *self.label()])
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        names = " and ".join(markup(metric.name) for metric in self.metrics[:2])
        return (
            f'<svg class="curve" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="group" '
            f'aria-label="{names} of every trial, and the front">{body}'
            f'<text class="name" text-anchor="middle" transform="translate(16 {middle:.0f}) rotate(-90)">'
            f'{self.y.text}</text><text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" '
            f'y="{_HEIGHT - 10:.0f}" text-anchor="middle">{self.x.text}</text></svg>'
        )

    def axes(self) -> Iterator[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        yield f'<path class="grid" d="M{_LEFT:.0f} {bottom:.0f}H{right:.0f}"/>'
        if not self.scored:
            yield f'<text x="{_LEFT + 12:.0f}" y="{bottom - 12:.0f}">no trial has both scores yet</text>'
            return
        for y, text in self.y.marks():
            yield f'<path class="grid" d="M{_LEFT:.0f} {y:.1f}H{right:.0f}"/>'
            yield f'<text x="{_LEFT - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        for x, text in self.x.marks():
            yield f'<path class="grid" d="M{x:.1f} {_TOP:.0f}V{bottom + 5:.0f}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 19:.0f}" text-anchor="middle">{text}</text>'

    def lines(self) -> Iterator[str]:
        """Of two objectives, each stage's front as a staircase: what lies behind it is beaten."""
        if len(self.metrics) > 2:
            return
        leading = [entry for entry in self.scored if entry[0].number in self.on_front]
        for stage in dict.fromkeys(trial.stage for trial, _, _ in leading):
            best_first = sorted(
                (e for e in leading if e[0].stage == stage), key=lambda e: self.metrics[0].rank(e[1]), reverse=True
            )
            places = [(self.x.at(second), self.y.at(first)) for _, first, second in best_first]
            steps = "".join(f"V{y:.1f}H{x:.1f}" for x, y in places[1:])
            path = f"M{places[0][0]:.1f} {places[0][1]:.1f}{steps}"
            yield f'<path class="front{"" if stage == self.first_stage else " final"}" d="{path}"/>'

    def mark(self, trial: Trial, first: float, second: float) -> str:
        kind = "final" if trial.stage != self.first_stage else str(trial.state).lower()
        leads = trial.number in self.on_front
        r = _RADIUS * (1.25 if leads else 1.0)
        shape = f"M{-r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
        if kind == "final":
            shape = f"M0 {-1.4 * r}L{1.4 * r} 0L0 {1.4 * r}L{-1.4 * r} 0Z"
        elif kind == "stopped":
            shape = f"M{-0.8 * r:.1f} {-0.8 * r:.1f}h{1.6 * r:.1f}v{1.6 * r:.1f}h{-1.6 * r:.1f}Z"
        said = ", ".join(f"{m.name} {number(v)}" for m, v in zip(self.metrics, (first, second), strict=False))
        said += ", on the front" if leads else ""
        if trial.number in self.shared:
            kind, said = f"{kind} shared", f"{said}, {SHARED}"
        return (
            f'<path class="score {kind}{" leading" if leads else ""}" data-n="{trial.number}" '
            f'transform="translate({self.x.at(second):.1f} {self.y.at(first):.1f})" d="{shape}">'
            f"<title>trial {trial.number}: {markup(said)}</title></path>"
        )

    def label(self) -> Iterator[str]:
        for trial, first, second in self.scored:
            if trial.number == self.winner:
                place = f'x="{self.x.at(second):.1f}" y="{self.y.at(first) - 12:.1f}"'
                yield f'<text class="end final" {place} text-anchor="middle">★ {trial.number}</text>'

    def legend(self) -> Iterator[LegendItem]:
        if not self.scored:
            return
        if self.shared:
            yield LegendItem('<circle class="score shared" cx="6" cy="0" r="4"/>', 12, f"scored {SHARED}")
        yield LegendItem('<circle class="score" cx="6" cy="0" r="4"/>', 12, "complete")
        by = "both" if len(self.metrics) == 2 else f"all {len(self.metrics)} objectives"
        yield LegendItem('<circle class="score leading" cx="6" cy="0" r="5"/>', 12, f"on the front by {by}")
        if any(t.state == State.STOPPED for t, _, _ in self.scored):
            yield LegendItem('<path class="score stopped" d="M2 -4h8v8h-8Z"/>', 12, "stopped (competes with none)")
        for stage in dict.fromkeys(t.stage for t, _, _ in self.scored if t.stage != self.first_stage):
            shape = "M0 -6L6 0L0 6L-6 0Z"
            yield LegendItem(
                f'<path class="score final" transform="translate(6 0)" d="{shape}"/>', 12, f"stage {stage}"
            )
