"""Workers over HTTP, here threads of this process: what is said counts once, and whoever falls silent costs little."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import nas
from nas import Ability, Budget, Int, Metric, ParameterSpace, Problem, Proposal, Tuner
from nas.core.errors import (
    ActionError,
    ConfigurationError,
    SearchFailedError,
    SearchInterruptedError,
    ServerError,
    TrialStopped,
)
from nas.core.lineage import Lineage
from nas.core.policy import Policy, Stage
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.executors.events import (
    Event,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Reported,
    Started,
    StopRequested,
    TrialLost,
    TrialRequested,
    TunerReady,
    WorkersBusy,
)
from nas.executors.local_executor import LocalExecutor
from nas.executors.remote import server
from nas.executors.remote.client import ChannelClient, Connection, GivenUpError
from nas.executors.remote.pool import BROKEN, Gate, RemotePool
from nas.executors.remote.protocol import dumps
from nas.search.controller import ControllerSettings, SearchController
from nas.search.job_plan import JobPlan
from nas.stoppers.base import Stopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.job import Job
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.trial_run import TrialRun
from nas.tuners.base import Answer
from tests.support.remote_threads import TOKEN, Lossy, Worker


class PausableProblem(Problem):
    """Scores each point with its ``x`` after three reports; may be held in the middle.

    Attributes:
        hold: Trials that wait, reporting, until they are no more in it.
        n_stays: How often ``train_many`` was called, and with which ``n_finished``.
    """

    metrics = (Metric("score"),)
    policies = frozenset({Policy.EARLY_STOP})
    space = ParameterSpace({"x": Int(0, 10_000)})

    def __init__(self) -> None:
        self.hold: set[int] = set()
        self.reached = threading.Event()

    def train(self, run: TrialRun) -> dict[str, float]:
        for step in range(3):
            run.report(step, score=run.point["x"] + step / 10)
        while run.number in self.hold:
            self.reached.set()
            run.report(3, score=run.point["x"])
            time.sleep(0.02)
        return {"score": run.point["x"]}

    def test(self, run: TrialRun) -> dict[str, float]:
        if run.point["x"] == 1:
            raise RuntimeError("no test today")
        return {"score": run.point["x"] / 3}


class ManyProblem(PausableProblem):
    """The same, trial after trial; keeps where each stay of a job stood."""

    is_late = False
    """Each trial gives a second result."""

    def __init__(self) -> None:
        super().__init__()
        self.stays: list[tuple[int, int, int]] = []

    def train_many(self, job: Job) -> None:
        n_finished = job.n_finished
        for place, run in enumerate(job.trials()):
            if not place:
                self.stays.append((job.number, n_finished, run.number))
            with suppress(TrialStopped):
                run.finish(**self.train(run))
                if self.is_late:
                    run.finish(score=-1.0)


class CountingTuner(Tuner):
    """Proposes 0, 1, 2, ...; each a child of the trial ``behind`` places before it."""

    pause_s = 0.0
    behind = 0
    holds_at = -1
    """At this proposal it waits for ``goes_on``, and sets ``is_held``."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_held, self.goes_on = threading.Event(), threading.Event()

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        time.sleep(self.pause_s)
        if number == self.holds_at:
            self.is_held.set()
            self.goes_on.wait(60)
        parents = (number - self.behind,) if self.behind and number >= self.behind else ()
        return Proposal(point={"x": number}, parents=parents, donors=())


