"""Reports of running finals, beside the number that each is expected to make."""

from __future__ import annotations

from collections.abc import Iterable

from nas.core.policy import Policy
from nas.core.trial import State, Trial
from nas.views.formatting import count

_MOST_SHOWN = 3


class ReportCounter:
    """Counts the reports of the running trials of later stages and of ``more_epochs``.

    A display may ask from another thread than the controller's, so loops are over copies.

    Args:
        search_stage: The stage whose other trials are not counted.
    """

    def __init__(self, search_stage: str) -> None:
        self._search_stage = search_stage
        self._trials: dict[int, Trial] = {}
        self._n_reports: dict[int, int] = {}  # of the running trials

    def add(self, trials: Iterable[Trial]) -> None:
        """Adds proposed or finished trials."""
        for trial in trials:
            self._trials[trial.number] = trial
            if trial.is_finished:
                self.end(trial.number)

    def stage_of(self, number: int) -> str:
        """Returns the stage of a trial."""
        return self._trials[number].stage if number in self._trials else self._search_stage

    def start(self, number: int) -> None:
        """Notes that an attempt starts. One that resumes reports its earlier steps again."""
        if (trial := self._trials.get(number)) is None or Policy.SKIP_TRAIN in trial.policies:
            return
        if trial.stage != self._search_stage or trial.more_epochs is not None:
            self._n_reports[number] = 0

    def report(self, number: int) -> bool:
        """Adds a report. Returns whether its trial is counted."""
        if number not in self._n_reports:
            return False
        self._n_reports[number] += 1
        return True

    def end(self, number: int) -> None:
        """Notes that a trial does not run."""
        self._n_reports.pop(number, None)

    @property
    def goes_on(self) -> bool:
        """Whether a trial of ``more_epochs`` runs."""
        return any(self._trials[number].more_epochs is not None for number in list(self._n_reports))

    def text(self) -> str:
        """Returns the running trials with their reports: ``final 16 epoch 12/60``; empty if none runs.

        A shortened one may train for longer than expected: ``final 16 epoch 12 of about 10``.
        """
        shown = [self._text_of(number, n_reports) for number, n_reports in sorted(self._n_reports.items())]
        more = [f"{count(len(shown) - _MOST_SHOWN, 'other')}"] if len(shown) > _MOST_SHOWN else []
        return ", ".join([*shown[:_MOST_SHOWN], *more])

    def _text_of(self, number: int, n_reports: int) -> str:
        trial = self._trials[number]
        expected = self.expected(trial)
        shown = f"{trial.stage} {number} epoch {n_reports}"
        if expected is not None and trial.proposal.fidelity is not None:  # it may train until a time
            return f"{shown} of about {expected}"
        return shown if expected is None or expected < n_reports else f"{shown}/{expected}"

    def expected(self, trial: Trial) -> int | None:
        """Returns the expected number of reports, or None if unknown.

        A COMPLETE trial with the same stage, policies and fidelity gives it. Without one, the trial of the same point
        does, scaled by its share of a full training. Each epoch is taken to be reported.
        """
        if trial.more_epochs is not None:
            return trial.more_epochs
        for other in reversed(list(self._trials.values())):
            if _kind(other) == _kind(trial) and other.state == State.COMPLETE and other.curve:
                return len(other.curve)
        parent = self._trials.get(trial.parents[0]) if trial.parents else None
        return None if parent is None else _scaled(parent, trial)


def _kind(trial: Trial) -> tuple[object, ...]:
    """Returns what decides the epochs of a trial."""
    return trial.stage, trial.policies, trial.more_epochs, trial.proposal.fidelity


def _scaled(parent: Trial, trial: Trial) -> int | None:
    """Returns the reports to expect from a trial of its parent's point, or None if unknown."""
    share = parent.cost.get("epochs_share")
    if parent.state != State.COMPLETE or not parent.curve or not share:
        return None
    if (fidelity := trial.proposal.fidelity) is None and Policy.EARLY_STOP in trial.policies & parent.policies:
        return len(parent.curve)
    return max(1, round(len(parent.curve) / share * (1.0 if fidelity is None else fidelity)))
