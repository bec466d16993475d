"""Warm worker processes: kills, timeouts, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.core.budget import Budget
from nas.core.errors import ActionError, ConfigurationError, HeirloomError, SearchInterruptedError
from nas.core.policy import Stage
from nas.core.spec import Spec
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors import worker_process
from nas.executors.driver_folder import DriverFolder
from nas.executors.events import (
    Event,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Notice,
    Reported,
    Started,
    StopKind,
    StopRequested,
    TrialRequested,
)
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerLostError, resume_job
from nas.executors.process_pool import ProcessPool
from nas.executors.worker_process import WorkerProcess
from nas.search.controller import ControllerSettings, SearchController
from nas.search.job_plan import JobPlan
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.trial_log import MAX_LOG_BYTES
from nas.training.messages import Assignment, JobStart, RuntimeSpec
from tests.support.commands import until
from tests.support.problems import (
    EarlyExportTroubleProblem,
    ExportTroubleProblem,
    GpusProblem,
    KnownTroubleProblem,
    LateProblem,
    LingeringProblem,
    ParentTroubleProblem,
    ResumingTroubleProblem,
    TroubleProblem,
    TwiceProblem,
)
from tests.support.processes import children_of, is_alive, parent_of
from tests.support.scripted_executor import ListTuner

REPOSITORY = Path(__file__).parents[3]
SEARCH = Stage(name="search")
TRACER = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
print("ready", flush=True)
pid = int(input())
while libc.ptrace(0x4206, pid, 0, 0x40):  # PTRACE_SEIZE, PTRACE_O_TRACEEXIT
    assert ctypes.get_errno() == 1, ctypes.get_errno()  # the process does not allow it yet
    time.sleep(0.01)
print("held", flush=True)
time.sleep(600)
"""
"""A program that lets a process outlive SIGKILL: a traced process waits at its end for its tracer."""

Order = tuple[str, int]


class Driver:
    """Worker processes and the records of one search in a folder.

    Args:
        root: The search's folder.
        slots: How many workers.
        timeout_s: Of each trial.
        constructor: What the problem's constructor does in a worker.
        kind: The problem's class.
        n_threads: Torch threads of a trial.
        jobs: Whether a job runs several trials.
    """

    def __init__(
        self,
        root: Path,
        *,
        slots: int = 1,
        timeout_s: float | None = None,
        constructor: str = "",
        kind: type[TroubleProblem] = TroubleProblem,
        n_threads: int = 1,
        jobs: bool = False,
    ) -> None:
        self.pids = root.parent / "pids"
        self.pids.mkdir(exist_ok=True)
        self.records = Records(open_root(str(root)))
        problem = Spec.of(kind, constructor=constructor, folder=str(self.pids))
        spec = RuntimeSpec(
            problem=problem, url=str(root), options={}, session=1, n_threads=n_threads, jobs_request_trials=jobs
        )
        self.pool = ProcessPool(spec, slots, trial_timeout_s=timeout_s)
        self.executor = LocalExecutor(self.pool, slots)

    def run(
        self,
        *orders: Order,
        observe: Callable[[Event], None] = lambda event: None,
        spent_hours: Callable[[], float] = lambda: 0.0,
        **more: Any,
    ) -> list[Trial]:
        """Trains a trial for each order, and returns all trials of the search."""
        trials, starts = self.records.load()
        proposals = [Proposal(point={"do": do, "seconds": seconds}) for do, seconds in orders]
        controller = SearchController(
            self.records,
            self.executor,
            ControllerSettings(max_failures=99, **more),
            trials=trials,
            starts=starts,
            spent_hours=spent_hours,
            tuner=ListTuner(*proposals),
            space=TroubleProblem.space,
            observe=observe,
        )
        controller.search(SEARCH)
        return controller.trials

    def pid_of(self, trial: int) -> int | None:
        """Returns the process of the trial's newest attempt, once it has begun."""
        found = sorted(self.pids.glob(f"{trial}-*"), key=lambda path: path.stat().st_mtime_ns)
        return int(found[-1].name.partition("-")[2]) if found else None

    def when_trial_runs(self, trial: int, action: Callable[[int], None]) -> threading.Thread:
        """Calls the action with a trial's process, once it has begun."""

        def wait() -> None:
            until(lambda: self.pid_of(trial))
            action(self.pid_of(trial))

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def close(self) -> None:
        self.executor.close()


@pytest.fixture(scope="module", autouse=True)
def buffered_output() -> Iterator[None]:
    """Buffers output as in a user's terminal; with PYTHONUNBUFFERED none could be lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        yield


@pytest.fixture
def open_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    opened: list[Driver] = []

    def open_driver(**more: Any) -> Driver:
        opened.append(Driver(tmp_path / "search", **more))
        return opened[-1]

    yield open_driver
    for driver in opened:
        driver.close()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Yields one worker for all tests that do not harm it."""
    driver = Driver(tmp_path_factory.mktemp("driver") / "search")
    yield driver
    driver.close()


