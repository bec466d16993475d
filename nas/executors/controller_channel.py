"""The channel between an attempt and the controller, within one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nas.core.errors import TrialDeadlineExceeded, TrialInterrupted, TrialStopped
from nas.core.trial import Trial
from nas.executors.events import Event, ExtraResult, Reported, Resumed, Started, StopKind


class ControllerChannel:
    """Posts an attempt's messages as events.

    Attributes:
        stop_kind: Why the attempt was asked to end; None: it was not. Any thread may set it.
    """

    def __init__(self, trial: Trial, post: Callable[[Event], None], has_stopper: bool) -> None:
        self._trial = trial
        self._post = post
        self._has_stopper = has_stopper
        self.stop_kind: StopKind | None = None

    def started(self) -> None:
        """Posts ``Started``."""
        self._post(Started(self._trial.number, self._trial.attempt, self._trial.slot or 0))

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        """Does nothing: an attempt in this process can't be killed."""

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Posts ``Reported``, waits for the stopper, if any, and raises a requested stop."""
        metrics = dict(metrics)  # stoppers and callbacks may change it
        if self.stop_kind is None:
            if self._has_stopper:
                self._report_and_wait(step, metrics)
            else:
                self._post(Reported(self._trial.number, step, metrics))
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        """Raises a requested stop."""
        raise_if_stopped(self.stop_kind)

    def was_signaled(self) -> bool:
        """Returns False: trials of this process end with it."""
        return False

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]], totals: Mapping[str, Any]) -> None:
        """Posts ``Resumed``, then each report of earlier attempts, without waiting for a decision."""
        self._post(Resumed(self._trial.number, totals["cost"]))
        for step, metrics in curve:
            self._post(Reported(self._trial.number, step, dict(metrics)))

    def extra_result(self, result: str) -> None:
        """Posts ``ExtraResult``."""
        self._post(ExtraResult(self._trial.number, result))

    def committed(self, trial: Trial) -> None:
        """Does nothing: an attempt in this process can't be killed."""

    def _report_and_wait(self, step: int, metrics: Mapping[str, float]) -> None:
        answered = threading.Event()
        decisions: list[bool] = []

        def answer(stop: bool) -> None:
            decisions.append(stop)
            answered.set()

        self._post(Reported(self._trial.number, step, metrics, answer))
        while not answered.wait(0.5) and self.stop_kind is None:
            continue
        if any(decisions):
            self.stop_kind = self.stop_kind or "stop"


def raise_if_stopped(kind: StopKind | None) -> None:
    """Raises the exception by which the problem's code learns of a stop of this kind."""
    if kind == "stop":
        raise TrialStopped("the stopper ended the trial")
    if kind in ("deadline", "kill"):
        raise TrialDeadlineExceeded("the time budget is used up")
    if kind == "interrupt":
        raise TrialInterrupted("the session ends")
