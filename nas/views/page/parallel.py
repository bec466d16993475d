"""Parallel coordinates: an axis for each parameter and the score, a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from nas.views.formatting import number
from nas.views.page.chart import Chart, Frame, Mark, Text, limited
from nas.views.page.legend import LegendItem, ramp_item
from nas.views.page.palette import ScoreScale
from nas.views.page.parameters import Parameter, Value, varying_parameters

if TYPE_CHECKING:
    from nas.core.metric import Metric
    from nas.core.trial import Trial

MAX_LINES = 400
MAX_AXES = 11
MAX_OPTIONS = 12
"""Different texts of a parameter on an axis; one with more has none."""
_FRAME = Frame(width=1180, height=364, left=70, right=1110, top=56, bottom=316)
_NONE = _FRAME.bottom + 18
_LOG_FROM = 100.0
_MAX_NAME = 18
_LEAST_DISTANCE = 14.0  # of two texts on an axis


def parallel_coordinates(trials: Sequence[Trial], metric: Metric, order: Sequence[str]) -> Chart | None:
    """Returns the chart, or None if no parameter varies.

    Args:
        trials: Trials with a score, at most ``MAX_LINES``.
        metric: The score: the last axis, and the color of the lines.
        order: Names of parameters in the order of their axes; others follow.
    """
    place = {name: i for i, name in enumerate(order)}
    parameters = [p for p in varying_parameters(trials) if p.is_numeric or len(p.options) <= MAX_OPTIONS]
    parameters.sort(key=lambda parameter: place.get(parameter.name, len(place)))
    if not parameters:
        return None
    score = Parameter(metric.name, tuple(limited(trial.metrics[metric.name]) for trial in trials))
    return _Coordinates(trials, metric, [*parameters[:MAX_AXES], score]).chart()


def best_and_newest(trials: Sequence[Trial], metric: Metric) -> list[Trial]:
    """Returns at most ``MAX_LINES`` of these trials: the best half and the newest half."""
    ranked = sorted(trials, key=lambda trial: -metric.rank(trial.metrics[metric.name]))
    chosen = {trial.number: trial for trial in ranked[: MAX_LINES // 2]}
    newest = sorted(trials, key=lambda trial: -trial.number)
    for trial in newest:
        if len(chosen) >= MAX_LINES:
            break
        chosen[trial.number] = trial
    return list(chosen.values())


class _Axis:
    """Heights of one parameter's values, on a logarithmic axis if they span two powers of ten."""

    def __init__(self, parameter: Parameter, x: float) -> None:
        self.parameter, self.x = parameter, x
        self.options = parameter.options
        numbers = [value for value in self.options if isinstance(value, float)]
        self.is_log = parameter.is_numeric and numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_FROM
        self.places = {} if parameter.is_numeric else {option: float(i) for i, option in enumerate(self.options)}
        ends = [self.scaled(option) for option in (self.options[0], self.options[-1])]
        self.low, self.high = ends[0], ends[1]

    def scaled(self, value: Value) -> float:
        if isinstance(value, str) or self.places:
            return self.places[value]
        return math.log10(value) if self.is_log else value / 2  # halves: the difference of two ends may be infinite

    def y(self, value: Value | None) -> float:
        if value is None:
            return _NONE
        return _FRAME.up((self.scaled(value) - self.low) / (self.high - self.low) if self.high > self.low else 0.5)

    def texts(self) -> Iterator[Text]:
        """Yields the texts of few options, or of the ends, and ``none`` below the axis."""
        heights = [self.y(option) for option in self.options]
        is_dense = any(above - below < _LEAST_DISTANCE for above, below in pairwise(heights))
        shown = [self.options[0], self.options[-1]] if is_dense else self.options
        for option in shown:
            text = option if isinstance(option, str) else number(int(option) if option.is_integer() else option)
            yield Text(self.x + 5, self.y(option) + 4, _short(text), "start")
        if None in self.parameter.values:
            yield Text(self.x + 5, _NONE + 4, "none", "start")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"…{text[1 - _MAX_NAME :]}"


class _Coordinates:
    def __init__(self, trials: Sequence[Trial], metric: Metric, parameters: Sequence[Parameter]) -> None:
        self.trials, self.metric = trials, metric
        step = (_FRAME.right - _FRAME.left) / (len(parameters) - 1)
        self.axes = [_Axis(parameter, _FRAME.left + step * i) for i, parameter in enumerate(parameters)]
        scale = ScoreScale.of((trial.metrics[metric.name] for trial in trials), metric)
        assert scale is not None  # a varying parameter has two trials
        self.scale = scale

    def chart(self) -> Chart:
        grid = "".join(f"M{axis.x:.1f} {_FRAME.top}V{_FRAME.bottom}" for axis in self.axes)
        names = (
            Text(axis.x, _FRAME.top - (34 if i % 2 else 16), _short(axis.parameter.name), kind="name")
            for i, axis in enumerate(self.axes)
        )
        return Chart(
            frame=_FRAME,
            label=f"Parameters and {self.metric.name} of each trial",
            grid=grid,
            ticks=(),
            lines=(),
            marks=tuple(self.marks()),
            notes=(*names, *(text for axis in self.axes for text in axis.texts())),
            legend=tuple(self.legend()),
        )

    def marks(self) -> Iterator[Mark]:
        """Yields a line for each trial, the best last."""
        entries = [(trial.metrics[self.metric.name], place, trial) for place, trial in enumerate(self.trials)]
        entries.sort(key=lambda entry: (self.metric.rank(entry[0]), entry[1]))
        for score, place, trial in entries:
            points = (f"{axis.x:.1f} {axis.y(axis.parameter.values[place]):.1f}" for axis in self.axes)
            title = f"trial {trial.number}: {self.metric.name} {number(score)}"
            yield Mark(trial.number, f"thread q{self.scale.step(score)}", "0 0", f"M{'L'.join(points)}", title)

    def legend(self) -> Iterator[LegendItem]:
        yield ramp_item(self.scale, self.metric.name)
