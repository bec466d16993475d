"""The logger of model templates, which writes to the trial's log and learning curve."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from nas.core.metric import finite_metrics, plain_metrics

if TYPE_CHECKING:
    from nas.training.trial_run import TrialRun

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


class ModelLogger:
    """Writes lines to standard output, which is the trial's log.

    During a trial each call with metrics is also a report: the next step of the learning curve, with the finite
    metrics. A stopper may stop the trial there; it watches the metric ``score``.
    """

    def __init__(self) -> None:
        self._current = threading.local()

    @contextmanager
    def reporting_to(self, run: TrialRun) -> Iterator[None]:
        """Reports the metrics that this thread logs within the context to the trial."""
        self._current.run = run
        try:
            yield
        finally:
            self._current.run = None

    def define_loss_plot(self) -> None:
        """Defines a plot of ``loss`` against ``epoch``."""
        self.define_plot("Loss Over Epochs", ["loss"], x_axis="epoch")

    def log_loss(self, loss: float, epoch: int) -> None:
        """Logs a point of the plot of ``define_loss_plot``."""
        self.log(loss=loss, epoch=epoch)

    def define_plot(self, title: str, metrics: Sequence[str], x_axis: str | None = None) -> None:
        """Writes the definition of a plot to the log. The points are in the learning curve."""
        print(f"plot {title!r}: {', '.join(metrics)} against {x_axis or 'time'}", flush=True)

    def log(self, msg: object = "", **metrics: float) -> None:
        """Logs a message, metrics, or both.

        Raises:
            TypeError: a metric is not a number.
            TrialStopped: the trial must end; do not catch it.
        """
        found = {name: _number(name, value) for name, value in metrics.items()}
        text = ", ".join(f"{name}={number_text(value)}" for name, value in found.items())
        print(*filter(None, [str(msg), text]), sep=": ", flush=True)
        run: TrialRun | None = getattr(self._current, "run", None)
        finite = {k: v for k, v in finite_metrics(plain_metrics(found)).items() if k not in ("self", "step")}
        if run is not None and finite:
            run.report(len(run.curve) + 1, **finite)


def number_text(value: float) -> str:
    """Returns the shortest text of a number: 0.9 for a float that was converted from ``float32``."""
    if isinstance(value, int) or not math.isfinite(value) or not -_MAX_FLOAT32 <= value <= _MAX_FLOAT32:
        return str(value)
    single = np.float32(value)
    return min(str(value), str(single), key=len) if single == value else str(value)


def _number(name: str, value: object) -> float:
    plain = value.item() if isinstance(value, np.integer | np.floating) else value
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise TypeError(f"metric {name}={value!r:.100} ({type(value).__name__}): must be an int or a float")
    return plain
