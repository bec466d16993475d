"""The metrics that supernet epochs report, epoch by epoch, as a small chart each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nas.core.metric import is_finite
from nas.core.supernet import epoch_of
from nas.core.trial import Trial
from nas.views.formatting import number
from nas.views.page.chart import Chart, Frame, Mark, Text, limited, ticks
from nas.views.page.legend import Path
from nas.views.page.shapes import circle

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

_FRAME = Frame(width=300, height=140, left=48, right=288, top=10, bottom=116)


def epoch_charts(lineage: Lineage, metric: Metric) -> list[tuple[str, Chart]]:
    """Returns a title and a chart for each metric of supernet epochs.

    The search's own metric comes first. Metrics known before training are left out.
    The newest trial of an epoch counts.
    """
    epochs: dict[int, Trial] = {}
    for trial in sorted(lineage, key=lambda trial: trial.number):
        if trial.metrics and (epoch := epoch_of(trial.point)) is not None:
            epochs[epoch] = trial
    names = dict.fromkeys([metric.name, *(name for trial in epochs.values() for name in trial.metrics)])
    charts = []
    for name in names:
        reported = {epoch: trial for epoch, trial in sorted(epochs.items()) if _reports(trial, name)}
        title = f"{name} (mean of subnets)" if name == metric.name else name
        charts += [(title, _Chart(name, reported).chart())] if reported else []
    return charts


def _reports(trial: Trial, name: str) -> bool:
    return name not in trial.static_metrics and is_finite(trial.metrics.get(name, float("nan")))


class _Chart:
    """One line over the epochs, with a mark for each trial."""

    def __init__(self, name: str, trials: Mapping[int, Trial]) -> None:
        self.name, self.trials = name, trials
        values = [limited(trial.metrics[name]) for trial in trials.values()]
        pad = 0.0 if min(values) < max(values) else abs(values[0]) / 2 or 1.0
        self.low, self.high = min(values) - pad, max(values) + pad
        self.first, self.last = min(trials), max(trials)

    def x(self, epoch: int) -> float:
        share = (epoch - self.first) / max(1, self.last - self.first)
        return _FRAME.left + 6 + share * (_FRAME.right - _FRAME.left - 12)

    def y(self, value: float) -> float:
        return _FRAME.up((value - self.low) / (self.high - self.low))

    def place(self, epoch: int, trial: Trial) -> str:
        return f"{self.x(epoch):.1f} {self.y(trial.metrics[self.name]):.1f}"

    def chart(self) -> Chart:
        values = ticks(self.low, self.high, 3)
        numbers = [int(epoch) for epoch in ticks(self.first, self.last, 6) if epoch == int(epoch)]
        line = "L".join(self.place(epoch, trial) for epoch, trial in self.trials.items())
        return Chart(
            frame=_FRAME,
            label=f"{self.name} by supernet epoch",
            grid=_FRAME.lines(map(self.y, values)),
            ticks=(
                *_FRAME.texts(values, self.y),
                *(Text(self.x(epoch), _FRAME.height - 7, str(epoch)) for epoch in numbers),
            ),
            lines=(Path("best", f"M{line}"),),
            marks=tuple(self.mark(epoch, trial) for epoch, trial in self.trials.items()),
        )

    def mark(self, epoch: int, trial: Trial) -> Mark:
        title = f"epoch {epoch}, trial {trial.number}: {self.name} {number(trial.metrics[self.name])}"
        return Mark(trial.number, "epoch", self.place(epoch, trial), circle(3.2), title)
