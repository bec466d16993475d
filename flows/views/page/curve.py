"""The scores in the order of the trials, and the best so far, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flows.cli.formatting import markup, number
from flows.views.page.marks import LegendItem
from nas.core.policy import Policy
from nas.core.shared_scores import shared_scores
from nas.core.supernet import supernet_epochs
from nas.core.trial import State, Trial

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_WIDTH, _HEIGHT = 1180.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 70.0, 22.0, 54.0
GREATEST = 1e300
"""Axes end here: differences of greater numbers may be infinite."""
_REACH = 1.5
"""How far below the better three quarters of the scores the axis goes at the most, in heights of these."""
_DIAMOND = "M0 -{0}L{0} 0L0 {0}L-{0} 0Z"
_CROSS = "M-3 -3l6 6m0 -6l-6 6"
_ON_A_PART = "on a part of the validation data"
SHARED = "with shared weights, no accuracy of the architecture"

CURVE_CSS = """
.curve{width:100%;height:auto;display:block}
.curve text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
.curve text{font-variant-numeric:tabular-nums}
.curve .name{fill:var(--ink)}
.curve .grid{stroke:var(--rule);stroke-width:1}
.best{fill:none;stroke:var(--series);stroke-width:2}
.score{fill:var(--series);fill-opacity:.55}
.score.stopped{fill:var(--paper);fill-opacity:1;stroke:var(--series);stroke-width:1.2}
.score.final{fill:var(--accent);fill-opacity:1}
.score.quick{fill-opacity:.12;stroke:var(--series);stroke-width:1.4}
.score.final.quick{stroke:var(--accent)}
.score.shared{fill:none;stroke:var(--series);stroke-width:1.2}
.score.epoch{fill:var(--soft);fill-opacity:1;stroke:none}
.score.beyond{fill:var(--soft);fill-opacity:1;stroke:none}
.score.missing{fill:none;stroke:var(--soft);stroke-width:1.2}
.curve .end{font-weight:600;fill:var(--series)}
.curve .end.final{fill:var(--accent)}
"""


def best_curve(lineage: Lineage, metric: Metric, *, winner: int | None = None) -> tuple[str, list[LegendItem]]:
    """An SVG of every score, and of the best so far of the first stage, and what explains it.

    Args:
        lineage: The trials; the first one's stage is the search stage.
        metric: The score.
        winner: The trial whose score is written beside its mark.
    """
    curve = _Curve(lineage, metric, winner)
    return curve.svg(), list(curve.legend())


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """About ``n`` round numbers from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _is_quick(trial: Trial) -> bool:
    return Policy.QUICK_EVAL in trial.policies


