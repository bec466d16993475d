"""Dask pools on a real scheduler and real workers: losses, departures, refusals and workers that are too few."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from nas import Ability, Budget, Metric, Proposal, Tuner
from nas.core.errors import ActionError, ConfigurationError, SearchFailedError, SearchInterruptedError
from nas.core.lineage import Lineage
from nas.core.policy import Policy, Stage
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.executors import dask_pool
from nas.executors.dask_pool import DaskPool
from nas.executors.engine_worker import ROOT_VARIABLE, EngineSpec, unpacked
from nas.executors.events import Event, Finished, JobLeftWorker, Started, StopRequested, TrialLost, TrialRequested
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings, SearchController
from nas.search.job_plan import JobPlan
from nas.stoppers.base import Stopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.code_digests import code_digests
from nas.training.messages import RuntimeSpec
from tests.support import held_problem
from tests.support.commands import environment, until
from tests.support.dask_cluster import DaskCluster
from tests.support.held_problem import CrashingProblem, HeldPhases, HeldProblem
from tests.support.recorded_display import RecordedDisplay

pytestmark = pytest.mark.slow


class CountingTuner(Tuner):
    """Proposes 0, 1, 2, ...; each a child of the trial ``behind`` places before it."""

    behind = 0

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        parents = (number - self.behind,) if self.behind and number >= self.behind else ()
        return Proposal(point={"x": number}, parents=parents, donors=())


class HighStopper(Stopper):
    """Stops trials that report more than 2."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.curve[-1][1]["score"] > 2


class Driver:
    """A search that this process drives.

    Args:
        folder: Holds the root and the files that hold trials.
        cluster: Runs its trials.
        problem: The class of the problem.
        more: Arguments of the pool, ``stopper``, ``trials_per_job``, ``url``, ``trial_timeout_s`` and settings of the
            controller.
    """

    def __init__(
        self, folder: Path, cluster: DaskCluster, problem: type[HeldProblem] = HeldProblem, **more: Any
    ) -> None:
        self.folder = folder
        (folder / "hold").mkdir()
        spec = Spec(f"held_problem.{problem.__name__}", {"hold": str(folder / "hold")})
        self.problem = problem(str(folder / "hold"))
        self.root = folder / "root" / "search"
        self.records = Records(open_root(str(self.root)))
        self.stopper: Stopper | None = more.pop("stopper", None)
        self.slots: int = more.pop("slots", 1)
        loops = Ability.TRAIN_MANY in self.problem.abilities
        self.plan = JobPlan.of(more.pop("trials_per_job", None), loops=loops)
        runtime = RuntimeSpec(
            problem=spec,
            url=more.pop("url", str(self.root)),
            options={},
            session=1,
            code=code_digests(spec, self.problem),
            has_stopper=self.stopper is not None,
            jobs_request_trials=self.plan.requests_trials,
        )
        self.display = RecordedDisplay()
        self.events: list[Event] = []
        self.client = cluster.client()
        self.pool = DaskPool(
            EngineSpec(runtime=runtime, trial_timeout_s=more.pop("trial_timeout_s", None)),
            self.client,
            self.display,
            slots=self.slots,
            n_ahead=more.pop("n_ahead", 0),
            resources=more.pop("resources", None),
        )
        self.executor = LocalExecutor(self.pool, self.slots)
        self.tuner = CountingTuner(self.problem.space, self.problem.metrics)
        self.settings = more

    def hold(self, trial: int) -> Path:
        """Holds a trial until the file is deleted."""
        (self.folder / "hold" / str(trial)).touch()
        return self.folder / "hold" / str(trial)

    def start(self, n_trials: int = 2) -> Callable[[], list[Trial]]:
        """Runs the search on a thread. The result waits for its end and returns its trials."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(self._run(n_trials))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait() -> list[Trial]:
            thread.join(120)
            assert outcome, (self.display.lines, self.events)
            if isinstance(outcome[0], BaseException):
                raise outcome[0]
            trials: list[Trial] = outcome[0]
            return trials

        return wait

    def _run(self, n_trials: int) -> list[Trial]:
        trials, starts = self.records.load()
        settings = ControllerSettings(jobs=self.plan, budget=Budget(trials=n_trials), **self.settings)
        controller = SearchController(
            self.records,
            self.executor,
            settings,
            trials=trials,
            starts=starts,
            tuner=self.tuner,
            space=self.problem.space,
            stopper=self.stopper,
            observe=self.events.append,
        )
        controller.search(Stage(name="search", policies=frozenset({Policy.EARLY_STOP})))
        return self.records.load()[0]

    def of(self, kind: type[Event]) -> list[Any]:
        """Returns the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def has_started(self, trial: int, attempt: int = 1) -> bool:
        """Returns whether an attempt trains."""
        return any(event.trial == trial and event.attempt == attempt for event in self.of(Started))


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def cluster(scheduler: DaskCluster) -> Iterator[DaskCluster]:
    """Yields a cluster without workers."""
    yield scheduler
    scheduler.leave_alone()