class TestWarmWorker:
    def test_problem_is_built_once(self, driver: Driver) -> None:
        """One process builds the problem once and trains one trial after the other."""
        first, second = driver.run(("nothing", 0), ("nothing", 0))[-2:]

        assert first.metrics["pid"] == second.metrics["pid"] != os.getpid()
        assert first.metrics["n_built"] == second.metrics["n_built"] == 1

    def test_output_of_every_kind_is_in_the_log(self, driver: Driver) -> None:
        """The log holds what Python, C and child processes print, and nothing of other trials."""
        printing, silent = driver.run(("print", 0), ("nothing", 0))[-2:]

        log = driver.records.log(printing.number)
        for line in ("by print", "by print to stderr", "by write", "by puts", "by a child process"):
            assert f"{line}\n" in log
        assert driver.records.log(silent.number) == ""

    def test_exception_and_exit_leave_the_worker_warm(self, driver: Driver) -> None:
        """A trial that raises or calls sys.exit is FAILED with its traceback, and its worker continues."""
        raised, left, after = driver.run(("raise", 0), ("exit", 0), ("nothing", 0))[-3:]

        assert [(t.state, t.reason) for t in (raised, left)] == [(State.FAILED, Reason.EXCEPTION)] * 2
        assert "ValueError: as the point says" in (raised.error or "")
        assert "SystemExit: 7" in (left.error or "")
        assert after.metrics["n_built"] == 1

    @pytest.mark.slow
    def test_problem_may_load_data_in_processes(self, driver: Driver) -> None:
        """torch's DataLoader can start its own workers within a worker."""
        trial = driver.run(("loader", 0))[-1]

        assert trial.error is None
        assert trial.metrics == {"score": 28.0}

    def test_events_come_in_order(self, driver: Driver) -> None:
        """The controller gets each start and each result, in order."""
        heard: list[Event] = []

        driver.run(("nothing", 0), observe=heard.append)

        kinds = [type(event) for event in heard]
        assert kinds.index(Started) < kinds.index(Finished)

    def test_test_is_called_in_the_worker(self, driver: Driver) -> None:
        """A finalist is tested in the warm process; an error comes back as a first line and a traceback."""
        good, bad = driver.run(("nothing", 0), ("raise", 0))[-2:]

        assert driver.executor.call("test", good)["metrics"]["pid"] == good.metrics["pid"]
        with pytest.raises(
            ActionError, match=r"^TroubleProblem.test raised ValueError: as the point says\n(.|\n)*Traceback"
        ):
            driver.executor.call("test", bad)

    def test_start_record_names_the_process(self, driver: Driver) -> None:
        """The attempt's start record names process, slot and session."""
        trial = driver.run(("nothing", 0))[-1]

        start = driver.records.read(f"trials/{trial.number:06d}.start-1.json")
        assert start is not None
        assert (start["pid"], start["session"], start["slot"]) == (trial.metrics["pid"], 1, 0)


