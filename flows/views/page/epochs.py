"""The metrics that supernet epochs report, epoch by epoch, as a small chart each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flows.cli.formatting import markup, number
from flows.views.page.curve import GREATEST, ticks
from nas.core.metric import is_finite
from nas.core.supernet import epoch_of
from nas.core.trial import Trial

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_WIDTH, _HEIGHT = 300.0, 140.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 12.0, 10.0, 24.0


def epoch_charts(lineage: Lineage, metric: Metric) -> list[tuple[str, str]]:
    """Each metric of supernet epochs as its title and an SVG; the search's own metric comes first.

    Metrics known before training are left out. The newest trial of an epoch counts.
    """
    epochs: dict[int, Trial] = {}
    for trial in sorted(lineage, key=lambda trial: trial.number):
        if trial.metrics and (epoch := epoch_of(trial.point)) is not None:
            epochs[epoch] = trial
    names = dict.fromkeys([metric.name, *(name for trial in epochs.values() for name in trial.metrics)])
    charts = []
    for name in names:
        values = {
            epoch: trial
            for epoch, trial in sorted(epochs.items())
            if name not in trial.static_metrics and is_finite(trial.metrics.get(name, float("nan")))
        }
        title = f"{name} (mean of subnets)" if name == metric.name else name
        charts += [(title, _Chart(name, values).svg())] if values else []
    return charts


class _Chart:
    """One line over the epochs, with a mark for each trial."""

    def __init__(self, name: str, trials: Mapping[int, Trial]) -> None:
        self.name, self.trials = name, trials
        values = [max(-GREATEST, min(GREATEST, trial.metrics[name])) for trial in trials.values()]
        pad = 0.0 if min(values) < max(values) else abs(values[0]) / 2 or 1.0
        self.low, self.high = min(values) - pad, max(values) + pad
        self.first, self.last = min(trials), max(trials)

    def x(self, epoch: int) -> float:
        share = (epoch - self.first) / max(1, self.last - self.first)
        return _LEFT + 6 + share * (_WIDTH - _LEFT - _RIGHT - 12)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - max(0.0, min(1.0, share)) * (_HEIGHT - _TOP - _BOTTOM)

    def svg(self) -> str:
        line = "L".join(f"{self.x(epoch):.1f} {self.y(t.metrics[self.name]):.1f}" for epoch, t in self.trials.items())
        marks = (self.mark(epoch, trial) for epoch, trial in self.trials.items())
        return (
            f'<svg class="curve" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="group" '
            f'aria-label="{markup(self.name)} by supernet epoch">{"".join(self.axes())}'
            f'<path class="best" d="M{line}"/>{"".join(marks)}</svg>'
        )

    def mark(self, epoch: int, trial: Trial) -> str:
        value = trial.metrics[self.name]
        said = f"epoch {epoch}, trial {trial.number}: {markup(self.name)} {number(value)}"
        return (
            f'<circle class="score epoch" data-n="{trial.number}" cx="{self.x(epoch):.1f}" cy="{self.y(value):.1f}" '
            f'r="3.2"><title>{said}</title></circle>'
        )

    def axes(self) -> Iterator[str]:
        for value in ticks(self.low, self.high, 3):
            y = self.y(value)
            yield f'<path class="grid" d="M{_LEFT:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}"/>'
            yield f'<text x="{_LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        for epoch in ticks(self.first, self.last, 6):
            if epoch == int(epoch):
                text = f'x="{self.x(int(epoch)):.1f}" y="{_HEIGHT - 7:.0f}" text-anchor="middle"'
                yield f"<text {text}>{int(epoch)}</text>"