@pytest.fixture
def drive(tmp_path: Path, cluster: DaskCluster) -> Iterator[Callable[..., Driver]]:
    opened: list[Driver] = []

    def open_driver(problem: type[HeldProblem] = HeldProblem, **more: Any) -> Driver:
        opened.append(Driver(tmp_path, cluster, problem, **more))
        return opened[-1]

    yield open_driver
    for driver in opened:
        driver.executor.close()


@pytest.fixture
def asks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pools ask the scheduler for its workers every ten minutes, too late for a test."""
    monkeypatch.setattr(dask_pool, "ASK_AGAIN_S", 600.0)


@pytest.mark.usefixtures("asks_rarely")
def test_a_killed_worker_is_noticed_at_once(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """Trials wait for workers; kill -9 of the only one is noticed by an event, and its trial runs on the next."""
    driver = drive(HeldPhases, trials_per_job=2)
    hold = driver.hold(1)
    wait = driver.start(3)
    until(lambda: driver.display.waits == ["workers: 0 workers for 1 slot"])
    first = cluster.join()
    until(lambda: driver.has_started(1))
    first.kill()
    until(lambda: driver.of(TrialLost))
    told = ["workers: 0 workers for 1 slot", None, "workers: 0 workers for 1 slot"]
    until(lambda: driver.display.waits == told, what="the line of the second wait")
    hold.unlink()
    second = cluster.join()
    trials = wait()

    assert [(t.job, t.attempt, t.state) for t in trials] == [(0, 1, "COMPLETE"), (0, 2, "COMPLETE"), (2, 1, "COMPLETE")]
    assert [(e.trial, e.counts) for e in driver.of(TrialLost)] == [(1, True)]
    until(lambda: driver.display.waits == [*told, None], what="the end of the second wait")
    assert "1 worker for 1 slot" in driver.display.lines
    assert not first.leftovers()
    assert second.leftovers()
    assert driver.executor.call("test", trials[0]) == {"metrics": {"score": 0.0}}
    with pytest.raises(ActionError, match="RuntimeError: no test today"):
        driver.executor.call("test", trials[1])


@pytest.mark.usefixtures("asks_rarely")
def test_a_lost_trial_begins_again_at_once(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """After kill -9 of its worker a trial begins on another, without a question for workers."""
    driver = drive(slots=2)
    hold = driver.hold(0)
    wait = driver.start(2)
    cluster.join(), cluster.join()
    until(lambda: driver.has_started(0) and [event.trial.number for event in driver.of(Finished)] == [1])
    start = driver.records.read_start(0, 1)
    assert start is not None
    [busy] = [worker for worker in cluster.workers if start["pid"] in worker.leftovers()]
    busy.kill()
    until(lambda: driver.has_started(0, attempt=2))
    hold.unlink()
    trials = wait()

    assert [(trial.state, trial.attempt) for trial in trials] == [(State.COMPLETE, 2), (State.COMPLETE, 1)]


def test_a_task_that_dask_begins_again_trains_nothing(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """A worker is lost while the driver is busy: Dask begins its task on another, which reports the loss."""
    driver = drive()
    hold = driver.hold(0)
    wait = driver.start(1)
    first = cluster.join()
    until(lambda: driver.has_started(0))
    second = cluster.join()
    until(lambda: "2 workers for 1 slot" in driver.display.lines)
    goes_on = threading.Event()
    driver.client.loop.add_callback(goes_on.wait)
    try:
        first.kill()
        with cluster.client() as other:
            until(lambda: lost_again(other, driver), what="the answer of the second worker")
        starts = [name for name in driver.records.files.names("trials") if ".start-" in name]
        until(lambda: not first.leftovers(), what="the end of the first worker's processes")
    finally:
        goes_on.set()
    hold.unlink()
    [trial] = wait()

    assert starts == ["000000.start-1.json"]
    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert [(event.trial, event.counts) for event in driver.of(TrialLost)] == [(0, True)]
    assert second.leftovers()


def lost_again(other: Client, driver: Driver) -> bool:
    """Returns whether a worker has told the driver that its attempt was started before."""
    told = [content for _, content in other.get_events(str(driver.client.id)) if isinstance(content, bytes)]
    messages = [unpacked(content)[2] for content in told]
    return any("the engine ran its task again" in m.why for m in messages if isinstance(m, TrialLost))


@pytest.mark.usefixtures("asks_rarely")
def test_an_older_answer_about_workers_may_arrive_last(
    drive: Callable[..., Driver], cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers join; what the scheduler said after the first arrives after what it said then. Both get trials."""
    driver = drive(slots=2)
    driver.hold(0), driver.hold(1)
    ask, asked = driver.client.scheduler.identity, []

    async def identity(**of_dask: int) -> Any:
        if of_dask:  # the client's own question
            return await ask(**of_dask)
        asked.append(None)
        is_first, found = len(asked) == 1, await ask()
        while is_first and "2 workers for 2 slots" not in driver.display.lines:
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(driver.client.scheduler, "identity", identity)
    cluster.join()
    until(lambda: asked, what="the first question")
    cluster.join()
    until(lambda: "2 workers for 2 slots" in driver.display.lines, what="both workers")
    driver.start(2)
    until(lambda: driver.has_started(0) and driver.has_started(1), what="both trials")