class HighStopper(Stopper):
    """Stops what reports more than 2."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.curve[-1][1]["score"] > 2


class Shop:
    """A search whose driver and workers are threads of this process."""

    def __init__(self, root: Path, problem: Problem | None = None, **more: Any) -> None:
        self.root = root
        self.problem = problem or PausableProblem()
        self.slots: int = more.pop("slots", 1)
        self.plan = JobPlan.of(more.pop("trials_per_job", None), loops=Ability.TRAIN_MANY in self.problem.abilities)
        self.stopper: Stopper | None = more.pop("stopper", None)

        self.n_finals: int = more.pop("n_finals", 0)

        self.spent_hours: Callable[[], float] = more.pop("spent_hours", lambda: 0.0)

        self.events: list[Event] = []
        self.lines: list[str] = []
        self.waits: list[str | None] = []
        self.workers: list[Worker] = []
        spec = RuntimeSpec(
            problem=Spec.of(type(self.problem)),
            url="not the workers'",
            options={"secret": "stays here"},
            session=1,
            has_stopper=self.stopper is not None,
            jobs_request_trials=self.plan.requests_trials,
        )
        gate = Gate(token=TOKEN, version=nas.__version__, lost_after_s=more.pop("lost_after_s", 30.0))
        self.pool = RemotePool(
            spec, "search", gate, slots=self.slots, note=self.lines.append, show_wait=self.waits.append
        )
        self.url = f"http://127.0.0.1:{self.pool.port}"
        self.executor = LocalExecutor(self.pool, self.slots)
        self.tuner = CountingTuner(self.problem.space, self.problem.metrics)
        self.settings = more

    @property
    def records(self) -> Records:
        return Records(open_root(str(self.root)))

    def join(self, url: str | None = None) -> Worker:
        """A worker more."""
        self.workers.append(Worker(url or self.url, self.root, self.problem))
        return self.workers[-1]

    def run(self, n_trials: int = 4) -> list[Trial]:
        """The trials of the search, once it has run."""
        trials, starts = self.records.load()
        settings = ControllerSettings(jobs=self.plan, **{"budget": Budget(trials=n_trials), **self.settings})
        controller = SearchController(
            self.records,
            self.executor,
            settings,
            trials=trials,
            starts=starts,
            tuner=self.tuner,
            space=self.problem.space,
            stopper=self.stopper,
            spent_hours=self.spent_hours,
            observe=self.events.append,
        )
        controller.search(Stage(name="search", policies=frozenset({Policy.EARLY_STOP})))
        controller.train_finalists(Stage(name="final"), controller.trials[: self.n_finals])
        return self.records.load()[0]

    def begin(self, n_trials: int = 4) -> Callable[[], list[Trial]]:
        """Runs the search on a thread; the result waits for it, and gives its trials."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(self.run(n_trials))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait() -> list[Trial]:
            thread.join(60)
            assert found, "the search did not end"
            if isinstance(found[0], BaseException):
                raise found[0]
            trials: list[Trial] = found[0]
            return trials

        return wait

    def close(self) -> None:
        self.executor.close()
        for worker in self.workers:
            worker.wait()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    opened: list[Shop] = []

    def open_shop(problem: Problem | None = None, **more: Any) -> Shop:
        opened.append(Shop(tmp_path / "search", problem, **more))
        return opened[-1]

    yield open_shop
    for found in opened:
        found.close()


