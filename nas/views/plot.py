"""A plot of a search's scores with Matplotlib, which is an optional extra."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from nas.core.errors import ConfigurationError
from nas.core.ranking import stage_competitors
from nas.core.shared_scores import shared_scores
from nas.views.trial_summary import SHARED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nas.core.lineage import Lineage
    from nas.core.metric import Metric
    from nas.core.trial import Trial


def plot_scores(lineage: Lineage, metric: Metric, ax: Axes | None = None) -> Axes:
    """Draws a point for each score, by stage, and the best so far as a line.

    The line follows the first stage: scores of later stages, which train longer, can't be compared with it. It leaves
    out scores of shared weights, whose points are drawn apart, trials of older code, and those ended by a stopper.
    Trials of ``more_epochs`` are left out, too.

    Args:
        lineage: The trials.
        metric: The metric on the vertical axis.
        ax: The axes to draw on; by default new ones.

    Raises:
        ConfigurationError: Matplotlib is not installed.
    """
    ax = _new_axes() if ax is None else ax
    shared = shared_scores(lineage)
    scored = [t for t in sorted(lineage, key=lambda trial: trial.number) if t.value(metric.name) is not None]
    by_kind: dict[str, list[Trial]] = {}
    for trial in scored:
        by_kind.setdefault(trial.stage + SHARED * (trial.number in shared), []).append(trial)
    for kind, trials in by_kind.items():
        ax.scatter([t.number for t in trials], [t.metrics[metric.name] for t in trials], label=kind, s=24)
    first = scored[0].stage if scored else ""
    searched = [trial for trial in lineage if trial.more_epochs is None]
    compared = sorted(stage_competitors(searched, first, metric), key=lambda trial: trial.number)
    if compared:
        better = max if metric.direction == "maximize" else min
        best = [*accumulate((t.metrics[metric.name] for t in compared), better)]
        ax.step([t.number for t in compared], best, where="post", label="best so far")
    if scored:
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
