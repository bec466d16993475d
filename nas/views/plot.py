"""A plot of a search's scores with Matplotlib, which is an optional extra."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from nas.core.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nas.core.lineage import Lineage
    from nas.core.metric import Metric


def plot_scores(lineage: Lineage, metric: Metric, ax: Axes | None = None) -> Axes:
    """Draws a point for each score, by stage, and the best so far as a line.

    The line follows the first stage: scores of later stages, which train longer, can't be compared with it.

    Args:
        lineage: The trials.
        metric: The metric on the vertical axis.
        ax: The axes to draw on; by default new ones.

    Raises:
        ConfigurationError: Matplotlib is not installed.
    """
    ax = _new_axes() if ax is None else ax
    by_stage: dict[str, list[tuple[int, float]]] = {}
    for trial in sorted(lineage, key=lambda trial: trial.number):
        if (value := trial.value(metric.name)) is not None:
            by_stage.setdefault(trial.stage, []).append((trial.number, value))
    for stage, points in by_stage.items():
        ax.scatter([number for number, _ in points], [value for _, value in points], label=stage, s=24)
    if by_stage:
        numbers, values = zip(*next(iter(by_stage.values())), strict=True)
        better = max if metric.direction == "maximize" else min
        ax.step(numbers, [*accumulate(values, better)], where="post", label="best so far")
        ax.legend()
    ax.set_xlabel("trial")
    ax.set_ylabel(metric.name)
    return ax


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigurationError('plot: needs Matplotlib. Install it: pip install "heirloom-nas[notebook]"') from error
    axes: Axes = pyplot.subplots(figsize=(7, 3.5))[1]
    return axes
