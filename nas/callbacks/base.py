"""The base class of callbacks, which observe a search in the driver's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nas.core.budget import Budget
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInfo:
    """A search whose session starts.

    Attributes:
        name: The search's name.
        url: The search's folder, without credentials.
        id: A digest that no other search has, also no later one in the same folder. It is the same in each session.
        session: The number of the session, from 1. A resumed search has a new session.
        metrics: The problem's metrics; the first ranks trials.
        stages: The names of the stages, in order.
        budget: The limits of the search stage.
        identity: Problem, tuner, policy plan, seed and so on, as in ``search.json``.
        lineage: The trials of earlier sessions. Those that have finished get no further calls.
        log_dir: A local folder of the search for loggers' files, as an absolute path; it may not exist. A trial finds
            its own folder in it as ``run.log_dir``.
    """

    name: str
    url: str
    id: str
    session: int
    metrics: tuple[Metric, ...]
    stages: tuple[str, ...]
    budget: Budget
    identity: Mapping[str, Any]
    lineage: Lineage
    log_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The end of a session.

    Attributes:
        lineage: All trials, those of earlier sessions included.
        winner: The best finalist so far, or None if no trial has a score.
        tests: Test scores by number of the finalist: ``{"trial": number, "metrics": {...}}``; empty after an error.
        error: Why the session ended early (Ctrl-C, an error) in one line; None if it did all its work.
    """

    lineage: Lineage
    winner: Trial | None
    tests: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    error: str | None = None


class Callback:
    """Observes a search in the driver's process; every method does nothing by default.

    The calls of one callback never overlap. An exception in ``on_search_start`` ends the search before its first trial.
    A later one does not: the first is shown as a warning, and the search goes on.

    Attributes:
        runs_in_background: Whether the methods after ``on_search_start`` run on a thread of their own, in order. Set it
            if they may take longer than some milliseconds: the search waits for the others.
    """

    runs_in_background: ClassVar[bool] = False

    def on_search_start(self, search: SearchInfo) -> None:
        """Handles the start of a session, before its first trial.

        Raises:
            ConfigurationError: the callback can't work. The search ends with this line and exit status 2.
        """

    def on_trial_start(self, trial: Trial) -> None:
        """Handles the start of an attempt.

        A lost attempt is repeated: the method is called again with a greater ``trial.attempt``.
        """

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Handles the metrics that a running trial reported after ``step``.

        An attempt that continues from a resume point first repeats the reports that lie before it.

        Args:
            trial: The trial; ``trial.curve`` has the reports of this attempt.
            step: The step, for example an epoch.
            metrics: The reported metrics.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Handles a trial that is COMPLETE, STOPPED or FAILED.

        Its record is durable: metrics, the whole curve, donor, inherited share. A trial that could not start has no
        ``on_trial_start``.
        """

    def on_search_end(self, outcome: SearchOutcome) -> None:
        """Handles the end of a session, also after an error or Ctrl-C."""
