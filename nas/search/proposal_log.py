"""The tuner's proposals in order, with the results that it had seen before each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.learning_order import LearningOrder
from nas.core.lineage import Lineage, LineageLog, missing_results, restore_log
from nas.core.point import point_key
from nas.core.trial import Proposal, Trial
from nas.tuners.base import Answer, Tuner, inheritable, least_seen


class ProposalLog:
    """Asks the tuner, and shows it the results that it may see.

    Its state can be restored from the records alone.

    Args:
        trials: All trials of the search by number: the controller's list, which grows and changes.
        tuner: The tuner; None if only later stages run.
        deterministic_slots: The number of trials that run at once, if results are shown in their ``LearningOrder``.
            None: they are shown as they finish.
    """

    def __init__(self, trials: Sequence[Trial], tuner: Tuner | None, *, deterministic_slots: int | None) -> None:
        self.stage = "search"
        self.n_shown_at_wait: int | None = None
        """The number of results shown when the tuner answered WAIT, or None after another answer."""
        self._trials = trials
        self._tuner = tuner
        self._deterministic_slots = deterministic_slots
        self._order = None if deterministic_slots is None else LearningOrder(deterministic_slots)
        self._key = point_key if tuner is None else tuner.space.key
        self._log = LineageLog(key=self._key)
        self._numbers: list[int] = []  # index in the stage -> trial number
        self._pending: dict[int, Trial] = {}  # the stage's trials without a result, by number
        self._n_seen = 0  # how many results the tuner had seen at its last proposal
        self._n_seen_by_index: list[int] = []  # the same for each proposal of the stage
        self._shown: tuple[int, Lineage] | None = None  # the results shown at the last ask, and the lineage
        self._held: tuple[int, Lineage] | None = None  # those for the next ask
        self._missing: set[int] = set()  # trials whose results the tuner has seen, and that no record has now

    def restore(self, stage: str) -> None:
        """Restores the proposals of a stage, and what the tuner had seen, from the trials."""
        self.stage = stage
        in_stage = self.in_stage()
        asked = [t for t in in_stage if t.is_counted]
        self._numbers = [t.number for t in asked]
        self._pending = {t.number: t for t in in_stage if not t.is_finished}
        self._restore_log(in_stage)
        self._n_seen_by_index = list(itertools.accumulate(len(t.learned) for t in asked))
        self._n_seen = self._n_seen_by_index[-1] if asked else 0
        self._missing = missing_results(in_stage)
        self._held = None

    def _restore_log(self, in_stage: Sequence[Trial]) -> None:
        self._log = restore_log(in_stage, deterministic_slots=self._deterministic_slots, key=self._key)
        if self._deterministic_slots is not None:
            learned = {number for trial in in_stage for number in trial.learned}
            unseen = (trial for trial in in_stage if trial.number not in learned)
            self._order = LearningOrder(self._deterministic_slots, unseen)

    @property
    def tuner_name(self) -> str:
        """The tuner's name in messages."""
        return "" if self._tuner is None else self._tuner.shown_name

    @property
    def n_proposed(self) -> int:
        """The number of the stage's proposals, without retries: the index of the next one."""
        return len(self._numbers)

    @property
    def stop_reason(self) -> str:
        """The reason why the tuner has no more proposals, or an empty text."""
        return "" if self._tuner is None else self._tuner.stop_reason(self.lineage())

    @property
    def next_ask(self) -> tuple[int, int]:
        """The index of the next proposal, and the number of results that it may show."""
        return self.n_proposed, len(self._log)

    @property
    def may_be_asked(self) -> bool:
        """Whether the results for the next ask are complete and, after WAIT, include a new one."""
        if self._tuner is None or self._missing:
            return False
        if self._held is not None:
            return True
        if self._order is not None:
            self._append_in_order(self._order)
            return len(self._log) >= self._n_shown
        return self.n_shown_at_wait is None or len(self._log) > self.n_shown_at_wait

    def ask(self, job: int, *, allows_epochs: bool = True) -> tuple[Proposal | Answer, int]:
        """Returns the tuner's answer for a job, and the number of results that it was shown.

        Args:
            job: The job that will run the trial.
            allows_epochs: Whether there is time for a supernet epoch.

        Raises:
            SearchFailedError: the tuner built an invalid proposal.
        """
        assert self._tuner is not None
        n_shown, lineage = self._shown = self._held or self._view()
        self._held = None
        try:
            shown = lineage if allows_epochs else lineage.without_epochs()
            return self._tuner.ask(shown, self.n_proposed, job), n_shown
        except ConfigurationError as error:
            raise SearchFailedError(f"proposal {self.n_proposed} of {self.tuner_name}: {error}") from error

    def hold_lineage(self) -> None:
        """Shows the last ask's lineage again at the next ask, without newer results."""
        self._held = self._shown

    def _view(self) -> tuple[int, Lineage]:
        """Returns the number of results for the next ask, and the lineage."""
        n_shown = self._n_shown
        if self._order is not None:
            unseen = sorted(self._order.numbers()[n_shown - self._n_seen :])
            pending = [self._trials[other].as_running() for other in unseen]
        else:
            pending = list(self._pending.values())
        return n_shown, self._log.view(n_shown, pending)

    def take_new_results(self, n_shown: int) -> tuple[int, ...]:
        """Returns the trials whose results were shown first for this proposal, and marks them as seen."""
        new = tuple(t.number for t in self._log.learned[self._n_seen : n_shown])
        if self._order is not None:
            self._order.remove_first(len(new))
        self._n_seen = n_shown
        return new

    def add(self, trial: Trial) -> None:
        """Adds the tuner's proposal, after ``take_new_results``."""
        self._pending[trial.number] = trial
        self._log.add_proposed(trial)
        if self._order is not None:
            self._order.add(trial)
        self._numbers.append(trial.number)
        self._n_seen_by_index.append(self._n_seen)

    @property
    def _n_shown(self) -> int:
        """The number of results for the next ask: all; if deterministic, one more after each WAIT."""
        if self._order is None:
            return len(self._log)
        n_shown = self._n_seen + self._order.n_due(self.n_proposed)
        return n_shown if self.n_shown_at_wait is None else max(n_shown, self.n_shown_at_wait + 1)

    def update(self, trial: Trial) -> None:
        """Replaces an unfinished trial by its newer state."""
        if trial.number in self._pending:
            self._pending[trial.number] = trial

    def add_result(self, trial: Trial) -> None:
        """Adds a result. The last missing one restores the order in which results were seen."""
        self._pending.pop(trial.number, None)
        if trial.stage != self.stage or trial.more_epochs is not None:
            return
        if trial.number not in self._missing:
            self._append(trial)
            return
        in_stage = self.in_stage()
        self._missing = missing_results(in_stage)
        if not self._missing:
            self._restore_log(in_stage)

    def _append(self, trial: Trial) -> None:
        """Appends a result to the log: at once or, if deterministic, in order."""
        if self._order is None:
            self._log.append(trial)
        elif not self._missing:
            self._append_in_order(self._order)

    def _append_in_order(self, order: LearningOrder) -> None:
        """Appends results, in order, that the next ask needs or that no other can precede."""
        n_final = max(order.n_settled(self.n_proposed), self._n_shown - self._n_seen)
        for number in order.numbers()[len(self._log) - self._n_seen : n_final]:
            if not self._trials[number].is_finished:
                return
            self._log.append(self._trials[number])

    def delete_weights(self, number: int) -> None:
        """Marks a trial's weights as deleted."""
        self._log.delete_weights(number)

    def in_stage(self) -> list[Trial]:
        """Returns the stage's trials in the order proposed, without those that go on training others."""
        return [t for t in self._trials if t.stage == self.stage and t.more_epochs is None]

    def first_pending(self) -> int | None:
        """Returns the lowest number of a trial of the stage without a result."""
        return next(iter(self._pending), None)

    def lineage(self) -> Lineage:
        """Returns all results so far and the pending trials."""
        return self._log.view(pending=self._pending.values())

    def lineage_for_stopper(self, trial: Trial) -> Lineage:
        """Returns all other trials or, if deterministic, the results that the trial's proposal saw."""
        if self._order is not None:
            return self._log.view(self._n_seen_by_index[trial.index])
        return self._log.view(pending=[t for t in self._pending.values() if t.number != trial.number])

    def possible_donors(self, trial: Trial) -> Sequence[Trial]:
        """Returns all results or, if deterministic, those that the trial's proposal saw."""
        if self._order is not None and trial.stage == self.stage:
            return self._log.learned[: self._n_seen_by_index[trial.index]]
        return self._log.learned

    def inheritable(self) -> frozenset[int]:
        """Returns the trials that the tuner may still name as donors."""
        in_stage = self.in_stage()
        if self._tuner is None:
            return frozenset(t.number for t in in_stage)
        n_seen = least_seen(in_stage, deterministic=self._order is not None)
        return inheritable(self._tuner, self._log, n_seen, in_stage)
