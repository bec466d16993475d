"""The dialogue with the tuner: what it proposed in the search stage, in order, and what it had learned by then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage, LineageLog, missing_results, restore_log
from nas.core.point import point_key
from nas.core.trial import Proposal, Trial
from nas.tuners.base import Answer, Tuner, inheritable


class ProposalLog:
    """Asks a tuner, and shows it what it may see; the records alone bring it back to where it was.

    Args:
        trials: All trials of the search by number: the owner's list, which grows and changes.
        tuner: Is asked; None: nobody, where only later stages run.
        n_slots: How many trials run at once.
        deterministic: Ask n sees the results of trials 0 .. n - slots and nothing later, whatever has finished.
    """

    def __init__(self, trials: Sequence[Trial], tuner: Tuner | None, *, n_slots: int, deterministic: bool) -> None:
        self.stage = "search"
        self.waited_at: int | None = None
        """How many results the tuner had learned of when it answered WAIT; None: it may be asked at once."""
        self._trials = trials
        self._tuner = tuner
        self._n_slots = n_slots
        self._is_deterministic = deterministic
        self._key = point_key if tuner is None else tuner.space.key
        self._log = LineageLog(key=self._key)
        self._numbers: list[int] = []  # index in the stage -> trial number
        self._pending: dict[int, Trial] = {}  # the stage's trials that have no result, by number
        self._n_seen = 0  # how many results the tuner had learned of at its last proposal
        self._seen_at: list[int] = []  # the same for each index in the stage
        self._missing_results: set[int] = set()  # trials whose results the tuner has learned of, and that are lost

    def recall(self, stage: str) -> None:
        """Recalls from the trials what was proposed in this stage, and what the tuner had learned by then."""
        self.stage = stage
        in_stage = self.in_stage()
        self._numbers = [t.number for t in in_stage]
        self._pending = {t.number: t for t in in_stage if not t.is_finished}
        self._log = restore_log(in_stage, deterministic=self._is_deterministic, key=self._key)
        self._seen_at = list(itertools.accumulate(len(t.learned) for t in in_stage))
        self._n_seen = self._seen_at[-1] if in_stage else 0
        self._missing_results = missing_results(in_stage)

    # ---- asking

    @property
    def who(self) -> str:
        """What messages call the tuner."""
        return "" if self._tuner is None else self._tuner.shown_name

    @property
    def n_proposed(self) -> int:
        """How many trials the stage has: the index of the next proposal."""
        return len(self._numbers)

    @property
    def may_be_asked(self) -> bool:
        """Whether what the tuner must see before the next proposal is there, and, after WAIT, something is new."""
        if self._tuner is None or self._missing_results:
            return False
        if self._is_deterministic:
            return len(self._log) >= self._n_shown
        return self.waited_at is None or len(self._log) > self.waited_at

    def ask(self, job: int) -> tuple[Proposal | Answer, int]:
        """What the tuner answers now for a job, and how many results it was shown.

        Raises:
            SearchFailedError: its proposal can't be.
        """
        assert self._tuner is not None
        n_shown = self._n_shown
        if self._is_deterministic:
            pending = [self._trials[other].as_running() for other in self._numbers[n_shown:]]
        else:
            pending = list(self._pending.values())
        try:
            return self._tuner.ask(self._log.view(n_shown, pending), self.n_proposed, job), n_shown
        except ConfigurationError as error:
            raise SearchFailedError(f"proposal {self.n_proposed} of {self.who}: {error}") from error

    def take_news(self, n_shown: int) -> tuple[int, ...]:
        """Returns the trials whose results the tuner learned of between its last proposal and this one."""
        news = tuple(t.number for t in self._log.learned[self._n_seen : n_shown])
        self._n_seen = n_shown
        return news

    def note(self, trial: Trial) -> None:
        """Takes in what the tuner proposed, after ``take_news``."""
        self._pending[trial.number] = trial
        self._log.add_proposed(trial)
        self._numbers.append(trial.number)
        self._seen_at.append(self._n_seen)

    @property
    def _n_shown(self) -> int:
        """How many results the next ask sees: all, or, with ``deterministic``, one more after each WAIT."""
        if not self._is_deterministic:
            return len(self._log)
        size = max(self.n_proposed - self._n_slots + 1, self._n_seen, 0)
        return size if self.waited_at is None else max(size, self.waited_at + 1)

    # ---- learning

    def change(self, trial: Trial) -> None:
        """Takes in what is new of an unfinished trial."""
        if trial.number in self._pending:
            self._pending[trial.number] = trial

    def learn(self, trial: Trial) -> None:
        """Takes in a result; where it is the last that was owed, recalls all in the order in which it was learned."""
        self._pending.pop(trial.number, None)
        if trial.stage != self.stage:
            return
        if trial.number not in self._missing_results:
            self._add(trial)
            return
        in_stage = self.in_stage()
        self._missing_results = missing_results(in_stage)
        if not self._missing_results:
            self._log = restore_log(in_stage, deterministic=self._is_deterministic, key=self._key)

    def _add(self, trial: Trial) -> None:
        """Adds a result to what the tuner may learn: as it comes, or, with ``deterministic``, in order of index."""
        if not self._is_deterministic:
            self._log.append(trial)
            return
        while len(self._log) < self.n_proposed and self._trials[self._numbers[len(self._log)]].is_finished:
            self._log.append(self._trials[self._numbers[len(self._log)]])

    def lose_weights(self, number: int) -> None:
        """Notes that a trial's weights were swept."""
        self._log.delete_weights(number)

    # ---- what others see of it

    def in_stage(self) -> list[Trial]:
        """Returns the stage's trials in the order proposed."""
        return [t for t in self._trials if t.stage == self.stage]

    def first_pending(self) -> int | None:
        """Returns the lowest number of a trial of the stage that has no result."""
        return next(iter(self._pending), None)

    def lineage(self, *, without: int | None = None) -> Lineage:
        """Returns all results so far and the trials to come, but for the one whose number is given."""
        return self._log.view(pending=[t for t in self._pending.values() if t.number != without])

    def lineage_before(self, trial: Trial) -> Lineage:
        """Returns the results that the tuner had learned of when it proposed this trial."""
        return self._log.view(self._seen_at[trial.index])

    def learned_by(self, trial: Trial) -> Sequence[Trial]:
        """What a donor is chosen from: all results so far, or, with ``deterministic``, those that its proposal saw."""
        if self._is_deterministic and trial.stage == self.stage:
            return self._log.learned[: self._seen_at[trial.index]]
        return self._log.learned

    def inheritable(self) -> frozenset[int]:
        """Returns the trials whose weights the tuner may still hand on."""
        in_stage = self.in_stage()
        if self._tuner is None:
            return frozenset(t.number for t in in_stage)
        return inheritable(self._tuner, self._log, self._n_seen, in_stage)
