"""The futures of task runs that trials keep."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Completed, Failed
from prefect.utilities.engine import collect_task_run_inputs_sync, resolve_to_final_result

from flows.engine.task_runs import EndedTaskRun, TrialTaskRuns


def running() -> tuple[PrefectConcurrentFuture[Any], Future[State[Any]]]:
    """Returns the future of a task run that runs, and the future that ends it."""
    ending: Future[State[Any]] = Future()
    return PrefectConcurrentFuture(uuid4(), ending), ending


def ended(state: State[Any]) -> PrefectConcurrentFuture[Any]:
    """Returns the future of a task run that ended in a state."""
    future, ending = running()
    ending.set_result(state)
    return future


def ids(task_runs: TrialTaskRuns, *trials: int) -> list[UUID]:
    return [future.task_run_id for future in task_runs.edges(trials)]


def test_edge_from_an_ended_task_run_is_prefects_own() -> None:
    """Prefect finds the id of an ended task run, and waits for nothing."""
    edge = EndedTaskRun(uuid4())

    [source] = collect_task_run_inputs_sync([edge])
    assert source.id == edge.task_run_id
    assert resolve_to_final_result(edge, {}) is True


def test_ended_task_run_keeps_its_id_only() -> None:
    """A completed trial has an edge with the id of its task run, without Prefect's future."""
    task_runs, future = TrialTaskRuns(max_late=4), ended(Completed(data=True))
    task_runs.add(0, future)
    task_runs.end(0, is_source=True)

    [edge] = task_runs.edges([0])
    assert isinstance(edge, EndedTaskRun)
    assert edge.task_run_id == future.task_run_id
    assert task_runs.id_of(0) == str(future.task_run_id)


def test_late_task_run_keeps_prefects_future() -> None:
    """A child of a trial whose task run still ends waits for that task run."""
    task_runs, (future, ending) = TrialTaskRuns(max_late=4), running()
    task_runs.add(0, future)
    task_runs.end(0, is_source=True)

    assert task_runs.edges([0]) == [future]
    ending.set_result(Completed(data=True))
    task_runs.add(1, ended(Completed(data=True)))
    task_runs.end(1, is_source=True)
    assert isinstance(task_runs.edges([0])[0], EndedTaskRun)


@pytest.mark.parametrize("outcome", [Failed(message="by Prefect"), OSError("in Prefect")])
def test_task_run_that_prefect_failed_keeps_its_future(outcome: State[Any] | OSError) -> None:
    """Prefect refuses the children of a task run that it could not complete, as if it were not replaced."""
    task_runs, (future, ending) = TrialTaskRuns(max_late=4), running()
    task_runs.add(0, future)
    ending.set_exception(outcome) if isinstance(outcome, OSError) else ending.set_result(outcome)
    task_runs.end(0, is_source=True)

    assert task_runs.edges([0]) == [future]


def test_failed_and_lost_trials_have_no_edges() -> None:
    """No edge starts from a FAILED trial or a lost attempt; the next attempt has its own."""
    task_runs, second = TrialTaskRuns(max_late=4), ended(Completed(data=True))
    for trial in (0, 1):
        task_runs.add(trial, ended(Failed(message="lost")))
    task_runs.end(0, is_source=False)
    task_runs.lose(1)

    assert ids(task_runs, 0, 1) == []
    assert task_runs.has_ended(0)
    assert not task_runs.has_ended(1)
    task_runs.add(1, second)
    assert ids(task_runs, 0, 1) == [second.task_run_id]


def test_task_runs_lag_behind_by_a_bound() -> None:
    """The end of a trial waits for the oldest task run if more than ``max_late`` are not over."""
    task_runs, (future, ending) = TrialTaskRuns(max_late=1), running()
    task_runs.add(0, future)
    task_runs.add(1, running()[0])
    task_runs.end(0, is_source=True)
    closing = threading.Thread(target=task_runs.end, args=(1,), kwargs={"is_source": True}, daemon=True)
    closing.start()

    closing.join(0.05)
    assert closing.is_alive()
    ending.set_result(Completed(data=True))
    closing.join(10)
    assert not closing.is_alive()


def test_restored_task_runs_are_waited_for_at_the_end_only() -> None:
    """Many trials of earlier sessions delay no result; the flow waits for their task runs at its end."""
    task_runs, pairs = TrialTaskRuns(max_late=1), [running() for _ in range(5)]
    for trial, (future, _) in enumerate(pairs):
        task_runs.restore(trial, future)
    task_runs.add(5, ended(Completed(data=True)))
    task_runs.end(5, is_source=True)
    waiting = threading.Thread(target=task_runs.wait, daemon=True)
    waiting.start()

    waiting.join(0.05)
    assert waiting.is_alive()
    for _, ending in pairs:
        ending.set_result(Completed(data=True))
    waiting.join(10)
    assert not waiting.is_alive()
    assert task_runs.has_ended(0)