def until(holds: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_s, "it never came true"
        time.sleep(0.01)


def of(events: list[Event], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# ---- a search


def test_all_that_happens_is_told_in_order(shop: Callable[..., Shop]) -> None:
    """Starts, reports and results arrive as from any other place, and the session's end ends the workers, with 0."""
    here = shop()
    worker = here.join()
    trials = here.run(2)
    here.close()

    assert [t.state for t in trials] == [State.COMPLETE] * 2
    assert [t.metrics["score"] for t in trials] == [0, 1]
    shown = [e for e in here.events if isinstance(e, Started | Reported | Finished)]
    assert [type(e) for e in shown] == [Started, Reported, Reported, Reported, Finished] * 2
    assert [dict(e.metrics) for e in of(shown, Reported)[:3]] == [{"score": s / 10} for s in range(3)]
    assert worker.wait().status == 0
    assert "the driver has ended the session" in worker.wait().why


@pytest.mark.slow
def test_what_gets_lost_is_sent_again_and_counts_once(shop: Callable[..., Shop]) -> None:
    """Of four requests one gets lost, one's reply does, one arrives twice: the events are those of a good line."""
    here = shop(ManyProblem(), trials_per_job=2, stopper=HighStopper(PausableProblem.metrics))
    with Lossy(here.url) as line:
        here.join(line.url)
        trials = here.run(4)
        here.close()

    assert line.n_lost > 10
    assert line.n_twice > 5
    assert [t.job for t in trials] == [0, 0, 2, 2]
    assert [t.state for t in trials] == [State.COMPLETE] * 2 + [State.STOPPED] * 2
    assert [len(t.curve) for t in trials] == [3, 3, 2, 1]
    assert [(e.trial, e.step) for e in of(here.events, Reported)] == [(t.number, s) for t in trials for s, _ in t.curve]
    assert [e.trial for e in of(here.events, Started)] == list(range(4))
    assert [e.trial.number for e in of(here.events, Finished)] == list(range(4))
    assert not of(here.events, TrialLost)
    assert len(here.lines) == 1  # it joined, once


def test_a_second_result_arrives(shop: Callable[..., Shop]) -> None:
    """It changes nothing, and comes with the trial's number."""
    problem = ManyProblem()
    problem.is_late = True
    here = shop(problem)
    here.join()
    trials = here.run(2)

    assert [t.metrics["score"] for t in trials] == [0, 1]
    assert of(here.events, ExtraResult) == [ExtraResult(n, "{'score': -1.0}") for n in range(2)]


def test_trials_wait_for_workers_that_come_late(shop: Callable[..., Shop]) -> None:
    """Without a worker nothing runs, which is said; one that joins in the middle takes what waits."""
    here = shop(slots=2)
    wait = here.begin(6)
    until(lambda: len(here.records.load()[0]) == 2)
    time.sleep(0.2)
    assert not of(here.events, Started)
    assert here.waits == ["a worker to join"]

    here.problem.hold.add(0)  # type: ignore[attr-defined]
    here.join()
    until(here.problem.reached.is_set)  # type: ignore[attr-defined]
    here.join()
    until(lambda: len(of(here.events, Finished)) == 5)
    here.problem.hold.clear()  # type: ignore[attr-defined]
    trials = wait()

    assert here.waits == ["a worker to join", None, None]
    assert [t.state for t in trials] == [State.COMPLETE] * 6
    assert of(here.events, Finished)[-1].trial.number == 0


# ---- who leaves, and who is lost


def test_a_worker_that_leaves_costs_no_attempt(shop: Callable[..., Shop]) -> None:
    """Ctrl-C of a worker: its trial is interrupted and runs again elsewhere, also where one attempt is all there is."""
    problem = PausableProblem()
    problem.hold.add(0)
    here = shop(problem, max_attempts=1)
    first = here.join()
    wait = here.begin(2)
    until(problem.reached.is_set)
    first.leave()
    until(lambda: here.waits[-1] == "a worker to join: the last one left")
    problem.hold.clear()
    here.join()
    trials = wait()

    assert first.wait().status == 130
    assert [(t.state, t.attempt) for t in trials] == [(State.COMPLETE, 2), (State.COMPLETE, 1)]
    assert "left: interrupted (SIGINT); 0 workers for 1 slot" in here.lines[1]
    assert [(e.trial, e.counts) for e in of(here.events, TrialLost)] == [(0, False)]
    assert "000000.left-1.json" in here.records.files.names("trials")


def silent(worker: Worker) -> None:
    """As if the worker's machine had lost its power: nothing is heard of it any more."""

    def lose(path: str, data: bytes, timeout_s: float) -> tuple[int, bytes]:
        time.sleep(0.01)
        raise ConnectionError("no route to host")

    worker.client._speaking.post = worker.client._listening.post = lose  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", [PausableProblem, ManyProblem])
def test_a_lost_worker_s_trial_runs_again_elsewhere(shop: Callable[..., Shop], kind: type[PausableProblem]) -> None:
    """Attempt 2 of the same trial, of the same job, which begins anew with it and knows how many it has finished."""
    problem = kind()
    problem.hold.add(2)
    here = shop(problem, trials_per_job=3, lost_after_s=1.0)
    first = here.join()
    wait = here.begin(5)
    until(problem.reached.is_set)
    second = here.join()
    silent(first)
    until(lambda: of(here.events, TrialLost))
    problem.hold.clear()
    trials = wait()

    assert [(t.job, t.attempt, t.state) for t in trials] == [
        (0, 1, "COMPLETE"), (0, 1, "COMPLETE"), (0, 2, "COMPLETE"), (3, 1, "COMPLETE"), (3, 1, "COMPLETE"),
    ]  # fmt: skip
    [loss] = of(here.events, TrialLost)
    assert (loss.trial, loss.counts) == (2, True)
    assert "not heard of for 1 s" in loss.why
    assert first.wait().status == 0  # for it, the driver is lost
    assert "the driver was not heard of for 1 s" in first.wait().why
    assert second.ending is None
    if isinstance(problem, ManyProblem):
        assert problem.stays == [(0, 0, 0), (0, 2, 2), (3, 0, 3)]


@pytest.mark.slow
def test_a_worker_lost_between_two_trials_costs_its_job_nothing(shop: Callable[..., Shop]) -> None:
    """The job that waited there for an answer begins anew on another worker."""
    problem = ManyProblem()
    here = shop(problem, slots=2, lost_after_s=3.0)
    here.tuner.behind = 1
    problem.hold.add(1)
    first, second = here.join(), here.join()
    wait = here.begin(4)
    until(problem.reached.is_set)
    until(lambda: len(of(here.events, Finished)) == 1)
    waiting = next(w for w in (first, second) if w.agent._running is None)
    here.join()
    silent(waiting)
    until(lambda: len(here.lines) == 4)
    problem.hold.clear()
    trials = wait()

    assert [t.state for t in trials] == [State.COMPLETE] * 4
    assert {t.attempt for t in trials} == {1}
    assert "not heard of for 3 s" in here.lines[3]
    assert not any(left.lost for left in of(here.events, JobLeftWorker))


@pytest.mark.parametrize("how", ["lost", "left"])
def test_a_job_goes_on_elsewhere_whose_worker_is_gone_before_the_answer(shop: Callable[..., Shop], how: str) -> None:
    """The tuner answers after the worker of the job that asks is gone: the job goes on, and has left when it is over.

    Were the loop told of the loss, it would take it for that of the stay that has begun meanwhile, and forget that:
    the job would keep the only worker for ever, and no final could run.
    """
    problem = ManyProblem()
    here = shop(problem, lost_after_s=1.0, n_finals=1)
    here.tuner.holds_at = 1
    first = here.join()
    wait = here.begin(2)
    assert here.tuner.is_held.wait(60)
    first.leave() if how == "left" else silent(first)
    until(lambda: len(here.lines) == 2)
    here.join()
    here.tuner.goes_on.set()
    trials = wait()

    assert f"{'was lost' if how == 'lost' else 'left'}: " in here.lines[1]
    assert [(t.job, t.attempt, t.state) for t in trials] == [(0, 1, "COMPLETE")] * 2 + [(2, 1, "COMPLETE")]
    assert problem.stays == [(0, 0, 0), (0, 1, 1), (2, 0, 2)]
    assert of(here.events, JobLeftWorker) == [JobLeftWorker(0), JobLeftWorker(2)]


def test_a_job_that_waits_on_no_worker_can_be_dismissed(shop: Callable[..., Shop]) -> None:
    """It has left at once."""
    here = shop(ManyProblem(), trials_per_job=2)
    worker = here.join()
    events: list[Event] = []
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}), slot=0, attempt=1)
    here.records.propose(trial)
    here.pool.run(Assignment(trial, is_last=False), events.append)
    until(lambda: TrialRequested(0) in events)
    worker.leave()
    assert JobLeftWorker(0) not in events
    here.pool.dismiss(0)

    assert events[-1] == JobLeftWorker(0)


