"""The executor's slots, with the running trials and the jobs that keep them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nas.executors.events import JobLeftWorker


@dataclass(slots=True)
class SlotHolder:
    """A job that keeps a slot, from its first trial there until it leaves."""

    job: int
    slot: int
    has_requested: bool = False
    is_dismissed: bool = False
    left: JobLeftWorker | None = None
    """The job's end, which may arrive before the result of its last trial."""


class SlotPool:
    """The state of ``n`` slots.

    Attributes:
        running: The number of the running trial, by slot.
        reserved: The slot on which proxies are computed, or None.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.running: dict[int, int] = {}
        self.reserved: int | None = None
        self._slot_of: dict[int, int] = {}
        self._holders: dict[int, SlotHolder] = {}
        self._by_job: dict[int, SlotHolder] = {}
        self._heap = list(range(n))  # may contain slots that are in use again

    def is_free(self, slot: int) -> bool:
        """Returns whether nothing runs or is computed on the slot, and no job keeps it."""
        return slot not in self.running and slot not in self._holders and slot != self.reserved

    def first_free(self) -> int | None:
        """Returns the lowest free slot."""
        while self._heap and not self.is_free(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take(self, slot: int, trial: int) -> None:
        """Adds a running trial."""
        self.running[slot] = trial
        self._slot_of[trial] = slot
        if (holder := self._holders.get(slot)) is not None:
            holder.has_requested = False

    def release(self, trial: int) -> None:
        """Removes a running trial; its job keeps the slot until ``release_job``."""
        if (slot := self._slot_of.pop(trial, None)) is not None:
            del self.running[slot]
            self._add_if_free(slot)

    def free_reserved(self) -> None:
        """Frees the slot on which proxies were computed."""
        slot, self.reserved = self.reserved, None
        if slot is not None:
            self._add_if_free(slot)

    def hold(self, slot: int, job: int) -> None:
        """Lets a job keep the slot."""
        self._holders[slot] = self._by_job[job] = SlotHolder(job, slot)

    def release_job(self, job: int) -> None:
        """Ends a job's hold on its slot."""
        if (holder := self._by_job.pop(job, None)) is not None:
            del self._holders[holder.slot]
            self._add_if_free(holder.slot)

    def _add_if_free(self, slot: int) -> None:
        if self.is_free(slot):
            heapq.heappush(self._heap, slot)

    def holder(self, job: int) -> SlotHolder | None:
        """Returns the job with its slot, if it keeps one."""
        return self._by_job.get(job)

    def holder_at(self, slot: int) -> SlotHolder | None:
        """Returns the job that keeps the slot, if any."""
        return self._holders.get(slot)

    def is_waiting(self, holder: SlotHolder) -> bool:
        """Returns whether the job has requested a trial and was neither given one nor dismissed."""
        is_here = not holder.is_dismissed and holder.left is None
        return holder.has_requested and is_here and holder.slot not in self.running

    def waiting(self) -> Iterator[SlotHolder]:
        """Yields the waiting jobs by slot."""
        if self._holders:
            yield from (holder for _, holder in sorted(self._holders.items()) if self.is_waiting(holder))

    def without_trial(self) -> Iterator[SlotHolder]:
        """Yields the jobs whose code runs, but no trial of theirs."""
        for slot, holder in self._holders.items():
            if slot not in self.running and not self.is_waiting(holder):
                yield holder

    def holders(self) -> Collection[SlotHolder]:
        """Returns all jobs that keep a slot."""
        return self._holders.values()

    @property
    def n_taken(self) -> int:
        """The number of slots in use."""
        n_reserved = self.reserved is not None
        return len(self.running) + n_reserved + sum(slot not in self.running for slot in self._holders)

    @property
    def n_active(self) -> int:
        """The number of slots from which an event will come without another decision."""
        return len(self.running) + (self.reserved is not None) + sum(1 for _ in self.without_trial())
