"""The scheduler of jobs: the next trial of each, dismissals, restarts after a loss."""

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

    A job is active until its code leaves by itself, which is recorded, or until it has finished its number of trials.
    An active job keeps its slot. A loss, a dismissal or the end of a session takes the slot away. The job then starts
    again, with the same id, before new jobs start.

    Args:
        plan: The rule by which trials share jobs.
        slots: The executor's slots.
        executor: Runs the jobs.
        records: Records the jobs that have left.
        max_losses: A job ends after this many losses in a row without a request for a trial.
        deterministic: Whether trial n runs on slot n mod slots, and its job stays there.
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
        self._without_slot: dict[int, int] = {}  # active jobs without a slot, and the index of their last trial
        self._deferred: set[int] = set()
        self._has_next_trial: set[int] = set()  # jobs whose next trial is proposed, and not submitted yet
        self._last_index: dict[int, int] = {}
        self._job_indices: dict[int, int] = {}

    def restore(self, in_stage: Sequence[Trial]) -> None:
        """Restores the jobs from the search stage's trials.

        A retry is a job of one trial that no budget counts.
        """
        in_stage = [t for t in in_stage if t.is_counted]
        self._job_indices = {job: index for index, job in enumerate(dict.fromkeys(t.job for t in in_stage))}
        if not self.plan.requests_trials:
            return
        self._n_finished = Counter(t.job for t in in_stage if t.is_finished)
        self._last_index = {t.job: t.index for t in in_stage}
        busy = {t.job for t in in_stage if not t.is_finished}  # they start again with that trial
        active = self.plan.active_jobs(in_stage, self._records.ended_jobs())
        self._without_slot = {job: index for job, index in self._last_index.items() if job in active - busy}

    def _is_full(self, job: int) -> bool:
        return self.plan.is_full(self._n_finished[job])

    def _index_of(self, job: int) -> int:
        """Returns how many jobs were started before this one."""
        return self._job_indices.setdefault(job, len(self._job_indices))

    @property
    def n_started(self) -> int:
        """The number of jobs started so far."""
        return len(self._job_indices)

    def has_started(self, job: int) -> bool:
        """Returns whether the job has a trial already."""
        return job in self._job_indices

    @property
    def has_active(self) -> bool:
        """Whether a job has a slot, or is to start again."""
        return bool(self._without_slot or self._slots.holders())

    def can_choose(self, index: int) -> bool:
        """Returns whether the job of proposal ``index`` of the search stage can be chosen now."""
        if not self.plan.requests_trials or not self._deterministic:
            return True
        holder = self._slots.holder_at(index % self._slots.n)
        return holder is None or self._slots.is_waiting(holder)

    def next_job(self, index: int, number: int) -> int:
        """Returns the job for which the tuner is asked next: a waiting or a new one.

        Args:
            index: The index of the proposal in the search stage.
            number: The id for a new job.
        """
        if not self.plan.requests_trials:
            return number
        if self._deterministic:
            slot = index % self._slots.n
            if (holder := self._slots.holder_at(slot)) is not None:
                return holder.job
            return next((job for job, i in self._without_slot.items() if i % self._slots.n == slot), number)
        waiting = next(self._to_ask_for(), None)
        return number if waiting is None else waiting.job

    @property
    def has_request(self) -> bool:
        """Whether the tuner may be asked for a waiting job."""
        return next(self._to_ask_for(), None) is not None

    def _idle(self) -> Iterator[SlotHolder]:
        """Yields the waiting jobs that have no next trial."""
        return (holder for holder in self._slots.waiting() if holder.job not in self._has_next_trial)

    def _to_ask_for(self) -> Iterator[SlotHolder]:
        """Yields the idle jobs that are not deferred."""
        return (holder for holder in self._idle() if holder.job not in self._deferred)

    def defer(self, job: int) -> None:
        """Skips the job until ``clear_deferred``: the tuner answered WAIT for it."""
        self._deferred.add(job)

    def clear_deferred(self) -> None:
        """Lets the tuner be asked again for every job."""
        self._deferred.clear()

    def add_proposed(self, trial: Trial) -> None:
        """Adds a proposed trial to its job, which may be new."""
        self._index_of(trial.job)
        if self.plan.requests_trials:
            self._last_index[trial.job] = trial.index
            if self._slots.holder(trial.job) is not None:
                self._has_next_trial.add(trial.job)

    def keeps_slot_for(self, trial: Trial) -> bool:
        """Returns whether the job of a waiting trial keeps a slot for it."""
        holder = self._slots.holder(trial.job)
        return trial.job in self._has_next_trial and holder is not None and not holder.is_dismissed

    def slot_for(self, trial: Trial, *, is_search: bool) -> int | None:
        """Returns the slot on which the trial's job waits, else a free one, or None."""
        holder = self._slots.holder(trial.job)
        if holder is not None and self._slots.is_waiting(holder):
            return holder.slot
        if not self._deterministic:
            return self._slots.first_free()
        slot = trial.index % self._slots.n
        if self._slots.is_free(slot):
            return slot
        has_any_slot = is_search and not self.plan.requests_trials  # a longer trial is on its own
        return self._slots.first_free() if has_any_slot else None

    def assignment(self, trial: Trial, donors: Sequence[DonorWeights], *, is_search: bool) -> Assignment:
        """Returns the assignment for the executor, and lets the job keep the trial's slot."""
        if not self.plan.requests_trials:
            return Assignment(trial, tuple(donors), job_index=trial.index)
        self._has_next_trial.discard(trial.job)
        self._without_slot.pop(trial.job, None)
        if self._slots.holder(trial.job) is None:
            self._slots.hold(trial.slot or 0, trial.job)
        if not trial.is_counted:
            return Assignment(trial, tuple(donors), job_index=trial.index)
        n_finished, most = self._n_finished[trial.job], self.plan.trials_per_job
        is_last = not is_search or (most is not None and n_finished + 1 >= most)
        return Assignment(trial, tuple(donors), n_finished, is_last, self._index_of(trial.job))

    def restart_jobs(self) -> None:
        """Starts active jobs without a slot on free slots. They request a trial, or leave."""
        for job, index in list(self._without_slot.items()):
            slot = index % self._slots.n if self._deterministic else self._slots.first_free()
            if slot is None:
                return
            if self._slots.is_free(slot):
                del self._without_slot[job]
                self._slots.hold(slot, job)
                self._executor.resume(JobStart(job, slot, self._n_finished[job], job_index=self._index_of(job)))

    def dismiss_idle(self) -> None:
        """Dismisses the waiting jobs that have no next trial."""
        for holder in list(self._idle()):
            self._dismiss(holder)

    def end(self, job: int) -> None:
        """Dismisses a waiting job for good: the tuner answered STOP for it."""
        if (holder := self._slots.holder(job)) is not None:
            self._has_next_trial.discard(job)
            holder.has_requested = False  # its slot counts as active until the job has left
            self._executor.dismiss(job)

    def free_slots(self, n_trials: int, *, is_stuck: bool = False) -> None:
        """Dismisses waiting jobs, so that trials that are ready get their slots.

        Jobs without a next trial go first. A job whose next trial waits for its parents is dismissed only if nothing
        else would ever happen.

        Args:
            n_trials: The number of ready trials without a slot.
            is_stuck: Whether all active slots wait for workers that these jobs keep.
        """
        n_trials -= sum(holder.is_dismissed for holder in self._slots.holders())
        for holder in list(self._idle())[: max(n_trials, 0)]:
            self._dismiss(holder)
            n_trials -= 1
        if n_trials > 0 and (is_stuck or not self._slots.n_active):
            for holder in list(self._slots.waiting())[-n_trials:]:
                self._dismiss(holder)

    def _dismiss(self, holder: SlotHolder) -> None:
        holder.is_dismissed = True
        self._executor.dismiss(holder.job)

    def trial_requested(self, job: int) -> None:
        """Notes that the job waits for its next trial."""
        if (holder := self._slots.holder(job)) is not None:
            holder.has_requested = True
            self._losses[job] = 0

    def trial_finished(self, trial: Trial) -> None:
        """Notes that a trial of the job has its result."""
        job = trial.job
        if not self.plan.requests_trials or job not in self._last_index:
            self._close_if_left(self._slots.holder(job))
            return
        self._n_finished[job] += 1
        self._has_next_trial.discard(job)
        if (holder := self._slots.holder(job)) is not None:
            self._close_if_left(holder)
        elif not self._is_full(job):
            self._without_slot[job] = self._last_index[job]

    def job_left(self, event: JobLeftWorker) -> None:
        """Notes that a job has left; the result of its last trial may arrive later."""
        if (holder := self._slots.holder(event.job)) is not None:
            holder.left = event
            self._close_if_left(holder)

    def _close_if_left(self, holder: SlotHolder | None) -> None:
        """Frees the slot of a job that has left, and records the end of its work."""
        if holder is None or holder.left is None or holder.slot in self._slots.running:
            return
        job, event = holder.job, holder.left
        self._slots.release_job(job)
        if job not in self._last_index or self._is_full(job) or job in self._has_next_trial:  # that trial restarts it
            self._has_next_trial.discard(job)
            return
        is_lost = event.lost is not None
        self._losses[job] += is_lost and event.counts
        if holder.is_dismissed or (is_lost and self._losses[job] < self._max_losses):
            self._without_slot[job] = self._last_index[job]
            return
        self._records.publish_job_end(job, n_trials=self._n_finished[job], error=event.error or event.lost)

    def trial_lost(self, job: int) -> None:
        """Notes that a job was lost with its trial, whose next attempt restarts the job."""
        self._slots.release_job(job)