@pytest.mark.slow
def test_a_tuner_that_thinks_loses_no_worker(shop: Callable[..., Shop]) -> None:
    """Heartbeats are answered meanwhile."""
    here = shop(lost_after_s=1.0)
    here.tuner.pause_s = 1.6
    here.join()
    trials = here.run(2)

    assert [(t.state, t.attempt) for t in trials] == [("COMPLETE", 1)] * 2
    assert len(here.lines) == 1


@pytest.mark.slow
def test_a_lost_driver_ends_its_workers(shop: Callable[..., Shop]) -> None:
    """A trial whose driver is gone is interrupted; what had finished is in the store; the worker ends with 0."""
    problem = PausableProblem()
    problem.hold.add(1)
    here = shop(problem, lost_after_s=1.0)
    worker = here.join()
    here.begin(3)
    until(problem.reached.is_set)
    here.pool._server.close()
    ending = worker.wait()

    assert ending.status == 0
    assert "the driver was not heard of for 1 s" in ending.why
    assert [t.state for t in here.records.load()[0]] == [State.COMPLETE, State.WAITING]


def test_a_worker_that_can_not_go_on_leaves(shop: Callable[..., Shop], tmp_path: Path) -> None:
    """A worker whose storage refuses ends with its error; the trial runs elsewhere and the search goes on."""
    here = shop(max_attempts=1)
    broken = tmp_path / "no folder"
    broken.write_text("")
    bad = Worker(here.url, broken, here.problem)
    wait = here.begin(2)
    ending = bad.wait()
    here.join()
    trials = wait()

    assert ending.status == 1
    assert str(broken) in ending.why
    assert [(t.state) for t in trials] == [State.COMPLETE] * 2


