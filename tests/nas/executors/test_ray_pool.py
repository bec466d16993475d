"""Attempts on the actors of a Ray cluster: nodes that join and vanish, lost and preempted workers, refusals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import ConfigurationError, SearchInterruptedError
from nas.core.spec import Spec
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors import engine_worker
from nas.executors.engine_worker import EngineSpec
from nas.executors.events import Event, Started
from nas.executors.pool import WorkerLostError
from nas.executors.ray_pool import RayCluster, RayPool
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec
from tests.support.commands import until
from tests.support.problems import TroubleProblem
from tests.support.processes import parent_of
from tests.support.ray_nodes import RayNodes
from tests.support.recorded_display import RecordedDisplay

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Yields a cluster; drivers learn of the loss of its head after 3 s, not 60."""
    with pytest.MonkeyPatch.context() as patch, RayNodes(RAY_gcs_rpc_server_reconnect_timeout_s="3") as nodes:
        for name, value in nodes.environment.items():
            patch.setenv(name, value)
        yield nodes


class Driver:
    """A pool on the cluster, and the records of a search in a folder."""

    def __init__(self, root: Path, address: str | None, *, trial_timeout_s: float | None = None, **spec: Any) -> None:
        self.records = Records(open_root(str(root)))
        self.display = RecordedDisplay()
        self.events: list[Event] = []
        values: dict[str, Any] = {"problem": Spec.of(TroubleProblem), "url": str(root), "options": {}, "session": 1}
        runtime = RuntimeSpec(**{**values, **spec})
        engine = EngineSpec(runtime=runtime, trial_timeout_s=trial_timeout_s)
        self.pool = RayPool(engine, RayCluster(address=address), self.display, 1)
        self.threads = ThreadPoolExecutor(4)

    def start(self, number: int, do: str, seconds: int = 0, attempt: int = 1) -> Future[Trial | None]:
        """Starts an attempt as a slot of the controller does."""
        point = {"do": do, "seconds": seconds}
        trial = Trial(number=number, index=number, proposal=Proposal(point=point), slot=0, attempt=attempt)
        if attempt == 1:
            self.records.propose(trial)
        return self.threads.submit(self.pool.run, Assignment(trial), self.events.append)

    def await_start(self, number: int, attempt: int = 1) -> int:
        """Waits until the problem's code runs, and returns the process of the actor."""
        until(lambda: any(isinstance(e, Started) and e.trial == number and e.attempt == attempt for e in self.events))
        found = self.records.read(f"trials/{number:06d}.start-{attempt}.json")
        assert found is not None
        pid = int(found["pid"])
        for _ in range(3):  # its keeper, its guard, the actor
            pid = parent_of(pid)
        assert "ray::HeirloomWorker" in Path(f"/proc/{pid}/cmdline").read_text()
        return pid

    def close(self) -> None:
        self.pool.close()
        self.threads.shutdown()


