"""The scores in the order of the trials, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nas.core.policy import Policy
from nas.core.ranking import stage_competitors
from nas.core.shared_scores import shared_scores
from nas.core.supernet import supernet_epochs
from nas.core.trial import State, Trial
from nas.views.formatting import number
from nas.views.page.chart import GREATEST, WITH_SHARED_WEIGHTS, Chart, Frame, Mark, Text, ticks
from nas.views.page.dots import MAX_MARKS, dots
from nas.views.page.legend import LegendItem, Path, score_item
from nas.views.page.shapes import circle, cross, diamond, square, triangle

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_FRAME = Frame(width=1180, height=320, left=78, right=1110, top=22, bottom=266)
_REACH = 1.5
"""Limit of the axis below the better three quarters of the scores, in heights of these."""
_ON_A_PART = ", on a part of the validation data"


def best_curve(lineage: Lineage, metric: Metric, *, winner: int | None = None) -> Chart:
    """Returns a chart of every score, and of the best so far of the first stage.

    Args:
        lineage: The trials; the first one's stage is the search stage.
        metric: The score.
        winner: The trial whose score is written beside its mark.
    """
    return _Curve(lineage, metric, winner).chart()


def _is_quick(trial: Trial) -> bool:
    return Policy.QUICK_EVAL in trial.policies


class _Curve:
    def __init__(self, lineage: Lineage, metric: Metric, winner: int | None) -> None:
        self.trials = sorted(lineage, key=lambda trial: trial.number)
        self.metric, self.winner = metric, winner
        self.first_stage = self.trials[0].stage if self.trials else ""
        self.last = self.trials[-1].number if self.trials else 1
        self.shared, self.epochs = shared_scores(self.trials), supernet_epochs(self.trials)
        searched = [trial for trial in self.trials if trial.more_epochs is None]
        self.competing = stage_competitors(searched, self.first_stage, metric)
        self.scored = [(t, v) for t in self.trials if (v := t.value(metric.name)) is not None]
        self.low, self.high = self.bounds()
        self.radius = 4.0 if len(self.trials) <= 100 else 2.8 if len(self.trials) <= 400 else 2.0

    def bounds(self) -> tuple[float, float]:
        """Returns the ends of the axis.

        If a few scores are far off, they are those of the better three quarters.
        """
        values = sorted((v for _, v in self.scored), key=self.metric.rank)
        if not values:
            return 0.0, 1.0
        worst, quarter, best = values[0], values[len(values) // 4], values[-1]
        span = abs(best - quarter) or abs(best) or 1.0
        limit = quarter - math.copysign(_REACH * span, best - worst)
        if best != worst:
            worst = next(value for value in values if not self.metric.is_better(limit, value))
        if self.shared:  # the scores that count are on the axis, also if they are far from those of shared weights
            worst = min([worst, *(v for t, v in self.scored if t.number not in self.shared)], key=self.metric.rank)
        pad = (abs(best - worst) or span) * 0.05
        return max(-GREATEST, min(best, worst) - pad), min(GREATEST, max(best, worst) + pad)

    def x(self, trial: int) -> float:
        return _FRAME.left + 8 + (_FRAME.right - _FRAME.left - 16) * trial / max(1, self.last)

    def y(self, value: float) -> float:
        return _FRAME.up((value - self.low) / (self.high - self.low))

    def chart(self) -> Chart:
        better = "higher" if self.metric.direction == "maximize" else "lower"
        scores = [value for value in ticks(self.low, self.high) if self.scored]
        numbers = [int(mark) for mark in ticks(0, self.last, 10) if mark == int(mark)]
        steps = "".join(f"M{self.x(n):.1f} {_FRAME.bottom}v5" for n in numbers)
        line, notes = self.best()
        return Chart(
            frame=_FRAME,
            label=f"{self.metric.name} of every trial and the best so far",
            grid=_FRAME.lines([*map(self.y, scores), _FRAME.bottom]) + steps,
            ticks=(*self.score_texts(scores), *(Text(self.x(n), _FRAME.bottom + 18, str(n)) for n in numbers)),
            lines=(*self.dots(), *line),
            marks=(*(self.score(t, v) for t, v in self.scored if self.has_mark(t)), *self.missing()),
            notes=notes,
            x_name="trial (number, in the order proposed)",
            y_name=f"{self.metric.name} ({better} is better)",
            legend=tuple(self.legend()),
        )

    def score_texts(self, values: list[float]) -> Iterator[Text]:
        """Yields the texts of the axis."""
        yield from _FRAME.texts(values, self.y)
        if not self.scored:
            yield Text(_FRAME.left + 12, _FRAME.bottom - 12, "no trial has a score yet", "start")

    def has_mark(self, trial: Trial) -> bool:
        """Returns whether a trial has its own mark: not if the first stage has very many."""
        return len(self.trials) <= MAX_MARKS or trial.stage != self.first_stage

    def dots(self) -> Iterator[Path]:
        """Yields the scores and failures of trials without a mark."""
        scored = [(self.x(t.number), self.y(v)) for t, v in self.scored if not self.has_mark(t)]
        failed = [t for t in self.trials if t.state == State.FAILED and not self.has_mark(t)]
        if scored or failed:
            yield dots("missing", ((self.x(t.number), _FRAME.bottom) for t in failed))
            yield dots("", scored)

    def best(self) -> tuple[tuple[Path, ...], tuple[Text, ...]]:
        """Returns the best so far of the search stage as steps, and the scores beside it.

        Only trials that compete count.
        """
        searched = [(trial, trial.metrics[self.metric.name]) for trial in self.competing]
        finals = [(t, v) for t, v in self.scored if t.number == self.winner and t.stage != self.first_stage]
        notes = [Text(self.x(t.number), self.y(v) - 11, f"★ {number(v)}", kind="end final") for t, v in finals]
        if not searched:
            return (), tuple(notes)
        first, best = searched[0]
        path = f"M{self.x(first.number):.1f} {self.y(best):.1f}"
        for trial, value in searched[1:]:
            if self.metric.is_better(value, best):
                path += f"H{self.x(trial.number):.1f}V{self.y(value):.1f}"
                best = value
        end = self.x(searched[-1][0].number)
        if not finals:
            notes.append(Text(end + 9, self.y(best) + 4, number(best), "start", "end"))
        return (Path("best", f"{path}H{end:.1f}"),), tuple(notes)

    def score(self, trial: Trial, value: float) -> Mark:
        r = self.radius
        kind = "final" if trial.stage != self.first_stage else str(trial.state).lower()
        if not self.low <= value <= self.high:
            kind, shape = "beyond", triangle(r, is_up=value > self.high)
        elif kind == "final":
            shape = diamond(1.5 * r)
        else:
            shape = square(0.8 * r) if kind == "stopped" else circle(r)
        title = f"{self.metric.name} {number(value)}"
        if trial.number in self.shared:
            kind = "epoch" if trial.number in self.epochs else f"{kind} shared"
            title += f" {WITH_SHARED_WEIGHTS}"
        elif _is_quick(trial):
            kind, title = f"{kind} quick", f"{title}{_ON_A_PART}"
        return self.mark(trial, self.y(value), kind, shape, title)

    def mark(self, trial: Trial, y: float, kind: str, shape: str, title: str) -> Mark:
        place = f"{self.x(trial.number):.1f} {y:.1f}"
        return Mark(trial.number, kind, place, shape, f"trial {trial.number}: {title}")

    def missing(self) -> Iterator[Mark]:
        """Yields a cross on the axis for each trial that failed."""
        for trial in self.trials:
            if trial.state == State.FAILED and self.has_mark(trial):
                yield self.mark(trial, _FRAME.bottom, "missing", cross(3), "failed")

    def legend(self) -> Iterator[LegendItem]:
        if not self.scored:
            return
        alone = [t for t, _ in self.scored if t.number not in self.shared]
        in_first = [t for t in alone if t.stage == self.first_stage]
        if self.competing:
            yield LegendItem(f"best so far, stage {self.first_stage}", 28, (Path("best", "M0 4H12V-4H28"),))
        if any(t.number in self.epochs for t, _ in self.scored):
            yield score_item("epoch", "supernet epoch, a mean of subnets")
        if len(alone) < sum(t.number not in self.epochs for t, _ in self.scored):
            yield score_item("shared", f"scored {WITH_SHARED_WEIGHTS}")
        for is_quick in sorted({_is_quick(t) for t in in_first if t.state == State.COMPLETE}):
            yield score_item("quick" if is_quick else "", f"complete{_ON_A_PART if is_quick else ''}")
        if any(t.state == State.STOPPED for t, _ in self.scored):
            yield score_item("stopped", "stopped (the last score reported)", square(4))
        for stage, is_quick in dict.fromkeys((t.stage, _is_quick(t)) for t in alone if t.stage != self.first_stage):
            kind, part = ("final quick", _ON_A_PART) if is_quick else ("final", "")
            yield score_item(kind, f"stage {stage}{part}", diamond(6))
        if any(not self.low <= v <= self.high for _, v in self.scored):
            yield score_item("beyond", "beyond the axis", triangle(4.5, is_up=False))
        if any(t.state == State.FAILED for t in self.trials):
            yield score_item("missing", "failed, no score", cross(3))