def test_what_no_worker_can_go_on_with_ends_the_search(shop: Callable[..., Shop], tmp_path: Path) -> None:
    """A storage that refuses everywhere: the third worker that a trial breaks ends the search, with the reason."""
    here = shop()
    broken = tmp_path / "no folder"
    broken.write_text("")
    wait = here.begin(2)
    endings = [Worker(here.url, broken, here.problem).wait() for _ in range(BROKEN)]

    assert {ending.status for ending in endings} == {1}
    with pytest.raises(SearchFailedError, match=rf"trial 0: 3 workers .* the last, here \(pid 1\): .*{broken}"):
        wait()
    assert len(of(here.events, TrialLost)) == BROKEN - 1


def test_workers_that_are_interrupted_end_no_search(shop: Callable[..., Shop]) -> None:
    """However many are, over the same trial."""
    problem = PausableProblem()
    problem.hold.add(0)
    here = shop(problem)
    wait = here.begin(1)
    for n in range(1, BROKEN + 2):
        worker = here.join()
        until(lambda: len(of(here.events, Started)) == n)  # noqa: B023
        worker.leave()
    problem.hold.clear()
    here.join()
    [trial] = wait()

    assert (trial.state, trial.attempt) == (State.COMPLETE, BROKEN + 2)


# ---- stops


def test_the_stopper_ends_a_trial(shop: Callable[..., Shop]) -> None:
    """Each report waits for its verdict."""
    here = shop(stopper=HighStopper(PausableProblem.metrics))
    here.join()
    trials = here.run(4)

    assert [(t.state, len(t.curve)) for t in trials] == [("COMPLETE", 3)] * 2 + [("STOPPED", 2), ("STOPPED", 1)]


@pytest.mark.parametrize("n_workers", [0, 1])
def test_the_session_s_end_interrupts_what_runs_and_what_waits(shop: Callable[..., Shop], n_workers: int) -> None:
    """Ctrl-C of the driver: a running trial learns of it at its next report, one without a worker is taken back."""
    problem = PausableProblem()
    problem.hold |= {0, 1}
    here = shop(problem, slots=2)
    workers = [here.join() for _ in range(n_workers)]
    wait = here.begin(4)
    until(lambda: problem.reached.is_set() or (not n_workers and len(here.records.load()[0]) == 2))
    here.executor.post(StopRequested("SIGINT", 2))
    with pytest.raises(SearchInterruptedError):
        wait()
    here.close()

    assert [t.state for t in here.records.load()[0]] == [State.WAITING] * 2
    assert all(worker.wait().status == 0 for worker in workers)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_the_deadline_ends_what_runs(shop: Callable[..., Shop], n_workers: int) -> None:
    """A running trial is STOPPED at its next report; one that has found no worker waits for a larger budget."""
    problem = PausableProblem()
    problem.hold |= {0}
    is_over = threading.Event()
    budget = Budget(hours=0.5, at_deadline="stop")
    here = shop(problem, budget=budget, spent_hours=lambda: float(is_over.is_set()))
    workers = [here.join() for _ in range(n_workers)]
    wait = here.begin()
    until(lambda: problem.reached.is_set() or (not n_workers and len(here.records.load()[0]) == 1))
    is_over.set()
    here.executor.post(TunerReady())  # as these hours pass at once
    [trial] = wait()
    here.close()

    if n_workers:
        assert (trial.state, trial.reason, trial.metrics) == (State.STOPPED, Reason.DEADLINE, {"score": 0.0})
    else:
        assert trial.state == State.WAITING
        assert {(e.trial, e.counts) for e in of(here.events, TrialLost)} <= {
            (0, False)
        }  # none where it was not yet queued
    assert all(worker.wait().status == 0 for worker in workers)


