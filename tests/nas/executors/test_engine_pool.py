"""What pools on engines make of their workers' messages, without an engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import StorageError
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.executors.engine_pool import EnginePool, EngineTask
from nas.executors.engine_session import Answered, Message
from nas.executors.engine_worker import EngineSpec, PackedOrder, WorkerUnfit
from nas.executors.events import Event, ExecutorFailed, JobLeftWorker, Notice, ProxiesComputed, TrialLost
from nas.executors.pool import compute_proxies, resume_job
from nas.executors.process_pool import ProcessPool
from nas.training.messages import JobStart, ProxyRequest, RuntimeSpec
from tests.support.commands import until
from tests.support.recorded_display import RecordedDisplay


class ScriptedPool(EnginePool):
    """A pool with nine jobs that wait for the messages of their workers.

    Args:
        capacity: The number of jobs that have workers; the others wait in the pool.
    """

    def __init__(self, capacity: int = 9) -> None:
        self.capacity = capacity
        runtime = RuntimeSpec(problem=Spec("no.Problem"), url="/nowhere", options={}, jobs_request_trials=True)
        super().__init__(EngineSpec(runtime=runtime), RecordedDisplay(), 9)
        self.keys: list[str] = []
        self.events: list[Event] = []
        for job in range(9):
            self.resume(JobStart(job, 0), self.events.append)

    def answer(self, job: int, worker: str, message: Message) -> None:
        """Takes in the message of a job's worker."""
        with self._lock:
            self._handle(self.keys[job], self._tasks[self.keys[job]], worker, message)

    @property
    def _capacity(self) -> int:
        return self.capacity

    def _start(self, key: str, task: EngineTask, order: PackedOrder) -> None:
        self.keys.append(key)

    def _tell(self, key: str, method: str, *arguments: Any) -> None: ...

    def _forget(self, key: str, task: EngineTask) -> None: ...

    def _exclude(self, worker: Any) -> None: ...

    def _retire(self, worker: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def pool() -> ScriptedPool:
    return ScriptedPool()


def test_notices_of_workers_arrive(pool: ScriptedPool) -> None:
    """A worker's warning reaches the user, as that of a process of this machine does."""
    pool.answer(0, "tcp://a", Notice("export: does not work"))

    assert pool.events == [Notice("export: does not work")]


def test_threads_of_an_unfit_worker_count_once(pool: ScriptedPool) -> None:
    """Three threads of one worker do not end the search; the third worker does."""
    for job, worker in enumerate("aaab"):
        pool.answer(job, f"tcp://{worker}", WorkerUnfit("no mount", is_mistake=False))
    assert [(type(event), getattr(event, "counts", None)) for event in pool.events] == [(JobLeftWorker, False)] * 4

    pool.answer(4, "tcp://c", WorkerUnfit("no mount", is_mistake=False))
    [failed, *_] = pool.events[4:]
    assert isinstance(failed, ExecutorFailed)
    assert str(failed.error) == "3 workers in turn can't run trials; the last, tcp://c: no mount"


def test_a_storage_that_fails_on_all_workers_ends_the_search_as_such(pool: ScriptedPool) -> None:
    """The command then says how to resume, as if the storage failed in the driver's process."""
    unfit = WorkerUnfit.of(StorageError("can't write s3://bucket/x: no space"))
    for job, worker in enumerate("abc"):
        pool.answer(job, f"tcp://{worker}", unfit)
    [failed, *_] = pool.events[2:]

    assert isinstance(failed, ExecutorFailed)
    assert isinstance(failed.error, StorageError)
    assert str(failed.error).endswith("the last, tcp://c: can't write s3://bucket/x: no space")


@pytest.mark.parametrize("capacity", [0, 9], ids=["no worker is there", "no worker has begun"])
def test_a_kill_takes_back_what_no_worker_has_begun(capacity: int) -> None:
    """The start of a job, and the computation of proxies; both count as losses that cost no attempt."""
    pool, request = ScriptedPool(capacity), ProxyRequest(number=4, seed=0, names=("naswot",), points=({"width": 3},))
    outcomes: list[Event] = []
    computing = threading.Thread(target=lambda: outcomes.append(compute_proxies(pool, request)))
    pool.stop(Trial(number=30, index=30, proposal=Proposal(point={}), job=3), "kill")
    computing.start()
    while computing.is_alive():  # its order may not be there yet
        pool.stop(request, "kill")
        computing.join(0.1)

    overdue = "the time budget was used up"
    assert pool.events == [JobLeftWorker(3, lost=overdue, counts=False)]
    assert outcomes == [ProxiesComputed(request, error=overdue, is_lost=True)]
    assert len(pool.keys) == (capacity and 10)


@pytest.mark.parametrize("counts", [False, True])
def test_only_unplanned_losses_use_up_the_tries_of_a_call(counts: bool) -> None:
    """The proxies of candidates are computed after any number of preemptions, but not after three kills."""
    pool, request = ScriptedPool(10), ProxyRequest(number=4, seed=0, names=("naswot",), points=({"width": 3},))
    outcomes: list[Event] = []
    computing = threading.Thread(target=lambda: outcomes.append(compute_proxies(pool, request)))
    computing.start()
    for n in range(10, 13):
        until(lambda: len(pool.keys) == n, 20)  # noqa: B023
        pool.answer(n - 1, "tcp://a", TrialLost(0, 4, "its worker left", counts))
    if not counts:
        until(lambda: len(pool.keys) == 13, 20)
        pool.answer(12, "tcp://b", Answered({"values": [{"naswot": 1.0}], "error": None}))
    computing.join(20)

    lost = ProxiesComputed(request, error="proxies of trial 4: its worker left (on tcp://a)", is_lost=True)
    assert outcomes == [lost if counts else ProxiesComputed(request, [{"naswot": 1.0}])]


def test_a_resumed_job_of_a_closed_pool_costs_no_attempt(tmp_path: Path) -> None:
    """A job that its worker can't take because the session ends is lost, but that does not count."""
    pool = ProcessPool(RuntimeSpec(problem=Spec("no.Problem"), url=str(tmp_path), options={}), 1)
    pool.close()
    events: list[Event] = []
    resume_job(pool, JobStart(3, 0), events.append)

    assert events == [JobLeftWorker(3, lost="interrupted", counts=False)]
