"""The roster of jobs, which the loop keeps: who asks next, who is dismissed, and who begins anew after a loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nas.core.trial import DonorWeights, Trial
from nas.executors.events import JobLeftWorker
from nas.executors.executor import Executor
from nas.search.job_plan import JobPlan
from nas.search.slots import SlotHolder, SlotPool
from nas.storage.records import Records
from nas.training.messages import Assignment, JobStart


class JobScheduler:
    """The jobs of one session.

    A job lives until its code leaves by itself, which is put on record, or until it has had its trials. While it lives
    it keeps its slot; where its stay was ended by a loss, a dismissal or the end of a session, it begins anew, with its
    id, before new jobs are begun.

    Args:
        plan: How trials share jobs.
        slots: Of the executor.
        executor: Where jobs stay.
        records: Where it is put down that a job has left.
        max_losses: Stays that may be lost in a row before the first question; after these the job is given up.
        deterministic: Trial n runs on slot n mod slots, and its job stays there.
    """

    def __init__(
        self,
        plan: JobPlan,
        slots: SlotPool,
        executor: Executor,
        records: Records,
        *,
        max_losses: int = 2,
        deterministic: bool = False,
    ) -> None:
        self.plan = plan
        self._slots = slots
        self._executor = executor
        self._records = records
        self._max_losses = max_losses
        self._deterministic = deterministic
        self._n_finished: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()
        self._away: dict[int, int] = {}  # living jobs that stay nowhere, and the index of their last trial
        self._deferred: set[int] = set()
        self._given: set[int] = set()  # jobs whose next trial waits for its parents, or to be submitted
        self._last_index: dict[int, int] = {}
        self._job_indices: dict[int, int] = {}

    def recall(self, in_stage: Sequence[Trial]) -> None:
        """Recalls from the search stage's trials which jobs were begun, and which of them live."""
        self._job_indices = {job: index for index, job in enumerate(dict.fromkeys(t.job for t in in_stage))}
        if not self.plan.asks:
            return
        self._n_finished = Counter(t.job for t in in_stage if t.is_finished)
        self._last_index = {t.job: t.index for t in in_stage}
        busy = {t.job for t in in_stage if not t.is_finished}  # they begin anew with that trial
        alive = self.plan.living(in_stage, self._records.left_jobs())
        self._away = {job: index for job, index in self._last_index.items() if job in alive - busy}

    def _is_full(self, job: int) -> bool:
        return self.plan.is_full(self._n_finished[job])

    def _index_of(self, job: int) -> int:
        """How many jobs were begun before this one."""
        return self._job_indices.setdefault(job, len(self._job_indices))

    @property
    def n_begun(self) -> int:
        """How many jobs were begun."""
        return len(self._job_indices)

    def has_begun(self, job: int) -> bool:
        """Returns whether a trial was proposed for it."""
        return job in self._job_indices

    @property
    def any_lives(self) -> bool:
        """Whether a job stays somewhere, or is to begin anew."""
        return bool(self._away) or any(True for _ in self._slots.holders())

    # ---- asking

    def knows_asker(self, index: int) -> bool:
        """Returns whether it is known for which job proposal ``index`` of the search stage is."""
        if not self.plan.asks or not self._deterministic:
            return True
        holder = self._slots.holder_at(index % self._slots.n)
        return holder is None or self._slots.waits(holder)

    def asker(self, index: int, number: int) -> int:
        """Returns the job for which the tuner is asked next: one that waits, or a new one.

        Args:
            index: Of the proposal in the search stage.
            number: What a new job is called.
        """
        if not self.plan.asks:
            return number
        if self._deterministic:
            slot = index % self._slots.n
            if (holder := self._slots.holder_at(slot)) is not None:
                return holder.job
            return next((job for job, i in self._away.items() if i % self._slots.n == slot), number)
        idle = next(self._askers(), None)
        return number if idle is None else idle.job

    @property
    def has_idle(self) -> bool:
        """Whether the tuner may be asked for a job that waits."""
        return next(self._askers(), None) is not None

    def _idle(self) -> Iterator[SlotHolder]:
        return (holder for holder in self._slots.waiting() if holder.job not in self._given)

    def _askers(self) -> Iterator[SlotHolder]:
        """Those of them for which the tuner has not answered WAIT since it last had news."""
        return (holder for holder in self._idle() if holder.job not in self._deferred)

    def defer(self, job: int) -> None:
        """Notes that the tuner has nothing for a job now; it may have for others."""
        self._deferred.add(job)

    def undefer(self) -> None:
        """Notes that the tuner may have something for every job."""
        self._deferred.clear()

    def give(self, trial: Trial) -> None:
        """Notes that a trial was proposed: for its job, where that waits, or for one that it begins."""
        self._index_of(trial.job)
        if self.plan.asks:
            self._last_index[trial.job] = trial.index
            if self._slots.holder(trial.job) is not None:
                self._given.add(trial.job)

    def is_given(self, trial: Trial) -> bool:
        """Returns whether a waiting trial is meant for a job that keeps a slot for it."""
        holder = self._slots.holder(trial.job)
        return trial.job in self._given and holder is not None and not holder.is_dismissed

    # ---- staying

    def slot_kept_for(self, trial: Trial) -> int | None:
        """Returns the slot where the trial's job waits for it."""
        holder = self._slots.holder(trial.job)
        return holder.slot if holder is not None and self._slots.waits(holder) else None

    def assignment(self, trial: Trial, donors: Sequence[DonorWeights], *, is_search: bool) -> Assignment:
        """What the executor is given; from here on its job stays on the trial's slot."""
        if not self.plan.asks:
            return Assignment(trial, tuple(donors), job_index=trial.index)
        self._given.discard(trial.job)
        self._away.pop(trial.job, None)
        if self._slots.holder(trial.job) is None:
            self._slots.job_start(trial.job, trial.slot or 0)
        n_finished, most = self._n_finished[trial.job], self.plan.trials_per_job
        is_last = not is_search or (most is not None and n_finished + 1 >= most)
        return Assignment(trial, tuple(donors), n_finished, is_last, self._index_of(trial.job))

    def begin_anew(self) -> None:
        """Lets living jobs that stay nowhere begin anew, where a slot is free; they ask, or leave."""
        for job, index in list(self._away.items()):
            slot = index % self._slots.n if self._deterministic else self._slots.first_free()
            if slot is None:
                return
            if self._slots.is_free(slot):
                del self._away[job]
                self._slots.job_start(job, slot)
                self._executor.resume(JobStart(job, slot, self._n_finished[job], job_index=self._index_of(job)))

    def dismiss_idle(self) -> None:
        """Tells the jobs for which there are no more trials."""
        for holder in list(self._idle()):
            self._dismiss(holder)

    def end(self, job: int) -> None:
        """Tells a job that waits that the tuner has no more for it; it does not begin anew."""
        if (holder := self._slots.holder(job)) is not None:
            self._given.discard(job)
            holder.has_asked = False  # it moves, until it leaves
            self._executor.dismiss(job)

    def make_room(self, n_wanted: int, *, is_stuck: bool = False) -> None:
        """Dismisses jobs that wait, so that trials that could run get their slots: those without a trial to come first.

        A job whose next trial waits for its parents is dismissed only where nothing else would ever happen.

        Args:
            n_wanted: How many trials could run.
            is_stuck: What moves by the loop's books does not: it waits for the workers that these jobs keep.
        """
        n_wanted -= sum(holder.is_dismissed for holder in self._slots.holders())
        for holder in list(self._idle())[: max(n_wanted, 0)]:
            self._dismiss(holder)
            n_wanted -= 1
        if n_wanted > 0 and (is_stuck or not self._slots.n_moving):
            for holder in list(self._slots.waiting())[-n_wanted:]:
                self._dismiss(holder)

    def _dismiss(self, holder: SlotHolder) -> None:
        holder.is_dismissed = True
        self._executor.dismiss(holder.job)

    # ---- events

    def take_asked(self, job: int) -> None:
        """A job has asked."""
        if (holder := self._slots.holder(job)) is not None:
            holder.has_asked = True
            self._losses[job] = 0

    def take_result(self, trial: Trial) -> None:
        """A trial has its result."""
        job = trial.job
        if not self.plan.asks or job not in self._last_index:
            self._note_left(self._slots.holder(job))
            return
        self._n_finished[job] += 1
        self._given.discard(job)
        if (holder := self._slots.holder(job)) is not None:
            self._note_left(holder)
        elif not self._is_full(job):
            self._away[job] = self._last_index[job]

    def take_left(self, event: JobLeftWorker) -> None:
        """A job has left; that of its last trial may come later."""
        if (holder := self._slots.holder(event.job)) is not None:
            holder.left = event
            self._note_left(holder)

    def _note_left(self, holder: SlotHolder | None) -> None:
        """Frees the slot of a job that has left, and puts down that it will not come back, if so."""
        if holder is None or holder.left is None or holder.slot in self._slots.running:
            return
        job, event = holder.job, holder.left
        self._slots.leave(job)
        if job not in self._last_index or self._is_full(job) or job in self._given:  # its trial begins it anew
            self._given.discard(job)
            return
        self._losses[job] += event.lost is not None
        if holder.is_dismissed or (event.lost is not None and self._losses[job] < self._max_losses):
            self._away[job] = self._last_index[job]
            return
        self._records.leave(job, n_trials=self._n_finished[job], error=event.error or event.lost)

    def take_loss(self, job: int) -> None:
        """A job was lost with its trial, which will begin it anew, or was given up as lost."""
        self._slots.leave(job)