# ---- tests and exports


def test_tests_run_on_workers(shop: Callable[..., Shop]) -> None:
    """The answer comes back as it was; what the problem's code raises is its error."""
    here = shop()
    here.join()
    trials = here.run(2)

    assert here.executor.call("test", trials[0]) == {"metrics": {"score": 0.0}}
    with pytest.raises(ActionError, match="RuntimeError: no test today"):
        here.executor.call("test", trials[1])


# ---- fewer workers than slots


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_one_worker_serves_many_jobs(shop: Callable[..., Shop], deterministic: bool, behind: int) -> None:
    """Jobs that wait on the only worker give way to those that need one, whoever waits for whose result."""
    here = shop(ManyProblem(), slots=3, deterministic=deterministic)
    here.tuner.behind = behind
    here.join()
    trials = here.run(6)

    assert [t.state for t in trials] == [State.COMPLETE] * 6
    assert {t.attempt for t in trials} == {1}
    assert {t.job for t in trials} == {0, 1, 2} or not deterministic
    assert not of(here.events, WorkersBusy) or of(here.events, JobLeftWorker)


# ---- who is let in


def refused(
    shop: Shop, *, token: str = TOKEN, path: str = "/listen", method: str = "POST", **more: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.request(method, shop.url + path, headers=headers, trust_env=False, **more)


def test_no_request_without_the_token(shop: Callable[..., Shop]) -> None:
    """Whatever it asks for, in one line that says where the token comes from."""
    here = shop()
    bare = httpx.post(f"{here.url}/join", content=b"{}", trust_env=False)

    assert bare.status_code == 401
    assert refused(here, token="another").status_code == 401
    assert refused(here, token=TOKEN[:-1]).status_code == 401
    with pytest.raises(ConfigurationError, match="HEIRLOOM_CHANNEL_TOKEN must be the one that this driver printed"):
        ChannelClient(here.url, "another").join({"version": nas.__version__, "host": "h", "pid": 1})
    assert not here.lines


def test_another_version_is_refused(shop: Callable[..., Shop]) -> None:
    """In one line that names both."""
    here = shop()

    with pytest.raises(
        ConfigurationError, match=rf"Heirloom {nas.__version__}, the worker is 0\.0\.9: install the same"
    ):
        ChannelClient(here.url, TOKEN).join({"version": "0.0.9", "host": "h", "pid": 1})


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, {"path": "/docs"}),
        (404, {"method": "GET"}),
        (400, {"content": b"no json"}),
        (400, {"path": "/join", "content": b'{"worker": 1}'}),
        (410, {"content": b'{"worker": "nobody", "after": 0}'}),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(shop: Callable[..., Shop], status: int, request_: dict[str, Any]) -> None:
    """Another path or method, no JSON, no worker of this driver; and the driver goes on."""
    here = shop()
    answer = refused(here, **request_)
    here.join()

    assert answer.status_code == status
    assert answer.json()["error"]
    assert [t.state for t in here.run(1)] == [State.COMPLETE]


def opened(shop: Shop, *lines: str, sent: bytes = b"") -> socket.socket:
    """A connection on which a request's lines, or parts of them, were sent."""
    found = socket.create_connection(("127.0.0.1", shop.pool.port), timeout=20)
    found.sendall("\r\n".join(lines).encode() + sent)
    return found


def is_closed(line: socket.socket) -> bool:
    """Waits for the driver to close it."""
    with suppress(ConnectionResetError):
        while line.recv(1000):
            continue
    return True