def test_a_worker_whose_event_was_lost_gets_trials(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """The pool asks the scheduler itself: a worker may join just before the pool subscribes to events."""
    driver = drive(slots=1)
    driver.client.unsubscribe_topic("all")
    cluster.join()
    until(lambda: "1 worker for 1 slot" in driver.display.lines, what="the worker")
    driver.hold(0)
    driver.start(1)
    until(lambda: driver.has_started(0), what="the trial")


def test_the_controller_never_waits_for_dask(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """With the scheduler stopped, calls of the controller return at once, and arrive later."""
    driver = drive()
    driver.hold(0)
    wait = driver.start(1)
    cluster.join()
    until(lambda: driver.has_started(0))
    [trial] = driver.records.load()[0]
    cluster.scheduler.send(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        for _ in range(2000):
            driver.pool.stop(trial, "stop")
        driver.pool.dismiss(0)
        assert not driver.pool.has_job(0)
        seconds = time.monotonic() - began_s
    finally:
        cluster.scheduler.send(signal.SIGCONT)
    [trial] = wait()

    assert seconds < 10  # 2,000 waits of 10 ms are 20 s
    assert (trial.state, trial.attempt) == (State.STOPPED, 1)


def test_a_crash_and_a_timeout_end_only_their_trial(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """As on one machine: a segfault costs an attempt, a trial past its time fails, and the worker goes on."""
    driver = drive(CrashingProblem, trial_timeout_s=4)
    driver.hold(1)
    worker = cluster.join()
    crashed, late, last = driver.start(3)()

    assert [(t.state, t.attempt) for t in (crashed, late, last)] == [("COMPLETE", 2), ("FAILED", 1), ("COMPLETE", 1)]
    assert late.reason == Reason.TIMEOUT
    [event] = driver.of(TrialLost)
    assert "its worker was killed by SIGSEGV" in event.why
    assert worker.process.poll() is None
    assert not any("was lost" in line for line in driver.display.lines)


@pytest.mark.parametrize("nanny", [False, True])
def test_a_preempted_worker_costs_no_attempt(drive: Callable[..., Driver], cluster: DaskCluster, nanny: bool) -> None:
    """SIGTERM to all processes of a worker, as Slurm sends it: the trial is interrupted and runs elsewhere."""
    driver = drive(max_attempts=1)
    hold = driver.hold(0)
    wait = driver.start(1)
    worker = cluster.join(nanny=nanny)
    until(lambda: driver.has_started(0))
    worker.send(signal.SIGTERM)
    until(lambda: driver.of(TrialLost))
    until(lambda: not worker.leftovers(), what="the end of the worker")
    hold.unlink()
    cluster.join()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert [(e.trial, e.counts) for e in driver.of(TrialLost)] == [(0, False)]
    assert "000000.left-1.json" in driver.records.files.names("trials")
    whys = ["left: its worker got SIGTERM", *["left: its worker was closed"] * nanny]  # its nanny may be first
    assert any(why in line for why in whys for line in driver.display.lines)


def test_a_preempted_worker_costs_a_test_no_try(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """SIGTERM to a worker that tests a trial: the test waits for the next worker and runs there."""
    driver = drive()
    hold = driver.hold(0).rename(driver.folder / "hold" / "test-0")
    wait = driver.start(1)
    first = cluster.join()
    [trial] = wait()
    tested = ThreadPoolExecutor().submit(driver.executor.call, "test", trial)
    until((hold.parent / "held-test-0").exists, what="the test")
    first.send(signal.SIGTERM)
    until(lambda: not first.leftovers(), what="the end of the worker")
    hold.unlink()
    cluster.join()

    assert tested.result(120) == {"metrics": {"score": 0.0}}


def test_one_worker_serves_many_jobs(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """With more slots than workers, jobs that wait on the only worker give way; the stopper's decisions arrive."""
    driver = drive(HeldPhases, slots=3, stopper=HighStopper((Metric("score"),)))
    driver.tuner.behind = 2
    cluster.join()
    trials = driver.start(6)()

    assert [(t.state, len(t.curve)) for t in trials] == [
        *[("COMPLETE", 3)] * 2, ("STOPPED", 2), *[("STOPPED", 1)] * 3,
    ]  # fmt: skip
    assert {t.attempt for t in trials} == {1}
    assert driver.of(JobLeftWorker)


def test_a_decision_that_does_not_arrive_loses_the_trial(
    drive: Callable[..., Driver], cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that waits for the stopper's answer runs again if its worker can't be reached; it waited forever."""
    send, failed = Client.run, []

    def run(client: Client, function: Any, *arguments: Any, **more: Any) -> Any:
        if "decide" in arguments and not failed:
            failed.append(arguments)
            raise OSError("timed out")
        return send(client, function, *arguments, **more)

    monkeypatch.setattr(Client, "run", run)
    driver = drive(stopper=HighStopper((Metric("score"),)))
    cluster.join()
    [trial] = driver.start(1)()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert ["can't be reached: timed out" in event.why for event in driver.of(TrialLost)] == [True]


def test_a_kill_that_does_not_arrive_loses_the_trial(
    drive: Callable[..., Driver], cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that must end is given up if its worker can't be reached, and the worker ends it by itself."""
    send = Client.run

    def run(client: Client, function: Any, *arguments: Any, **more: Any) -> Any:
        if arguments[-1] in ("deadline", "kill"):
            raise OSError("timed out")
        return send(client, function, *arguments, **more)

    monkeypatch.setattr(Client, "run", run)
    driver = drive()
    hold = driver.hold(0)
    wait = driver.start(1)
    cluster.join()
    until(lambda: driver.has_started(0))
    trial = driver.records.load()[0][0]
    driver.pool.stop(trial, "deadline")  # the controller repeats it, then kills
    driver.pool.stop(trial, "kill")
    until(lambda: driver.of(TrialLost))
    until(lambda: driver.has_started(0, attempt=2), what="the end of the first attempt on the only worker")
    hold.unlink()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert ["can't be reached: timed out" in event.why for event in driver.of(TrialLost)] == [True]


def test_workers_of_another_root_are_refused(
    drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path
) -> None:
    """Such a worker leaves with one line that says why, and its trial runs elsewhere."""
    driver = drive(max_attempts=1)
    cluster.join(**{ROOT_VARIABLE: str(tmp_path / "elsewhere")})
    wait = driver.start(1)
    until(lambda: driver.of(TrialLost))
    cluster.join()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    told = "".join(driver.display.lines)
    assert f"{tmp_path}/elsewhere/search on this worker: does not hold the driver's trial 0" in told
    assert not list(tmp_path.glob("elsewhere/**/*.start-*"))


def test_workers_with_other_code_are_refused(
    drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose source of the problem differs leaves with the file's name; its trial runs elsewhere."""
    monkeypatch.syspath_prepend(Path(held_problem.__file__).parent)
    driver = drive(max_attempts=1)
    source = Path(held_problem.__file__).read_text()
    (tmp_path / "held_problem.py").write_text(source.replace("range(3)", "range(4)"))
    cluster.join(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    wait = driver.start(1)
    until(lambda: driver.of(TrialLost))
    cluster.join()
    [trial] = wait()

    assert (trial.state, trial.attempt, len(trial.curve)) == (State.COMPLETE, 2, 3)
    assert [(event.trial, event.counts) for event in driver.of(TrialLost)] == [(0, False)]
    assert "can't run trials: held_problem.py changed" in "".join(driver.display.lines)


def test_workers_without_heirloom_are_refused(
    drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path
) -> None:
    """A worker of an environment without Heirloom leaves with what it can't import; its trial runs elsewhere."""
    (tmp_path / "nas.py").touch()  # hides Heirloom
    driver = drive(max_attempts=1)
    cluster.join(PYTHONPATH=str(tmp_path))
    wait = driver.start(1)
    until(lambda: driver.of(TrialLost))
    cluster.join()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert [(event.trial, event.counts) for event in driver.of(TrialLost)] == [(0, False)]
    told = "can't run trials: it can't import Heirloom: ModuleNotFoundError: No module named 'nas.executors'"
    assert [told in line for line in driver.display.lines if "leaves" in line] == [True]


def test_unfit_workers_with_results_of_others_leave(
    drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path
) -> None:
    """Dask does not retire the only worker that holds a result; it leaves when another worker can take that.

    It gets no trial meanwhile, also if trials are sent ahead of workers, and the wait names it.
    """
    driver = drive(max_attempts=1, n_ahead=1)
    unfit = cluster.join(**{ROOT_VARIABLE: str(tmp_path / "elsewhere")})
    with cluster.client() as other:
        kept = other.submit(int, "7")
        assert kept.result(60) == 7
        wait = driver.start(1)
        until(lambda: driver.of(TrialLost))
        [address] = other.scheduler_info()["workers"]
        told = f"workers: 0 workers for 1 slot; {address} can't run trials and has not left"
        until(lambda: told in driver.display.waits, what="the line of the wait")
        hold = driver.hold(0)
        cluster.join()
        until(lambda: not unfit.leftovers(), what="the end of the unfit worker")
        hold.unlink()
        [trial] = wait()

        assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
        assert kept.result(60) == 7


@pytest.mark.parametrize(
    ("number", "stops"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False)]
)
def test_a_job_that_waits_survives_its_worker(
    drive: Callable[..., Driver], cluster: DaskCluster, number: int, stops: bool
) -> None:
    """A job that waits for its next trial goes on elsewhere without its worker, or leaves at an interruption.

    There are fewer workers than slots then, and no trial is lost.
    """
    driver = drive(HeldPhases, slots=2)
    driver.tuner.behind = 2  # the second job's next trial needs the first job's
    hold = driver.hold(0)
    wait = driver.start(6)
    cluster.join(), cluster.join()
    until(lambda: driver.has_started(0) and [event.job for event in driver.of(TrialRequested)] == [1])
    start = driver.records.read_start(1, 1)
    assert start is not None
    [waiting] = [worker for worker in cluster.workers if start["pid"] in worker.leftovers()]
    if number == signal.SIGKILL:
        waiting.kill()
    else:
        waiting.send(number)
    left = "was lost" if number == signal.SIGKILL else "left: its worker got SIGTERM"
    until(lambda: any(left in line for line in driver.display.lines))
    if stops:
        driver.executor.post(StopRequested("SIGINT", 2))
        with pytest.raises(SearchInterruptedError):
            wait()
    else:
        hold.unlink()
        wait()
    trials = driver.records.load()[0]

    assert not driver.of(TrialLost) or stops
    assert [trial.state for trial in trials if trial.is_finished] == ["COMPLETE"] * (1 if stops else 6)
    assert {trial.attempt for trial in trials if trial.is_finished} == {1}


def test_a_wait_for_resources_names_them(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """A trial waits for a worker that offers what it takes, and the wait says what is missing."""
    driver = drive(resources={"gpu": 1}, n_ahead=1)
    cluster.join()
    wait = driver.start(1)
    until(lambda: "workers: 0 workers for 1 slot; 1 without the resources gpu=1" in driver.display.waits)
    cluster.join(DASK_DISTRIBUTED__WORKER__RESOURCES__GPU="1")
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 1)
    until(lambda: "1 worker for 1 slot" in driver.display.lines, what="the line of the worker")


def test_a_lost_worker_with_resources_is_not_waited_for(
    drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path
) -> None:
    """A trial queues on the only worker with the resources while an unfit one can't leave; it runs on the next."""
    gpu = {"DASK_DISTRIBUTED__WORKER__RESOURCES__GPU": "1"}
    driver = drive(resources={"gpu": 1}, max_attempts=1)
    cluster.join(**gpu, **{ROOT_VARIABLE: str(tmp_path / "elsewhere")})
    with cluster.client() as other:
        actor = other.submit(list, actor=True)
        actor.result(60)  # Dask does not retire its worker
        wait = driver.start(1)
        until(lambda: len(driver.of(TrialLost)) == 1)
        cluster.join()
        until(lambda: len(other.scheduler_info()["workers"]) == 2)
        busy = other.submit(time.sleep, 100, resources={"first": 1})
        first = cluster.join(**gpu, DASK_DISTRIBUTED__WORKER__RESOURCES__FIRST="1")
        until(lambda: any(len(keys) == 2 for keys in other.processing().values()), what="the trial behind the sleep")
        first.kill()
        until(lambda: len(driver.of(TrialLost)) == 2, what="the loss")
        busy.cancel()
        cluster.join(**gpu)
        [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 3)
    assert [event.counts for event in driver.of(TrialLost)] == [False, False]


def test_a_restart_by_another_client_costs_no_attempt(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """``Client.restart`` of someone else cancels a trial and ends its worker; it runs again on the next one."""
    driver = drive(max_attempts=1)
    hold = driver.hold(0)
    cluster.join(nanny=True)
    wait = driver.start(1)
    until(lambda: driver.has_started(0))
    with cluster.client() as other:
        other.restart(wait_for_workers=False)
    until(lambda: driver.of(TrialLost))
    hold.unlink()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
    assert [event.counts for event in driver.of(TrialLost)] == [False]


def test_three_unfit_workers_end_the_search(drive: Callable[..., Driver], cluster: DaskCluster, tmp_path: Path) -> None:
    """The search ends with the reason of the third."""
    driver = drive()
    (tmp_path / "file").touch()
    wait = driver.start(1)
    for n in range(1, 4):
        cluster.join(**{ROOT_VARIABLE: str(tmp_path / "file")})
        until(lambda: n == 3 or len(driver.of(TrialLost)) == n)  # noqa: B023

    with pytest.raises((SearchFailedError, ConfigurationError), match=f"{tmp_path}/file"):
        wait()
    assert len(driver.of(TrialLost)) == 2


def test_the_end_of_a_session_interrupts_its_trials(drive: Callable[..., Driver], cluster: DaskCluster) -> None:
    """Ctrl-C: a running trial is interrupted, one without a worker is taken back; workers keep no process of ours."""
    driver = drive(slots=2)
    driver.hold(0), driver.hold(1)
    worker = cluster.join()
    wait = driver.start(4)
    until(lambda: driver.of(Started))
    driver.executor.post(StopRequested("SIGINT", 2))
    with pytest.raises(SearchInterruptedError):
        wait()
    driver.executor.close()

    assert [t.state for t in driver.records.load()[0]] == [State.WAITING] * 2
    until(lambda: worker.leftovers() == [worker.process.pid], what="the end of the trial's processes")


def test_a_pool_without_gpus_has_no_folder(
    drive: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is for claims of GPUs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    drive()

    assert not list(tmp_path.glob("heirloom-*"))


def test_a_lost_scheduler_interrupts_the_search(tmp_path: Path) -> None:
    """kill -9 of the scheduler stops the session at once, with all records whole; no process is left."""
    with DaskCluster(tmp_path) as own:
        driver = Driver(tmp_path, own)
        driver.hold(1)
        worker = own.join()
        wait = driver.start(3)
        until(lambda: driver.has_started(1))
        own.scheduler.kill()
        with pytest.raises(SearchInterruptedError, match="the Dask scheduler was lost"):
            wait()
        driver.executor.close()
        until(lambda: not worker.leftovers(), what="the end of the worker")

    assert [t.state for t in driver.records.load()[0]] == [State.COMPLETE, State.WAITING]
    assert [e.trial.number for e in driver.of(Finished)] == [0]
