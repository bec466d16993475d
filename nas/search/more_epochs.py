"""Going on with the training of a finished trial, usually the winner (``flows.final more_epochs=20``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.core.supernet import is_epoch
from nas.core.trial import State, Trial
from nas.core.validation import MAX_WHOLE, check_int
from nas.training.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreEpochs:
    """The options ``more_epochs`` and ``trial``.

    Attributes:
        n_epochs: The number of epochs, as ``run.epochs`` counts them.
        trial: The number of the trial to go on with; None: the winner.
    """

    n_epochs: int
    trial: int | None = None

    def __post_init__(self) -> None:
        check_int("more_epochs", self.n_epochs, 1, MAX_WHOLE)
        if self.trial is not None:
            check_int("trial", self.trial, 0)

    def parent(self, trials: Sequence[Trial], winner: Trial | None, *, is_selected: bool) -> Trial | None:
        """Returns the trial to go on with, or None if nothing is to be proposed.

        The same command continues what it began. Nothing is proposed if a trial of ``more_epochs`` has not finished, or
        if the parent has one for as many epochs. After a result that was not selected yet, the winner before it counts.

        Args:
            trials: All trials, by number.
            winner: The winner, or None.
            is_selected: Whether the winner is exported.

        Raises:
            ConfigurationError: there is no such trial.
        """
        going_on = [trial for trial in trials if trial.more_epochs is not None]
        if any(not trial.is_finished for trial in going_on):
            return None
        parent = self._named(trials) if self.trial is not None else winner
        if parent is None:
            raise ConfigurationError(f"more_epochs={self.n_epochs}: no trial has won. Name one with trial=N")
        if self.trial is None and not is_selected and parent.more_epochs == self.n_epochs:
            return None
        done = (t for t in going_on if t.more_epochs == self.n_epochs and t.state != State.FAILED)
        return None if any(trial.parents == (parent.number,) for trial in done) else parent

    def _named(self, trials: Sequence[Trial]) -> Trial:
        number = self.trial
        if number is None or number >= len(trials):
            raise ConfigurationError(f"trial={number}: must be the number of a trial, 0 to {len(trials) - 1}")
        return trials[number]

    def check(self, parent: Trial, problem: Problem) -> None:
        """Checks that a trial can go on.

        Raises:
            ConfigurationError: it has no weights to start from, or the problem takes none.
        """
        if Policy.SHARE_PARAMS not in problem.policies:
            raise ConfigurationError(
                f"more_epochs={self.n_epochs}: the problem must declare SHARE_PARAMS. Call run.inherit in its `train`, "
                "and add the policy to its `policies`"
            )
        if is_epoch(parent):
            raise ConfigurationError(f"trial={parent.number}: must be no supernet epoch. Name a subnet or a final")
        if parent.checkpoint is None:
            raise ConfigurationError(
                f"trial={parent.number}: must have weights, but it {_why(parent)}. Name another trial with trial=N"
            )


def _why(trial: Trial) -> str:
    if trial.weights_deleted:
        return "lost them to garbage collection"
    return f"is {trial.state}" if trial.state != State.COMPLETE else "saved none"