POST = ("POST /say HTTP/1.1", "host: h")
AUTHORIZATION = f"authorization: Bearer {TOKEN}"


def test_the_token_comes_before_the_body(shop: Callable[..., Shop]) -> None:
    """A request with another token is refused, and its connection closed, while none of its body was sent."""
    with opened(shop(), *POST, "authorization: Bearer no", "content-length: 9", "", "") as line:
        assert line.recv(12) == b"HTTP/1.1 401"
        assert is_closed(line)


@pytest.mark.parametrize(
    ("header", "body"),
    [("content-length: 1001", b""), ("transfer-encoding: chunked", b"800\r\n" + b"x" * 2048 + b"\r\n")],
    ids=["by what it says of itself", "by what comes"],
)
def test_a_body_has_a_limit(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, header: str, body: bytes
) -> None:
    """A larger one is refused before it has come."""
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)
    with opened(shop(), *POST, AUTHORIZATION, header, "", "", sent=body) as line:
        assert line.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    "lines",
    [(), ("POST /s",), (*POST, AUTHORIZATION, ""), (*POST, AUTHORIZATION, "content-length: 9", "", "{")],
    ids=["nothing", "half a line", "half a header", "half a body"],
)
def test_half_a_request_does_not_stay(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    """Its connection is closed when the time for it is over; a worker's, between two requests, is not."""
    monkeypatch.setattr("nas.executors.remote.connection.HEADER_S", 1.0)
    monkeypatch.setattr("nas.executors.remote.connection.BODY_S", 1.1)
    here = shop()
    kept = Connection(here.url, TOKEN)
    greeting = dumps({"worker": "w", "version": nas.__version__, "host": "h", "pid": 1})
    assert kept.post("/join", greeting, 10)[0] == 200
    with opened(here, *lines) as line:
        assert is_closed(line)

    assert kept.post("/join", greeting, 10)[0] == 200
    kept.close()


def test_strangers_that_say_nothing_keep_nobody_out(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """There are so many at a time, and the oldest go: a worker still joins and works."""
    monkeypatch.setattr("nas.executors.remote.connection.MAX_STRANGERS", 4)
    here = shop()
    strangers = [opened(here) for _ in range(6)]
    here.join()
    trials = here.run(1)

    assert [t.state for t in trials] == [State.COMPLETE]
    assert all(is_closed(line) for line in strangers[:2])
    for line in strangers:
        line.close()


def test_nothing_secret_travels(shop: Callable[..., Shop]) -> None:
    """What the driver tells a worker holds neither its root nor its options."""
    here = shop()
    client = ChannelClient(here.url, TOKEN)
    welcome = client.join({"version": nas.__version__, "host": "h", "pid": 1})
    client.close()

    assert "stays here" not in repr(welcome)
    assert "not the workers'" not in repr(welcome)


@pytest.mark.slow
def test_a_worker_that_never_listens_is_given_up(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that it had to look at what it is to run, which the reason names."""
    monkeypatch.setattr("nas.executors.remote.pool.READY_S", 1.5)
    worker = ChannelClient(shop().url, TOKEN)
    worker.join({"version": nas.__version__, "host": "h", "pid": 1})
    time.sleep(3.5)

    with pytest.raises(GivenUpError, match=r"not heard of for 1\.5 s"):
        worker.listen()
    worker.close()


def test_nobody_there_is_one_line() -> None:
    """A worker whose driver does not answer says so when its patience is over."""
    with pytest.raises(ServerError, match=r"nobody answers at http://127\.0\.0\.1:9 .*is the driver still there\?"):
        ChannelClient("http://127.0.0.1:9", TOKEN, retry_s=0.3).join({})


def test_a_taken_port_is_refused(shop: Callable[..., Shop]) -> None:
    """In one line."""
    here = shop()
    gate = Gate(token=TOKEN, version="1", port=here.pool.port)

    with pytest.raises(ConfigurationError, match=rf"channel.port={here.pool.port}: can't listen there \(Address .*use"):
        RemotePool(RuntimeSpec(problem=Spec("x.Y"), url="", options={}), "search", gate)