@pytest.mark.slow
class TestDeaths:
    def test_killed_worker_is_replaced(self, open_driver: Callable[..., Driver]) -> None:
        """A worker killed during a trial costs an attempt, and the trial runs again on a new process."""
        driver = open_driver()
        thread = driver.when_trial_runs(1, lambda pid: os.kill(pid, signal.SIGKILL))

        trials = driver.run(("nothing", 0), ("sleep once", 500), ("nothing", 0))
        thread.join()

        assert [trial.state for trial in trials] == [State.COMPLETE] * 3
        assert [trial.attempt for trial in trials] == [1, 2, 1]
        assert trials[0].metrics["pid"] != trials[1].metrics["pid"] == trials[2].metrics["pid"]

    def test_segfault_is_a_lost_attempt(self, open_driver: Callable[..., Driver]) -> None:
        """A trial that crashes its process is FAILED(lost) after max_attempts, with the signal's name."""
        driver = open_driver()

        crashed, after = driver.run(("segfault", 0), ("nothing", 0))

        assert (crashed.state, crashed.reason, crashed.attempt) == (State.FAILED, Reason.LOST, 2)
        assert crashed.error == "its worker was killed by SIGSEGV"
        assert "before the crash\n" in driver.records.log(0)
        assert "Segmentation fault" in driver.records.log(0)
        assert "in train" in driver.records.log(0)
        assert after.state == State.COMPLETE

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("do", "warning", "jobs", "kind", "timeout_s", "check_s"),
        [
            ("segfault", "its worker was killed by SIGSEGV", False, ExportTroubleProblem, 60.0, 60.0),
            ("spin", "it ran past 5 s and was killed", False, EarlyExportTroubleProblem, 4.0, 5.0),
            ("segfault", "its worker was killed by SIGSEGV", True, EarlyExportTroubleProblem, 60.0, 60.0),
        ],
    )
    def test_bad_export_costs_only_its_worker(
        self,
        open_driver: Callable[..., Driver],
        do: str,
        warning: str,
        jobs: bool,
        kind: type[TroubleProblem],
        timeout_s: float,
        check_s: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """If the check of ``export`` crashes or hangs, its trial keeps its result, and no other trial is checked."""
        monkeypatch.setattr(worker_process, "CHECK_TIMEOUT_S", check_s)
        monkeypatch.setattr(worker_process, "EARLY_CHECK_TIMEOUT_S", 1.0)
        driver = open_driver(kind=kind, timeout_s=timeout_s, jobs=jobs)

        plan = {"jobs": JobPlan(trials_per_job=3)} if jobs else {}
        first, *after = driver.run((do, 500), (do, 500), ("nothing", 0), **plan)

        told = f"export: {warning}. Correct it, or the winner can't be exported"
        assert first.inheritance["warnings"] == [told]
        assert [(trial.state, trial.attempt) for trial in (first, *after)] == [(State.COMPLETE, 1)] * 3
        assert not any("warnings" in trial.inheritance for trial in after)
        assert first.metrics["pid"] != after[0].metrics["pid"] == after[1].metrics["pid"]
        assert first.cost["seconds"] < timeout_s

    @pytest.mark.slow
    def test_bad_export_is_told_before_training(self, open_driver: Callable[..., Driver]) -> None:
        """What ``export`` returns wrongly is told before the first trial starts."""
        events: list[Event] = []
        driver = open_driver(kind=EarlyExportTroubleProblem)
        first, second = driver.run(("nothing", 0), ("nothing", 0), observe=events.append)

        told = [event for event in events if isinstance(event, Notice | Started)]
        assert [type(event) for event in told] == [Notice, Started, Started]
        warning = "export returned dict: must return the network and an example batch. Write `return network, (x[:2],)`"
        assert told[0] == Notice(warning)
        assert (first.inheritance, second.inheritance) == ({"warnings": [warning]}, {})

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [EarlyExportTroubleProblem, ExportTroubleProblem], ids=["early", "late"])
    def test_interrupted_export_check_keeps_the_result(
        self, open_driver: Callable[..., Driver], kind: type[TroubleProblem], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C during the check of ``export`` ends the worker, and a trained trial keeps its result."""
        monkeypatch.setattr(worker_process, "EARLY_CHECK_TIMEOUT_S", 60.0)
        driver = open_driver(kind=kind)
        thread = driver.when_trial_runs(0, lambda pid: driver.executor.post(StopRequested("SIGINT")))
        with pytest.raises(SearchInterruptedError):
            driver.run(("spin", 500))
        thread.join()

        [trial] = driver.records.load()[0]
        is_early = kind is EarlyExportTroubleProblem
        assert (trial.state, trial.attempt) == ((State.WAITING, 0) if is_early else (State.COMPLETE, 1))

    def test_crash_in_a_test_is_its_error(self, open_driver: Callable[..., Driver]) -> None:
        """A finalist whose test crashes its process keeps its log, and the next finalist is tested."""
        driver = open_driver()
        trial = driver.run(("nothing", 0))[0]
        deadly = Trial(number=9, index=9, proposal=Proposal(point={"do": "segfault", "seconds": 0}))

        with pytest.raises(ActionError, match="test of trial 9: its worker was killed by SIGSEGV, in each of 3 tries"):
            driver.executor.call("test", deadly)
        assert driver.records.other_logs(deadly)["test"].startswith("before the crash\n")
        assert driver.executor.call("test", trial)["metrics"]["score"] == 1.0

    def test_a_lost_worker_costs_a_test_no_more_than_another_try(self, open_driver: Callable[..., Driver]) -> None:
        """A test whose worker is lost once, as by the system's memory killer, is made on the next one."""
        driver = open_driver()
        trial = driver.run(("nothing", 0))[0]
        (driver.pids / "die").touch()

        tested = driver.executor.call("test", trial)

        assert tested["metrics"]["score"] == 1.0
        assert tested["metrics"]["pid"] != trial.metrics["pid"]

    def test_output_of_a_test_is_kept(self, open_driver: Callable[..., Driver]) -> None:
        """The output of a test is stored beside the trial's own log."""
        driver = open_driver()
        trial = driver.run(("print", 0))[0]
        training = driver.records.log(0)
        driver.executor.call("test", trial)

        assert "by puts\n" in driver.records.other_logs(trial)["test"]
        assert driver.records.log(0) == training

    def test_hanging_trial_is_killed_on_time(self, open_driver: Callable[..., Driver]) -> None:
        """After trial_timeout_s a trial is FAILED(timeout), even in C code that holds the interpreter's lock."""
        driver = open_driver(timeout_s=3.0)
        began_s: list[float] = []

        def observe(event: Event) -> None:
            if isinstance(event, Started | Finished):
                began_s.append(time.monotonic())

        hung, after = driver.run(("spin", 500), ("nothing", 0), observe=observe)

        assert (hung.state, hung.reason, hung.attempt) == (State.FAILED, Reason.TIMEOUT, 1)
        assert hung.error == "ran past trial_timeout_s (3 s) and was killed"
        assert hung.cost["seconds"] >= 3
        assert began_s[1] - began_s[0] < 60
        assert after.state == State.COMPLETE
        assert hung.curve == ((1, {"score": 0.25}),)
        assert driver.records.log(0) == "before the hang\n"

    def test_timeout_does_not_count_the_start(self, open_driver: Callable[..., Driver]) -> None:
        """The timeout starts with the problem's code, not with the worker's start."""
        driver = open_driver(timeout_s=2.0, constructor="waits")

        assert driver.run(("nothing", 0))[0].state == State.COMPLETE

    @pytest.mark.parametrize(("timeout_s", "max_wait_s"), [(1e300, 86400.0), (60.0, 0.05)])
    def test_timeout_of_any_length(
        self, open_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, timeout_s: float, max_wait_s: float
    ) -> None:
        """A timeout beyond the limits of the system is no error, since the driver waits in steps."""
        monkeypatch.setattr(worker_process, "MAX_WAIT_S", max_wait_s)

        assert open_driver(timeout_s=timeout_s).run(("sleep", 1))[0].state == State.COMPLETE

    @pytest.mark.parametrize(
        ("constructor", "kind", "line"),
        [
            ("configuration", ConfigurationError, r"^depth=7: must be at most 5$"),
            (
                "raises",
                HeirloomError,
                r"can't build the problem: \w+\.__init__ raised ZeroDivisionError: in the constructor",
            ),
        ],
    )
    def test_problem_that_cannot_be_built_ends_the_search(
        self, open_driver: Callable[..., Driver], constructor: str, kind: type[Exception], line: str
    ) -> None:
        """An error in the problem's constructor ends the search at once with that error."""
        driver = open_driver(constructor=constructor)
        began_s = time.monotonic()

        with pytest.raises(kind, match=line):
            driver.run(("nothing", 0))
        assert time.monotonic() - began_s < 60
        assert not driver.records.load()[0][0].is_finished

    def test_worker_that_ends_at_its_start_is_a_lost_attempt(self, open_driver: Callable[..., Driver]) -> None:
        """A problem that ends the process in its constructor loses each trial, with the exit status."""
        driver = open_driver(constructor="ends")

        trial = driver.run(("nothing", 0))[0]

        assert (trial.reason, trial.error) == (Reason.LOST, "its worker ended with exit status 3")

    def test_supervisor_must_answer(self, open_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker whose supervisor is stopped gets no trial, since nothing it starts could be ended."""
        monkeypatch.setattr("nas.executors.supervised_process._ORDER_TIMEOUT_S", 3.0)
        driver = open_driver(constructor="stops")

        [trial] = driver.run(("nothing", 0))

        assert (trial.state, trial.attempt) == (State.COMPLETE, 2)
        assert len(list(driver.pids.glob("0-*"))) == 1

    def test_slots_crash_independently(self, open_driver: Callable[..., Driver]) -> None:
        """A crashed worker does not affect other slots' trials."""
        driver = open_driver(slots=2)

        trials = driver.run(("sleep", 3), ("kill", 0), ("nothing", 0))

        assert [trial.state for trial in trials] == [State.COMPLETE, State.FAILED, State.COMPLETE]
        assert [trial.attempt for trial in trials] == [1, 2, 1]

    def test_jobs_trials_share_neither_state_nor_processes(self, open_driver: Callable[..., Driver]) -> None:
        """Between two trials of a job the worker is restored, and its children end; if it can't be, it is replaced."""
        driver = open_driver(jobs=True)
        trials = driver.run(("leave", 0), ("thread", 0), ("nothing", 0), jobs=JobPlan(trials_per_job=3))

        assert [(trial.state, trial.attempt, trial.job) for trial in trials] == [(State.COMPLETE, 1, 0)] * 3
        assert not is_alive(int(trials[0].metrics["child"]))
        assert trials[0].metrics["pid"] == trials[1].metrics["pid"] != trials[2].metrics["pid"]

    def test_children_can_be_terminated(self, open_driver: Callable[..., Driver]) -> None:
        """Signals that a worker ignores end its forks and its programs."""
        [trial] = open_driver().run(("terminate", 0))

        assert trial.metrics == {"score": -signal.SIGTERM, "fork": -signal.SIGINT}

    def test_forked_child_computes(self, open_driver: Callable[..., Driver]) -> None:
        """A child forked after a computation with two threads computes, with one."""
        [trial] = open_driver(n_threads=2).run(("fork", 0))

        assert trial.metrics == {"score": 1.0}

    def test_worker_that_outlives_a_kill_is_abandoned(self, open_driver: Callable[..., Driver]) -> None:
        """While a killed process hangs, held by a tracer here, another one trains the next trial."""
        driver = open_driver(timeout_s=3.0)
        tracer = subprocess.Popen(
            [sys.executable, "-c", TRACER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        order, answer = tracer.stdin, tracer.stdout
        assert order is not None
        assert answer is not None
        assert answer.readline() == "ready\n"

        def trace(pid: int) -> None:
            print(pid, file=order, flush=True)
            answer.readline()

        thread = driver.when_trial_runs(0, trace)
        began_s = time.monotonic()
        hung, after = driver.run(("traceable", 500), ("nothing", 0))
        seconds = time.monotonic() - began_s
        thread.join()
        is_held = tracer.poll() is None and is_alive(driver.pid_of(0) or 0)
        tracer.kill()
        tracer.communicate()

        assert is_held
        assert (hung.reason, after.state) == (Reason.TIMEOUT, State.COMPLETE)
        assert seconds < 200


@pytest.mark.slow
class TestStops:
    @pytest.mark.parametrize("do", ["report", "spin"])
    def test_interrupt_ends_running_trials(self, open_driver: Callable[..., Driver], do: str) -> None:
        """An interrupted trial ends at its next report, or is killed soon, even if it holds the lock."""
        driver = open_driver()
        driver.run(("nothing", 0))
        thread = driver.when_trial_runs(
            1, lambda pid: time.sleep(0.3) or driver.executor.post(StopRequested("SIGINT", 2))
        )
        stopped_s: list[float] = []

        def observe(event: Event) -> None:
            stopped_s.append(time.monotonic())

        with pytest.raises(SearchInterruptedError):
            driver.run((do, 500), observe=observe)
        thread.join()
        assert time.monotonic() - stopped_s[-1] < 15  # the controller waits for 20 s
        assert not driver.records.load()[0][1].is_finished

    @pytest.mark.parametrize("do", ["report", "spin", "sleep"])
    def test_deadline_ends_running_trials(self, open_driver: Callable[..., Driver], do: str) -> None:
        """When the hours are used up, a trial is STOPPED at its next report, or killed, with its last report."""
        driver = open_driver()
        driver.run(("nothing", 0))
        began_s: list[float] = []

        def spent_hours() -> float:
            if driver.pid_of(1) is None:
                return 0.0
            began_s.append(time.monotonic())
            return (began_s[-1] - began_s[0]) / 3600

        budget = Budget(hours=1 / 3600, at_deadline="stop")
        _, trial, *after = driver.run((do, 500), ("nothing", 0), spent_hours=spent_hours, budget=budget)

        assert after == []
        assert trial == driver.records.load()[0][1]
        assert trial.reason == Reason.DEADLINE
        if do == "sleep":
            assert (trial.state, trial.error) == (State.FAILED, "stopped before its first report")
        else:
            assert (trial.state, trial.metrics) == (State.STOPPED, trial.curve[-1][1])
        assert 0.5 < trial.cost["seconds"] < 20

    @pytest.mark.parametrize("do", ["sleep", "nothing"], ids=["after its trial", "after its dismissal"])
    def test_deadline_ends_a_job_without_a_trial(self, open_driver: Callable[..., Driver], do: str) -> None:
        """A job whose code goes on after its trial's result is killed, and keeps the result."""
        driver = open_driver(kind=LingeringProblem, jobs=True)
        budget = Budget(hours=1 / 3600, at_deadline="stop")
        [trial] = driver.run(
            (do, 500),
            spent_hours=lambda: 0.0 if driver.pid_of(0) is None else 1.0,
            budget=budget,
            jobs=JobPlan.of(None, loops=True),
        )

        assert trial.state == State.COMPLETE
        until(lambda: not is_alive(driver.pid_of(0) or 0))

    def test_a_restarted_job_is_killed_on_its_slot(self, open_driver: Callable[..., Driver]) -> None:
        """Its last trial, by which it is named, ran on another slot."""
        driver, events = open_driver(slots=2, jobs=True, constructor="hangs"), list[Event]()
        thread = threading.Thread(target=resume_job, args=(driver.pool, JobStart(5, 1), events.append))
        thread.start()
        give_up_s = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < give_up_s:
            driver.pool.stop(Trial(number=3, index=3, proposal=Proposal(point={}), job=5, slot=0), "kill")
            thread.join(0.5)

        assert events == [JobLeftWorker(5, lost="the time budget was used up", counts=False)]

    def test_a_worker_that_takes_no_order_is_killed(self, open_driver: Callable[..., Driver]) -> None:
        """A stopped process reads no large order, and the kill does not wait for that."""
        driver = open_driver()
        [first] = driver.run(("nothing", 0))
        os.kill(int(first.metrics["pid"]), signal.SIGSTOP)
        proposal = Proposal(point={"do": "nothing", "seconds": 0}, derivation={"note": "x" * 5_000_000})
        trial = Trial(number=1, index=1, proposal=proposal, slot=0, attempt=1)
        outcomes: list[object] = []
        thread = run_in_thread(driver, trial, outcomes)
        give_up_s = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < give_up_s:
            thread.join(0.5)
            driver.pool.stop(trial, "kill")

        [lost] = outcomes
        assert isinstance(lost, WorkerLostError)
        assert not lost.counts

    def test_a_trial_that_ignores_stops_blocks_nothing(self, open_driver: Callable[..., Driver]) -> None:
        """A thousand stop requests do not fill its pipe, and it can be killed then."""
        driver = open_driver()
        trial = ordered("sleep", 500)
        outcomes: list[object] = []
        thread = run_in_thread(driver, trial, outcomes)
        until(lambda: driver.pid_of(0))

        def stop() -> None:
            for _ in range(1000):
                driver.pool.stop(trial, "deadline")
            driver.pool.stop(trial, "kill")

        stopping = threading.Thread(target=stop, daemon=True)
        stopping.start()
        stopping.join(60)
        assert not stopping.is_alive()
        thread.join(60)
        [ended] = outcomes
        assert isinstance(ended, Trial)
        assert (ended.state, ended.reason) == (State.FAILED, Reason.DEADLINE)

    def test_a_kill_before_the_start_costs_no_attempt(self, open_driver: Callable[..., Driver]) -> None:
        """If nothing has run, the trial waits for more hours."""
        driver = open_driver(constructor="hangs")
        trial = ordered("nothing", 0)
        outcomes: list[object] = []
        thread = run_in_thread(driver, trial, outcomes)
        give_up_s = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < give_up_s:  # it may not be there yet
            driver.pool.stop(trial, "kill")
            thread.join(0.5)

        [lost] = outcomes
        assert isinstance(lost, WorkerLostError)
        assert not lost.counts

    def test_a_start_ends_with_the_budget(
        self, open_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker whose start hangs is ended at the deadline, and soon if it should test or export after that."""
        monkeypatch.setattr(worker_process, "RESTART_MIN_S", 1.0)
        monkeypatch.setattr(worker_process, "RESTART_FACTOR", 0.0)
        driver = open_driver(constructor="later")
        [trial] = driver.run(("nothing", 0))
        (driver.pids / "hang").touch()
        os.kill(int(trial.metrics["pid"]), signal.SIGKILL)
        began_s = time.monotonic()
        budget = Budget(hours=2 / 3600, at_deadline="stop")
        _, waiting = driver.run(
            *[("nothing", 0)] * 2, spent_hours=lambda: (time.monotonic() - began_s) / 3600, budget=budget
        )
        with pytest.raises(ActionError, match=r"^test of trial 0: its worker did not start within 1 s$"):
            driver.executor.call("test", trial)

        assert waiting.state == State.WAITING
        assert time.monotonic() - began_s < 60

    @pytest.mark.parametrize("timeout_s", [None, 3.0], ids=["deadline", "timeout"])
    def test_static_metrics_survive_a_kill(self, open_driver: Callable[..., Driver], timeout_s: float | None) -> None:
        """A killed trial keeps its static metrics, objectives included if it has a score."""
        driver = open_driver(timeout_s=timeout_s, kind=KnownTroubleProblem)
        trial = ordered("hang", 500)
        outcomes: list[object] = []
        reported = threading.Event()
        thread = run_in_thread(driver, trial, outcomes, lambda event: isinstance(event, Reported) and reported.set())
        assert reported.wait(120)
        if timeout_s is None:
            driver.pool.stop(trial, "kill")
        thread.join(60)

        [ended] = outcomes
        assert isinstance(ended, Trial)
        assert ended.static_metrics == {"size": 3.0, "depth": 2.0}
        assert ended.reason == (Reason.DEADLINE if timeout_s is None else Reason.TIMEOUT)
        assert ended.metrics == ({"score": 0.5, "size": 3.0} if timeout_s is None else {})

    @pytest.mark.parametrize("timeout_s", [None, 10.0], ids=["deadline", "timeout"])
    def test_resumed_attempts_survive_a_kill(
        self, open_driver: Callable[..., Driver], timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A killed trial keeps the reports, the time and the inheritance of the attempt that it resumed."""
        monkeypatch.setattr(worker_process, "INTERRUPT_GRACE_S", 0.1)
        driver = open_driver(timeout_s=timeout_s, kind=ResumingTroubleProblem)

        def killed(trial: Trial, kind: StopKind | None) -> object:
            outcomes: list[object] = []
            sleeps = threading.Event()
            asleep = Reported(0, 2, {"score": 0.75})
            thread = run_in_thread(driver, trial, outcomes, lambda event: event == asleep and sleeps.set())
            assert sleeps.wait(120)
            if kind is not None:
                driver.pool.stop(trial, kind)
            thread.join(60)
            return outcomes[0]

        trial = ordered("hang", 500)
        killed(trial, "interrupt")
        ended = killed(replace(trial, attempt=2), "kill" if timeout_s is None else None)

        assert isinstance(ended, Trial)
        assert ended.reason == (Reason.DEADLINE if timeout_s is None else Reason.TIMEOUT)
        assert ended.curve == ((1, {"score": 0.5}), (2, {"score": 0.75}))
        assert ended.cost["seconds"] >= 1.0 + (timeout_s or 0.0)
        assert (ended.inherited, ended.inheritance["share"]) == (0.0, 0.0)

    def test_a_signal_to_all_processes_of_a_trial_is_no_failure(self, open_driver: Callable[..., Driver]) -> None:
        """A batch system ends data loaders and programs, too; the trial waits for the interruption that follows."""
        driver, trial = open_driver(kind=ParentTroubleProblem), ordered("nothing", 0)
        outcomes: list[object] = []
        waits = threading.Event()
        thread = run_in_thread(driver, trial, outcomes, lambda event: isinstance(event, Reported) and waits.set())
        assert waits.wait(120)
        program = int((driver.pids / "program").read_text())
        for pid in (parent_of(program), program):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.2)
        driver.pool.stop(trial, "interrupt")
        thread.join(60)

        assert outcomes == [None]
        assert driver.records.result(trial) is None

    def test_closing_ends_running_workers(self, open_driver: Callable[..., Driver]) -> None:
        """A worker with a hanging trial ends at once, and the thread that waits for it; the attempt does not count."""
        driver = open_driver()
        outcomes: list[object] = []
        thread = run_in_thread(driver, ordered("spin", 500), outcomes)
        until(lambda: driver.pid_of(0))
        pid = driver.pid_of(0)
        began_s = time.monotonic()

        driver.pool.close(60.0)
        thread.join(60)

        assert time.monotonic() - began_s < 30
        assert not is_alive(pid)
        [error] = outcomes
        assert isinstance(error, WorkerLostError)
        assert (str(error), error.counts) == ("interrupted", False)

    def test_problems_whose_close_hangs_are_told(
        self, open_driver: Callable[..., Driver], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Workers that do not end are killed, all at the same time, with a line each."""
        driver = open_driver(constructor="closes", slots=2)
        pids = [int(trial.metrics["pid"]) for trial in driver.run(("nothing", 0), ("nothing", 0))]

        driver.pool.close(5.0)

        assert len(set(pids)) == 2
        assert not any(map(is_alive, pids))
        first, second = caplog.records
        assert first.message == second.message
        assert first.message == "worker did not end in time and is killed: close, a thread or a child process hangs"
        assert second.created - first.created < 5

    def test_closing_does_not_wait_for_a_disk(
        self, open_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The workers end although the disk of their logs hangs."""
        hangs, goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr("nas.executors.process_pool.LOG_INTERVAL_S", 0.01)
        monkeypatch.setattr(WorkerProcess, "shorten_log", lambda worker: (hangs.set(), goes_on.wait()))
        driver = open_driver()
        [trial] = driver.run(("nothing", 0))
        assert hangs.wait(60)
        closing = threading.Thread(target=driver.close)
        closing.start()
        closing.join(60)
        has_closed, worker_runs = not closing.is_alive(), is_alive(int(trial.metrics["pid"]))
        goes_on.set()
        closing.join()

        assert (has_closed, worker_runs) == (True, False)

    def test_log_that_can_not_be_cut(
        self, open_driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A log that can't be cut is left alone after one warning; those of other slots are still cut."""
        calls: Counter[WorkerProcess] = Counter()
        of_other_pools = threading.enumerate()

        def shorten_log(worker: WorkerProcess) -> None:
            if threading.current_thread() in of_other_pools:
                return
            calls[worker] += 1
            if worker is next(iter(calls)):
                raise OSError("the disk there is on fire")

        monkeypatch.setattr("nas.executors.process_pool.LOG_INTERVAL_S", 0.01)
        monkeypatch.setattr(WorkerProcess, "shorten_log", shorten_log)
        open_driver(slots=2)
        until(lambda: max(calls.values(), default=0) > 5)

        assert sorted(min(n_calls, 2) for n_calls in calls.values()) == [1, 2]
        assert [record.getMessage() for record in caplog.records] == [
            "a slot's log stays long: the disk there is on fire"
        ]

    def test_closing_ends_starting_workers(self, open_driver: Callable[..., Driver]) -> None:
        """close during a worker's start leaves no process and starts no trial; a closed pool starts none."""
        driver = open_driver()
        before = set(children_of(os.getpid()))
        outcomes: list[object] = []
        running = run_in_thread(driver, ordered("spin", 500), outcomes)
        until(lambda: set(children_of(os.getpid())) - before)

        driver.close()
        running.join(60)
        run_in_thread(driver, ordered("spin", 500), outcomes).join(60)

        assert [type(outcome) for outcome in outcomes] == [WorkerLostError] * 2
        assert driver.pid_of(0) is None
        assert not set(children_of(os.getpid())) - before


def ordered(do: str, seconds: int) -> Trial:
    return Trial(number=0, index=0, proposal=Proposal(point={"do": do, "seconds": seconds}), slot=0, attempt=1)


def run_in_thread(
    driver: Driver, trial: Trial, outcomes: list[object], post: Callable[[Event], object] = lambda event: None
) -> threading.Thread:
    """Runs a trial on its slot's worker, and appends the outcomes."""

    def run() -> None:
        try:
            outcomes.append(driver.pool.run(Assignment(trial), post))
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


DRIVER = """
import signal, sys
from pathlib import Path
from tests.nas.executors.test_process_pool import Driver

signal.signal(signal.SIGINT, lambda *_: None)
driver = Driver(Path(sys.argv[1]), slots=2)
print("ready", flush=True)
trials = driver.run((sys.argv[2], int(sys.argv[3])), (sys.argv[2], int(sys.argv[3])))
driver.close()
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python gives up a handler while it ends, and a signal would kill it then
print(*[f"{trial.state}:{trial.attempt}" for trial in trials], flush=True)
"""


@pytest.mark.slow
class TestDrivers:
    def start(self, root: Path, do: str, seconds: int) -> subprocess.Popen[str]:
        """Starts a driver in its own process group, as in a terminal."""
        command = [sys.executable, "-c", DRIVER, str(root), do, str(seconds)]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def test_interrupt_of_the_group_spares_the_workers(self, tmp_path: Path) -> None:
        """Ctrl-C to the whole process group ends no worker, not even a starting one."""
        root = tmp_path / "search"
        driver = self.start(root, "sleep", 1)
        while driver.poll() is None and not Records(open_root(str(root))).load()[0][-1:][0:1]:
            time.sleep(0.01)
        for _ in range(100):
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGINT)
            time.sleep(0.03)
        output, _ = driver.communicate(timeout=240)

        assert output == "COMPLETE:1 COMPLETE:1\n"
        assert driver.returncode == 0


@pytest.mark.slow
def test_a_restarted_job_needs_no_check_of_its_export(tmp_path: Path) -> None:
    """The check is for idle workers: the job would take it for its next trial."""
    spec = RuntimeSpec(
        problem=Spec.of(LingeringProblem, folder=str(tmp_path)), url=str(tmp_path / "search"), options={}, session=1,
        jobs_request_trials=True, checks_export=True,
    )  # fmt: skip
    pool, trial, has_requested = ProcessPool(spec, 1), ordered("nothing", 0), threading.Event()
    Records(open_root(spec.url)).propose(trial)

    def post(event: Event) -> None:
        if isinstance(event, TrialRequested):
            has_requested.set()

    pool.resume(JobStart(0, 0), post)
    assert has_requested.wait(120)
    result = pool.run(Assignment(trial), post)
    pool.close()

    assert result is not None
    assert result.state == State.COMPLETE
    assert len([*tmp_path.glob("job-*")]) == 1


@pytest.mark.slow
def test_a_second_result_arrives(tmp_path: Path) -> None:
    """A job's later note arrives after its trial's result, and then the end of the job."""
    spec = RuntimeSpec(
        problem=Spec.of(TwiceProblem), url=str(tmp_path / "search"), options={}, session=1, jobs_request_trials=True
    )
    pool = ProcessPool(spec, 1)
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}), slot=0, attempt=1)
    Records(open_root(spec.url)).propose(trial)
    events: list[Event] = []
    has_left = threading.Event()

    def post(event: Event) -> None:
        events.append(event)
        if isinstance(event, JobLeftWorker):
            has_left.set()

    result = pool.run(Assignment(trial), post)
    assert has_left.wait(120)
    pool.close()

    assert result is not None
    assert result.metrics == {"score": 1.0}
    assert events[-2:] == [ExtraResult(0, "{'score': 2.0}"), JobLeftWorker(0)]


@pytest.mark.slow
def test_a_second_result_may_come_during_the_next_trial(tmp_path: Path) -> None:
    """It is a note on its own trial, and the trial that runs keeps its worker."""
    spec = RuntimeSpec(
        problem=Spec.of(LateProblem), url=str(tmp_path / "search"), options={}, session=1, jobs_request_trials=True
    )
    pool, records, events = ProcessPool(spec, 1), Records(open_root(spec.url)), list[Event]()
    proposal = Proposal(point={"x": 1})
    trials = [Trial(number=n, index=n, job=0, proposal=proposal, slot=0, attempt=1) for n in range(2)]
    for trial in trials:
        records.propose(trial)

    first = pool.run(Assignment(trials[0], is_last=False), events.append)
    until(lambda: TrialRequested(0) in events)
    second = pool.run(Assignment(trials[1], n_finished=1), events.append)
    pool.close()

    assert first is not None
    assert second is not None
    assert (first.metrics, second.metrics) == ({"score": 1.0}, {"score": 3.0})
    assert ExtraResult(0, "{'score': 2.0}") in events


@pytest.mark.slow
@pytest.mark.parametrize(("gpus_per_trial", "slots", "seen"), [(0.5, [1, 3], 7), (2, [1], 89)])
def test_workers_see_their_gpus(
    gpus_per_trial: float, slots: list[int], seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers share a GPU, or each has two, of those that the driver sees; a trial's GPU time is counted so."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,8,9")
    spec = RuntimeSpec(
        problem=Spec.of(GpusProblem),
        url=str(tmp_path),
        options={},
        device="cuda",
        gpus_per_trial=gpus_per_trial,
        session=1,
    )
    records = Records(open_root(spec.url))
    pool = ProcessPool(spec, max(slots) + 1, gpus=(0, 1) if gpus_per_trial < 1 else (0, 1, 2, 3))
    trials = []
    for slot in slots:
        trial = Trial(number=slot, index=slot, proposal=Proposal(point={"x": 1}), slot=slot, attempt=1)
        records.propose(trial)
        trials.append(pool.run(Assignment(trial), lambda event: None))
    pool.close()

    assert [trial.metrics for trial in trials if trial] == len(slots) * [{"score": seen, "n_gpus": gpus_per_trial}]
    for trial in filter(None, trials):
        assert trial.cost["gpu_seconds"] == gpus_per_trial * trial.cost["seconds"] > 0


@pytest.mark.slow
def test_log_of_a_slot_is_bounded(
    open_driver: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that prints 80 MB uses a part of that in the temporary folder, and its log has the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver, sizes, is_done = open_driver(), [0], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.02):
            sizes.extend(path.stat().st_size for path in tmp_path.glob("heirloom-logs-*/slot-0.log"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    [trial] = driver.run(("flood", 4))
    is_done.set()
    watcher.join()

    log = driver.records.log(trial.number)
    assert max(sizes) < 60_000_000
    assert len(log) == MAX_LOG_BYTES
    assert log.endswith("\nthe end\n")


@pytest.mark.slow
def test_folders_of_a_killed_worker_are_removed(
    open_driver: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a trial past its time has saved goes when its slot's next worker starts, or with the driver's folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    driver = open_driver(timeout_s=10.0)
    late, _ = driver.run(("save", 100), ("nothing", 0))
    folder = Path(driver.records.log(0).splitlines()[-1])

    assert late.reason == Reason.TIMEOUT
    assert folder.name.startswith("heirloom-000000-save-")
    assert folder.is_relative_to(tmp_path)
    assert not folder.exists()
    driver.close()
    assert not [*tmp_path.glob("heirloom-*")]


@pytest.mark.slow
def test_folders_of_killed_drivers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next driver removes the folder of a killed one, but not that of a live one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "from nas.executors.driver_folder import DriverFolder as F; f = F(); print(f.path, flush=True); input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        DriverFolder().remove()
        assert theirs.is_dir()
        other.kill()
    mine = DriverFolder()

    assert [*tmp_path.iterdir()] == [mine.path]
    mine.remove()
    assert [*tmp_path.iterdir()] == []


def test_drivers_that_start_at_once_have_folders(tmp_path: Path) -> None:
    """No driver takes the folder of another that has just made it."""
    program = (
        "from nas.executors.driver_folder import DriverFolder as F\n"
        "for _ in range(300): f = F(); assert f.path.is_dir(); f.remove()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    drivers = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]

    assert [driver.wait() for driver in drivers] == [0] * 4
    assert not [*tmp_path.iterdir()]
