"""The metrics of a trial that are known before training, on workers and in simulations."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from nas.core.metric import finite_metrics, plain_metrics
from nas.core.supernet import is_epoch
from nas.core.tracebacks import error_line, raise_ctrl_c, traceback_of
from nas.core.trial import Trial

if TYPE_CHECKING:
    from nas.training.runtime_context import TrainableProblem

logger = logging.getLogger(__name__)


def read_static_metrics(
    problem: TrainableProblem,
    trial: Trial,
    measure: Callable[[Mapping[str, float]], Iterable[Mapping[str, float]]] = lambda known: (),
    note_error: Callable[[BaseException], None] = lambda error: None,
) -> tuple[dict[str, float], str]:
    """Returns what is known of a trial's point before training, and an error's line.

    The line is empty without an error, which is logged. It makes the trial FAILED only if a declared metric is still
    missing after training. A supernet epoch has no such metrics, since it stands for many networks.

    Args:
        problem: The problem.
        trial: The trial. Its proposal may have proxies, which are known, too.
        measure: Yields further metrics. It gets those that are known so far, to which each of them is added.
        note_error: Called with an error.
    """
    if is_epoch(trial):
        return {}, ""
    known, line = dict(trial.proposal.proxies), ""
    try:
        known |= plain_metrics(problem.static_metrics(copy.deepcopy(trial.point)))
        for found in measure(known):
            known |= plain_metrics(found)
    except BaseException as error:
        raise_ctrl_c(error)
        note_error(error)
        line = error_line(error)
        logger.warning("static metrics of the point failed: %s", traceback_of(error))
    return finite_metrics(known), line


def known_metrics(problem: TrainableProblem, trial: Trial) -> dict[str, float]:
    """Returns the declared metrics that are known without training."""
    known = trial.static_metrics
    return {metric.name: known[metric.name] for metric in problem.metrics if metric.name in known}


def missing_metrics(problem: TrainableProblem, trial: Trial, metrics: Mapping[str, float]) -> list[str]:
    """Returns the declared metrics that a trial lacks; a supernet epoch needs only the first."""
    declared = problem.metrics[:1] if is_epoch(trial) else problem.metrics
    return [metric.name for metric in declared if metric.name not in metrics]