@pytest.fixture
def open_driver(nodes: RayNodes, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Yields a function that opens a pool on the cluster, which has a node unless ``joins`` is false."""
    opened: list[Driver] = []

    def open_driver(*, joins: bool = True, **spec: Any) -> Driver:
        if joins and all(node.exit_status is not None for node in nodes.nodes):
            nodes.join()
        opened.append(Driver(tmp_path / "search", nodes.address, **spec))
        return opened[-1]

    yield open_driver
    for driver in opened:
        driver.close()


def lost(attempt: Future[Trial | None], timeout_s: float) -> WorkerLostError:
    error = attempt.exception(timeout_s)
    assert isinstance(error, WorkerLostError), error
    return error


def test_nodes_join_and_vanish(nodes: RayNodes, open_driver: Callable[..., Driver]) -> None:
    """A trial waits for a node, is lost with it in seconds, and runs again on the next; SIGTERM costs no attempt."""
    driver = open_driver(joins=False)
    first = driver.start(0, "report", seconds=100)
    until(lambda: "workers: 0 workers for 1 slot; each takes 1 CPU of the cluster" in driver.display.waits)
    node = nodes.join()
    driver.await_start(0)
    node.kill()
    why = lost(first, 120)
    again = driver.start(0, "report", seconds=100, attempt=2)
    nodes.join()
    raylet = parent_of(driver.await_start(0, attempt=2))
    os.kill(raylet, signal.SIGTERM)  # as Slurm and Kubernetes do
    planned = lost(again, 120)
    last = driver.start(0, "nothing", attempt=3)
    nodes.join()
    trial = last.result(120)

    assert (why.counts, planned.counts) == (True, False)
    assert "its worker" in str(why)
    assert "SIGTERM" in str(planned)  # told by Ray, or by the actor, to which the raylet passes it on
    assert trial is not None
    assert (trial.state, trial.attempt) == (State.COMPLETE, 3)
    until(lambda: driver.display.waits[-1] is None, what="the end of the wait")
    assert "1 worker for 1 slot" in driver.display.lines


def test_a_killed_worker_is_replaced(open_driver: Callable[..., Driver]) -> None:
    """kill -9 of an actor is noticed within seconds, and costs an attempt; SIGTERM costs none.

    The trial begins again soon after the notice.
    """
    driver = open_driver()
    began_s = time.monotonic()
    first = driver.start(0, "report", seconds=100)
    actor = driver.await_start(0)
    first_s = time.monotonic() - began_s
    os.kill(actor, signal.SIGKILL)
    whys = [lost(first, 120)]
    noticed_s = time.monotonic()
    second = driver.start(0, "report", seconds=100, attempt=2)
    actor = driver.await_start(0, attempt=2)
    seconds = time.monotonic() - noticed_s
    os.kill(actor, signal.SIGTERM)
    whys.append(lost(second, 120))
    trial = driver.start(0, "nothing", attempt=3).result(120)

    assert seconds < max(60, 3 * first_s)
    assert [why.counts for why in whys] == [True, False]
    assert "was lost" in str(whys[0])
    assert "its worker got SIGTERM" in str(whys[1])
    assert trial is not None
    assert trial.state == State.COMPLETE


def test_the_controller_never_waits_for_ray(open_driver: Callable[..., Driver]) -> None:
    """With the process that talks to Ray stopped, calls of the controller return at once, and arrive later."""
    driver = open_driver()
    running = driver.start(0, "report", seconds=100)
    driver.await_start(0)
    pid = driver.pool.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        for _ in range(2000):
            driver.pool.stop(Trial(number=0, index=0, proposal=Proposal(point={}), slot=0), "stop")
        driver.pool.dismiss(0)
        assert not driver.pool.has_job(0)
        seconds = time.monotonic() - began_s
    finally:
        os.kill(pid, signal.SIGCONT)
    trial = running.result(120)

    assert seconds < 10  # 2,000 waits of 10 ms are 20 s
    assert trial is not None
    assert trial.state == State.STOPPED


def test_a_trial_that_is_killed_on_its_way_to_an_actor_ends(open_driver: Callable[..., Driver]) -> None:
    """Such an order is not taken back: the actor ends the trial, begun or not, and runs the next one alone."""
    driver = open_driver()
    driver.start(0, "nothing").result(120)
    pid = driver.pool.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        running = driver.start(1, "report", seconds=100)
        time.sleep(0.2)
        driver.pool.stop(Trial(number=1, index=1, proposal=Proposal(point={}), slot=0), "kill")
    finally:
        os.kill(pid, signal.SIGCONT)
    while not running.done():  # as the controller does
        driver.pool.stop(Trial(number=1, index=1, proposal=Proposal(point={}), slot=0), "kill")
        time.sleep(0.1)
    driver.start(2, "nothing").result(120)
    start = driver.records.read_start(1, 1)

    assert start is None or not Path(f"/proc/{start['pid']}").exists()


def test_a_crash_and_a_timeout_end_only_their_trial(open_driver: Callable[..., Driver]) -> None:
    """As on one machine: a segfault costs an attempt, a trial past its time fails, and the actor goes on."""
    driver = open_driver(trial_timeout_s=5)
    crashed = lost(driver.start(0, "segfault"), 120)
    late = driver.start(1, "hang", seconds=100).result(120)
    last = driver.start(2, "nothing").result(120)

    assert crashed.counts
    assert "its worker was killed by SIGSEGV" in str(crashed)
    assert late is not None
    assert (late.state, late.reason) == (State.FAILED, Reason.TIMEOUT)
    assert last is not None
    assert last.state == State.COMPLETE
    assert not any("was lost" in line for line in driver.display.lines)


@pytest.mark.parametrize("what", ["version", "records", "code"])
def test_unfit_workers_are_refused(
    what: str, open_driver: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of another version or source, or without the driver's records, leave; three in a row end the search."""
    more: dict[str, Any] = {}
    if what == "version":
        monkeypatch.setattr(engine_worker, "versions", lambda: {"Heirloom": "9.9", "Python": "3.11"})
    if what == "records":
        more = {"url": str(tmp_path / "elsewhere")}
    if what == "code":
        more = {"code": {"tests/support/problems.py": "of another source"}}
    driver = open_driver(**more)
    errors = [driver.start(0, "nothing", attempt=attempt).exception(120) for attempt in (1, 2, 3)]

    expected = {
        "version": "the driver has Heirloom 9.9, this worker ",
        "records": "does not hold the driver's trial 0",
        "code": "tests/support/problems.py changed",
    }
    assert [type(error) for error in errors[:2]] == [WorkerLostError] * 2
    assert isinstance(errors[2], ConfigurationError)
    assert all(expected[what] in str(error) for error in errors)
    assert sum("leaves, because it can't run trials" in note for note in driver.display.lines) == 2


def test_workers_without_heirloom_are_refused(
    open_driver: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors of an environment without Heirloom end the search after three in a row, with what they can't import."""
    (tmp_path / "nas.py").touch()  # hides Heirloom
    monkeypatch.setattr(spawn, "get_preparation_data", lambda name: {"sys_path": [str(tmp_path)]})
    driver = open_driver()
    error = driver.start(0, "nothing").exception(120)

    assert isinstance(error, ConfigurationError)
    told = "it can't import Heirloom: ModuleNotFoundError: No module named 'nas.executors'; 'nas' is not a package ("
    assert told in str(error)
    assert [told in line and "leaves" in line for line in driver.display.lines] == [True, True]


def test_the_loss_of_the_head_ends_the_session(nodes: RayNodes, open_driver: Callable[..., Driver]) -> None:
    """Without a head nothing goes on: an interruption, after which the same command resumes. The last test here."""
    driver = open_driver()
    running = driver.start(0, "report", seconds=100)
    driver.await_start(0)
    nodes.head.kill()

    with pytest.raises(SearchInterruptedError, match="the head of the Ray cluster was lost"):
        running.result(120)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray that can't start ends the first trial with one line."""
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "2")  # it asks for 20 s by default
    driver = Driver(tmp_path / "search", "127.0.0.1:9")
    error = driver.start(0, "nothing").exception(120)
    driver.close()

    assert "runner.address=127.0.0.1:9: " in str(error)