class _Curve:
    def __init__(self, lineage: Lineage, metric: Metric, winner: int | None) -> None:
        self.trials = sorted(lineage, key=lambda trial: trial.number)
        self.metric, self.winner = metric, winner
        self.first_stage = self.trials[0].stage if self.trials else ""
        self.shared, self.epochs = shared_scores(self.trials), supernet_epochs(self.trials)
        self.scored = [(t, v) for t in self.trials if (v := t.value(metric.name)) is not None]
        self.low, self.high = self.bounds()
        self.radius = 4.0 if len(self.trials) <= 100 else 2.8 if len(self.trials) <= 400 else 2.0

    def bounds(self) -> tuple[float, float]:
        """The scores that the axis shows: all, or, where a few are far off, those near the better three quarters."""
        values = sorted((v for _, v in self.scored), key=self.metric.rank)
        if not values:
            return 0.0, 1.0
        worst, quarter, best = values[0], values[len(values) // 4], values[-1]
        span = abs(best - quarter) or abs(best) or 1.0
        limit = quarter - math.copysign(_REACH * span, best - worst)
        if best != worst:
            worst = next(value for value in values if not self.metric.is_better(limit, value))
        if self.shared:  # the scores that count are on the axis, however far from those of shared weights
            worst = min([worst, *(v for t, v in self.scored if t.number not in self.shared)], key=self.metric.rank)
        pad = (abs(best - worst) or span) * 0.05
        return max(-GREATEST, min(best, worst) - pad), min(GREATEST, max(best, worst) + pad)

    def x(self, trial: int) -> float:
        last = max(1, self.trials[-1].number if self.trials else 1)
        return _LEFT + 8 + (_WIDTH - _LEFT - _RIGHT - 16) * trial / last

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - max(0.0, min(1.0, share)))

    def svg(self) -> str:
        name = markup(self.metric.name)
        better = "higher" if self.metric.direction == "maximize" else "lower"
        body = "".join([*self.axes(), *self.best(), *(self.score(t, v) for t, v in self.scored), *self.missing()])
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        return (
            f'<svg class="curve" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="group" '
            f'aria-label="{name} of every trial and the best so far">{body}'
            f'<text class="name" text-anchor="middle" transform="translate(16 {middle:.0f}) rotate(-90)">'
            f"{name} ({better} is better)</text>"
            f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 8:.0f}" text-anchor="middle">'
            "trial (number, in the order proposed)</text></svg>"
        )

    def axes(self) -> Iterator[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        marks = ticks(self.low, self.high)
        decimals = max((len(f"{mark:.12g}".partition(".")[2]) for mark in marks), default=0)
        for mark in marks if self.scored else ():
            y = self.y(mark)
            text = f"{mark:.{decimals}f}" if abs(mark) < 1e6 and decimals < 7 else f"{mark:.4g}"
            yield f'<path class="grid" d="M{_LEFT:.0f} {y:.1f}H{right:.0f}"/>'
            yield f'<text x="{_LEFT - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        yield f'<path class="grid" d="M{_LEFT:.0f} {bottom:.0f}H{right:.0f}"/>'
        if not self.scored:
            yield f'<text x="{_LEFT + 12:.0f}" y="{bottom - 12:.0f}">no trial has a score yet</text>'
        for mark in ticks(0, self.trials[-1].number if self.trials else 1, 10):
            if mark == int(mark):
                x = self.x(int(mark))
                yield f'<path class="grid" d="M{x:.1f} {bottom:.0f}v5"/>'
                yield f'<text x="{x:.1f}" y="{bottom + 18:.0f}" text-anchor="middle">{int(mark)}</text>'

    def best(self) -> Iterator[str]:
        """The best so far of the search stage as steps, and the numbers that matter.

        Scores of shared weights are left out.
        """
        best: float | None = None
        path = ""
        last = 0
        for trial, value in self.scored:
            if trial.stage != self.first_stage or trial.number in self.shared:
                continue
            last = trial.number
            if best is None or self.metric.is_better(value, best):
                path += f"M{self.x(last):.1f} {self.y(value):.1f}" if best is None else ""
                path += f"H{self.x(last):.1f}V{self.y(value):.1f}"
                best = value
        finals = [(t, v) for t, v in self.scored if t.number == self.winner and t.stage != self.first_stage]
        if best is not None:
            yield f'<path class="best" d="{path}H{self.x(last):.1f}"/>'
            if not finals:
                yield f'<text class="end" x="{self.x(last) + 9:.1f}" y="{self.y(best) + 4:.1f}">{number(best)}</text>'
        for trial, value in finals:
            place = f'x="{self.x(trial.number):.1f}" y="{self.y(value) - 11:.1f}"'
            yield f'<text class="end final" {place} text-anchor="middle">★ {number(value)}</text>'

    def score(self, trial: Trial, value: float) -> str:
        r = self.radius
        kind = "final" if trial.stage != self.first_stage else str(trial.state).lower()
        if not self.low <= value <= self.high:
            kind, tip = "beyond", r if value < self.low else -r
            shape = f"M{-r} {-tip}h{2 * r}l{-r} {2 * tip}Z"
        elif kind == "final":
            shape = _DIAMOND.format(1.5 * r)
        elif kind == "stopped":
            shape = f"M{-0.8 * r:.1f} {-0.8 * r:.1f}h{1.6 * r:.1f}v{1.6 * r:.1f}h{-1.6 * r:.1f}Z"
        else:
            shape = f"M{-r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
        said = f"trial {trial.number}: {markup(self.metric.name)} {number(value)}"
        if trial.number in self.shared:
            kind, said = "epoch" if trial.number in self.epochs else f"{kind} shared", f"{said} {SHARED}"
        elif _is_quick(trial):
            kind, said = f"{kind} quick", f"{said}, {_ON_A_PART}"
        return self.mark(trial.number, self.y(value), f"score {kind}", shape, said)

    def mark(self, trial: int, y: float, kind: str, shape: str, said: str) -> str:
        return (
            f'<path class="{kind}" data-n="{trial}" transform="translate({self.x(trial):.1f} {y:.1f})" d="{shape}">'
            f"<title>{said}</title></path>"
        )

    def missing(self) -> Iterator[str]:
        """A cross on the axis for each trial that failed."""
        for trial in self.trials:
            if trial.state == State.FAILED:
                yield self.mark(
                    trial.number, _HEIGHT - _BOTTOM, "score missing", _CROSS, f"trial {trial.number}: failed"
                )

    def legend(self) -> Iterator[LegendItem]:
        if not self.scored:
            return
        alone = [t for t, _ in self.scored if t.number not in self.shared]
        if any(t.stage == self.first_stage for t in alone):
            yield LegendItem('<path class="best" d="M0 4H12V-4H28"/>', 28, f"best so far, stage {self.first_stage}")
        if any(t.number in self.epochs for t, _ in self.scored):
            sample = '<circle class="score epoch" cx="6" cy="0" r="4"/>'
            yield LegendItem(sample, 12, "supernet epoch, a mean of subnets")
        if len(alone) < sum(t.number not in self.epochs for t, _ in self.scored):
            yield LegendItem('<circle class="score shared" cx="6" cy="0" r="4"/>', 12, f"scored {SHARED}")
        in_first = [t for t in alone if t.stage == self.first_stage and t.state == State.COMPLETE]
        for is_quick in sorted({_is_quick(t) for t in in_first}):
            sample = f'<circle class="score{" quick" if is_quick else ""}" cx="6" cy="0" r="4"/>'
            yield LegendItem(sample, 12, f"complete{f', {_ON_A_PART}' if is_quick else ''}")
        if any(t.state == State.STOPPED for t, _ in self.scored):
            yield LegendItem('<path class="score stopped" d="M2 -4h8v8h-8Z"/>', 12, "stopped (the last score reported)")
        later = ((t.stage, _is_quick(t)) for t in alone if t.stage != self.first_stage)
        for stage, is_quick in dict.fromkeys(later):
            shape = f'transform="translate(6 0)" d="{_DIAMOND.format(6)}"'
            sample = f'<path class="score final{" quick" if is_quick else ""}" {shape}/>'
            yield LegendItem(sample, 12, f"stage {stage}{f', {_ON_A_PART}' if is_quick else ''}")
        if any(not self.low <= v <= self.high for _, v in self.scored):
            yield LegendItem('<path class="score beyond" d="M1 -4h10l-5 8Z"/>', 12, "beyond the axis")
        if any(t.state == State.FAILED for t in self.trials):
            yield LegendItem(
                f'<path class="score missing" transform="translate(6 0)" d="{_CROSS}"/>', 12, "failed, no score"
            )
