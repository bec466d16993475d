"""The base class of callbacks that write each trial to an experiment tracker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Set
from typing import ClassVar

from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.core.shared_scores import has_shared_score
from nas.core.trial import Trial


class LoggerCallback(Callback, ABC):
    """Writes one run for each trial, so that the tracker shows what the records say.

    * A run that was left unfinished is replaced when the trial's next attempt starts.
    * Reports that an error has kept from the tracker are written when the trial ends.
    * A session first writes the finished trials of earlier sessions that the tracker lacks.
    """

    runs_in_background: ClassVar[bool] = True

    def __init__(self) -> None:
        self._search: SearchInfo | None = None
        self._unwritten: deque[Trial] = deque()  # that are still to write
        self._steps: dict[int, set[int]] = {}  # that are logged, of open runs
        self._finished: dict[int, Trial] = {}

    @abstractmethod
    def setup(self, search: SearchInfo) -> None:
        """Connects to the tracker, on the controller's thread.

        Raises:
            ConfigurationError: that is not possible.
        """

    @abstractmethod
    def logged_trials(self) -> Set[int]:
        """Returns the trials of earlier sessions whose runs are complete."""

    @abstractmethod
    def log_trial_start(self, trial: Trial) -> None:
        """Opens the run of a trial, and replaces an earlier one."""

    @abstractmethod
    def log_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Writes reported metrics to the trial's open run."""

    @abstractmethod
    def log_trial_end(self, trial: Trial) -> None:
        """Writes the result to the trial's open run, and closes it as complete."""

    @abstractmethod
    def log_search_end(self, outcome: SearchOutcome) -> None:
        """Writes the result of the session; leaves open runs unfinished."""

    def result_fields(self, trial: Trial) -> dict[str, str]:
        """Returns donor, state and ``shared_mark``."""
        donor = "none" if trial.donor is None else str(trial.donor)
        return {"donor": donor, "state": str(trial.state), **self.shared_mark(trial)}

    def shared_mark(self, trial: Trial) -> dict[str, str]:
        """Returns ``shared_score`` if the score is one of shared weights."""
        return {"shared_score": "true"} if self.has_shared_score(trial) else {}

    def has_shared_score(self, trial: Trial) -> bool:
        """Returns whether the score is one of shared weights, and no accuracy of the architecture."""
        return has_shared_score(trial, self._finished.get)

    def on_search_start(self, search: SearchInfo) -> None:
        """Connects to the tracker."""
        self._steps.clear()
        self._unwritten.clear()
        self._finished = {trial.number: trial for trial in search.lineage if trial.is_finished}
        self.setup(search)
        self._search = search

    def on_trial_start(self, trial: Trial) -> None:
        """Opens the trial's run."""
        self._write_earlier_trials()
        self._steps.pop(trial.number, None)
        self.log_trial_start(trial)
        self._steps[trial.number] = set()

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a report, unless opening the run failed: then the end writes all."""
        if (steps := self._steps.get(trial.number)) is not None:
            self.log_trial_report(trial, step, metrics)
            steps.add(step)

    def on_trial_end(self, trial: Trial) -> None:
        """Writes what is missing, and the result."""
        self._find_earlier_trials()
        self._write(trial)
        self._write_earlier_trials()

    def _write(self, trial: Trial) -> None:
        self._finished[trial.number] = trial
        if trial.number not in self._steps:
            self.log_trial_start(trial)
        steps = self._steps.pop(trial.number, set())
        for step, metrics in trial.curve:
            if step not in steps:
                self.log_trial_report(trial, step, metrics)
        self.log_trial_end(trial)

    def on_search_end(self, outcome: SearchOutcome) -> None:
        """Writes the result of the session."""
        self._write_earlier_trials()
        self.log_search_end(outcome)

    def _write_earlier_trials(self) -> None:
        """Writes finished trials of earlier sessions that the tracker lacks.

        If the tracker fails, the next call goes on with the trial after.
        """
        self._find_earlier_trials()
        while self._unwritten:
            self._write(self._unwritten.popleft())

    def _find_earlier_trials(self) -> None:
        """Asks the tracker once which trials of earlier sessions it has."""
        if self._search is None:
            return
        logged = self.logged_trials()
        self._unwritten.extend(t for t in self._search.lineage if t.is_finished and t.number not in logged)
        self._search = None  # unless the tracker failed: then the next call asks again
