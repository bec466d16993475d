"""Callbacks that record their calls or break, and a problem with a curve."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import ClassVar

from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.core.trial import Trial
from nas.training.trial_run import TrialRun
from tests.support.problems import ScoreProblem


class CurveProblem(ScoreProblem):
    """Reports a third, two thirds and all of its score, and inherits."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Reports after steps 1 to 3."""
        metrics = super().train(run)
        for step in (1, 2, 3):
            run.report(step, score=metrics["score"] * step / 3)
        return metrics


class FolderProblem(ScoreProblem):
    """Writes a note into the trial's folder for loggers."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Writes the trial's name and its search's."""
        (run.log_dir / "note.txt").write_text(f"{run.name} of {run.search}")
        return super().train(run)


class RecordingCallback(Callback):
    """Records its calls, and the threads that made them."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.searches: list[SearchInfo] = []
        self.outcomes: list[SearchOutcome] = []
        self.trials: list[Trial] = []
        self.threads: set[str] = set()

    def _add(self, *call: object) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def on_search_start(self, search: SearchInfo) -> None:
        self._add("search start")
        self.searches.append(search)

    def on_trial_start(self, trial: Trial) -> None:
        self._add("start", trial.number, trial.attempt)

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        self._add("report", trial.number, step, metrics["score"])

    def on_trial_end(self, trial: Trial) -> None:
        self._add("end", trial.number, trial.state.value)
        self.trials.append(trial)

    def on_search_end(self, outcome: SearchOutcome) -> None:
        self._add("search end")
        self.outcomes.append(outcome)


class BackgroundCallback(RecordingCallback):
    """Records its calls on a thread of its own, slowly."""

    runs_in_background: ClassVar[bool] = True

    def on_trial_start(self, trial: Trial) -> None:
        time.sleep(0.05)
        super().on_trial_start(trial)


class BrokenCallback(Callback):
    """Raises in every method but the first."""

    def on_trial_start(self, trial: Trial) -> None:
        raise OSError(f"no server for trial {trial.number}")

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        raise KeyError(step)

    def on_trial_end(self, trial: Trial) -> None:
        raise ValueError

    def on_search_end(self, outcome: SearchOutcome) -> None:
        raise RuntimeError("at the end")


class BrokenBackgroundCallback(BrokenCallback):
    """The same, on a thread of its own."""

    runs_in_background: ClassVar[bool] = True
