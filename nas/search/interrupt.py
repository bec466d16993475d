"""The interruption of running trials when a session ends early: Ctrl-C, SIGTERM, takeover, an error."""

from __future__ import annotations

import math
from collections.abc import Callable

from nas.core.trial import Trial
from nas.executors.events import Event, ExecutorFailed, Finished, TrialLost
from nas.executors.executor import Executor
from nas.search.slots import SlotPool

INTERRUPT_TIMEOUT_S = 20.0
INTERRUPT_REPEAT_S = 0.5


def interrupt_trials(
    executor: Executor, slots: SlotPool, trials: list[Trial], observe: Callable[[Event], None]
) -> None:
    """Interrupts all running trials, and waits until they have ended, for 20 s at most.

    A trial that finishes meanwhile keeps its result. The others get none, and run again in the next session.

    Args:
        executor: Runs the trials.
        slots: The running trials.
        trials: All trials by number; results are written into it.
        observe: Called with each result.
    """
    repeat_s = -math.inf
    until_s = executor.now_s() + INTERRUPT_TIMEOUT_S
    while slots.running and (now_s := executor.now_s()) < until_s:
        if now_s >= repeat_s:
            repeat_s = min(until_s, now_s + INTERRUPT_REPEAT_S)
            for number in slots.running.values():
                executor.stop(trials[number], "interrupt")
        match executor.next_event(repeat_s):
            case Finished(trial=trial):
                slots.release(trial.number)
                trials[trial.number] = trial
                observe(Finished(trial))
            case ExecutorFailed(job=None):
                return
            case TrialLost(trial=number):
                slots.release(number)
            case ExecutorFailed(job=job):
                release_trials(slots, trials, job)


def release_trials(slots: SlotPool, trials: list[Trial], job: int | None) -> None:
    """Releases the slots of a job's running trials."""
    for number in [number for number in slots.running.values() if trials[number].job == job]:
        slots.release(number)
