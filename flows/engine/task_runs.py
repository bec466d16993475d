"""The task runs of trials, kept as small as edges and artifacts allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any, final
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

TrialFuture = PrefectFuture[Any]
SubmittedRun = PrefectConcurrentFuture[Any]
_Queue = deque[tuple[int, SubmittedRun]]
_COMPLETED: State[Any] = Completed(data=True)  # Prefect refuses a state without data


@final
class EndedTaskRun(PrefectFuture[Any]):
    """The future of a completed task run, without its result.

    Prefect's own future takes 11 kB: three locks with queues, states and the task's arguments.
    """

    def __init__(self, task_run_id: UUID) -> None:
        self._task_run_id = task_run_id

    @property
    def task_run_id(self) -> UUID:
        """Id of the task run."""
        return self._task_run_id

    @property
    def state(self) -> State[Any]:
        """Completed."""
        return _COMPLETED

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> None:
        """Returns None."""

    def add_done_callback(self, fn: Callable[[PrefectFuture[Any]], None]) -> None:
        """Calls the function at once."""
        fn(self)


class TrialTaskRuns:
    """The task runs of trials, by trial number. Only the controller's thread uses it.

    A trial has ended when its result is durable. Its task run ends some milliseconds later.

    Args:
        max_late: Number of task runs that may end later than their trials; ``end`` waits for the oldest of more.
    """

    def __init__(self, max_late: int) -> None:
        self._max_late = max_late
        self._ids: dict[int, UUID] = {}
        self._sources: dict[int, TrialFuture] = {}
        """Task runs that are or may become Completed; Prefect starts no task after another."""
        self._ended: set[int] = set()
        self._running: dict[int, SubmittedRun] = {}
        self._late: _Queue = deque()
        self._restored: _Queue = deque()

    def id_of(self, trial: int) -> str | None:
        """Returns the id of the task run that was added last."""
        return str(self._ids[trial]) if trial in self._ids else None

    def is_known(self, trial: int) -> bool:
        """Returns whether edges may start from the trial, or it FAILED in this session."""
        return trial in self._sources or trial in self._ended

    def has_ended(self, trial: int) -> bool:
        """Returns whether a task run shows the end of the trial."""
        return trial in self._ended

    def edges(self, trials: Iterable[int]) -> list[TrialFuture]:
        """Returns the task runs of these trials from which edges may start."""
        return [self._sources[trial] for trial in trials if trial in self._sources]

    def add(self, trial: int, future: SubmittedRun) -> None:
        """Adds a task run of a trial, in place of an earlier one."""
        self._ids[trial] = future.task_run_id
        self._sources[trial] = self._running[trial] = future

    def restore(self, trial: int, future: SubmittedRun) -> None:
        """Adds the task run of a trial of an earlier session."""
        self._ids[trial] = future.task_run_id
        self._sources[trial] = future
        self._ended.add(trial)
        self._restored.append((trial, future))

    def end(self, trial: int, *, is_source: bool) -> None:
        """Notes that a trial has ended, and whether edges may start from it."""
        self._ended.add(trial)
        self._close(trial, is_source=is_source)

    def lose(self, trial: int) -> None:
        """Notes that an attempt of a trial was lost."""
        self._close(trial, is_source=False)

    def wait(self) -> None:
        """Waits until the task runs of all trials that have ended are over."""
        wait([future.wrapped_future for _, future in (*self._late, *self._restored)])

    def _close(self, trial: int, *, is_source: bool) -> None:
        if (future := self._running.pop(trial, None)) is None:
            return
        if not is_source:
            del self._sources[trial]
        self._late.append((trial, future))
        if len(self._late) > self._max_late:
            wait([self._late[0][1].wrapped_future])
        self._shrink(self._late)
        self._shrink(self._restored)

    def _shrink(self, queue: _Queue) -> None:
        """Replaces the oldest futures by small ones, as far as their task runs are over."""
        while queue and queue[0][1].wrapped_future.done():
            trial, future = queue.popleft()
            if self._sources.get(trial) is future and _is_completed(future):
                self._sources[trial] = EndedTaskRun(future.task_run_id)


def _is_completed(future: SubmittedRun) -> bool:
    ended = future.wrapped_future
    if ended.cancelled() or ended.exception() is not None:
        return False
    state = ended.result()
    return isinstance(state, State) and state.is_completed()


class TrialTaskRunner(ThreadPoolTaskRunner[Any]):
    """Prefect's thread pool of task runs, without what it keeps of those that are over."""

    def submit(self, *arguments: Any, **options: Any) -> SubmittedRun:
        """Submits a task run."""
        future: SubmittedRun = super().submit(*arguments, **options)
        cancel_events, context = self._cancel_events, FlowRunContext.get()

        def forget(_: PrefectFuture[Any]) -> None:
            cancel_events.pop(future.task_run_id, None)
            if context is not None:
                context.task_run_assets.pop(future.task_run_id, None)

        future.add_done_callback(forget)
        return future

    def cancel_all(self) -> None:
        """Cancels what has not begun.

        Prefect walks through a dictionary that task runs change as they end.
        """
        self._cancel_events = self._cancel_events.copy()
        super().cancel_all()
