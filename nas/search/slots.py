"""Slots: which trial runs where, and which job stays there between two of its trials."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from nas.executors.events import JobLeftWorker


@dataclass(slots=True)
class SlotHolder:
    """The job that holds a slot, from its first trial there until it leaves."""

    job: int
    slot: int
    has_asked: bool = False
    is_dismissed: bool = False
    left: JobLeftWorker | None = None
    """That it has left; it may be learned before the result of its last trial is."""


class SlotPool:
    """Which of ``n`` slots are free.

    Attributes:
        running: The trial that runs on a slot.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.running: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._holders: dict[int, SlotHolder] = {}
        self._by_job: dict[int, SlotHolder] = {}
        self._heap = list(range(n))  # may name slots that are taken meanwhile

    def is_free(self, slot: int) -> bool:
        """Returns whether neither a trial nor a job has it."""
        return slot not in self.running and slot not in self._holders

    def first_free(self) -> int | None:
        """Returns the lowest free slot."""
        while self._heap and not self.is_free(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take(self, slot: int, trial: int) -> None:
        """Lets a trial run there."""
        self.running[slot] = trial
        self._slot_of[trial] = slot
        if (holder := self._holders.get(slot)) is not None:
            holder.has_asked = False

    def release(self, trial: int) -> None:
        """Notes that a trial runs no more; where its job stays, the slot remains that job's."""
        if (slot := self._slot_of.pop(trial, None)) is not None:
            del self.running[slot]
            self._note_free(slot)

    def job_start(self, job: int, slot: int) -> None:
        """Lets a job stay there."""
        self._holders[slot] = self._by_job[job] = SlotHolder(job, slot)

    def leave(self, job: int) -> None:
        """Notes that a job stays no more."""
        if (holder := self._by_job.pop(job, None)) is not None:
            del self._holders[holder.slot]
            self._note_free(holder.slot)

    def _note_free(self, slot: int) -> None:
        if self.is_free(slot):
            heapq.heappush(self._heap, slot)

    def holder(self, job: int) -> SlotHolder | None:
        """Where a job stays, if it does."""
        return self._by_job.get(job)

    def holder_at(self, slot: int) -> SlotHolder | None:
        """Returns the job that stays there, if one does."""
        return self._holders.get(slot)

    def waits(self, holder: SlotHolder) -> bool:
        """Returns whether the job waits for an answer: a trial, or that there is none."""
        return holder.has_asked and not holder.is_dismissed and holder.left is None and holder.slot not in self.running

    def waiting(self) -> Iterator[SlotHolder]:
        """Yields the jobs that wait for an answer, by slot."""
        if self._holders:
            yield from (t for _, t in sorted(self._holders.items()) if self.waits(t))

    def holders(self) -> Iterator[SlotHolder]:
        """Yields all jobs that stay."""
        return iter(self._holders.values())

    @property
    def n_taken(self) -> int:
        """How many slots are not free."""
        return len(self.running) + sum(slot not in self.running for slot in self._holders)

    @property
    def n_moving(self) -> int:
        """How many slots something will happen on without the loop: a trial runs, or a job is about to ask or leave."""
        if not self._holders:
            return len(self.running)
        return len(self.running) + sum(
            slot not in self.running and not self.waits(holder) for slot, holder in self._holders.items()
        )
