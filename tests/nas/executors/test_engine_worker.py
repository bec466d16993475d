"""The worker's end of an engine: what travels to it, what it refuses, and what it does not train."""

from __future__ import annotations

import math
import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nas import Int, Metric, ParameterSpace, Problem, Proposal, TrialRun
from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from nas.core.trial import Trial
from nas.executors import engine_session
from nas.executors.engine_session import EngineSession, Message, Taken
from nas.executors.engine_worker import (
    OPTIONS_VARIABLE,
    ROOT_VARIABLE,
    EngineSpec,
    EngineWorker,
    PackedOrder,
    WorkerUnfit,
    local_runtime,
    worker_environment,
)
from nas.executors.events import Finished, TrialLost
from nas.executors.process_pool import visible_gpus
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec

URL = "sftp://me:s3cret@host/root/search"


def runtime(url: str = URL, **options: object) -> RuntimeSpec:
    return RuntimeSpec(problem=Spec("held_problem.HeldProblem"), url=url, options=options)


def test_spec_has_no_credentials() -> None:
    """Neither the password of the URL nor storage options are in what an engine sends."""
    order = PackedOrder.of(EngineSpec(runtime=runtime(password="s3cret", key="s3cret")), "order")
    spec, content = order.unpack()

    assert b"s3cret" not in pickle.dumps(order)
    assert (spec.runtime.url, dict(spec.runtime.options)) == ("sftp://me@host/root/search", {})
    assert content == "order"


def test_worker_has_its_own_root_and_options() -> None:
    """The worker's environment names its root and options; without it the driver's URL counts."""
    bare = EngineSpec(runtime=runtime(key="k")).runtime
    here = local_runtime(bare, {ROOT_VARIABLE: "/mnt/other/", OPTIONS_VARIABLE: '{"key": 1}'})

    assert (here.url, here.options) == ("/mnt/other/search", {"key": 1})
    assert local_runtime(bare, {}).url == "sftp://me@host/root/search"
    assert local_runtime(bare, worker_environment(URL, {"key": "k"})) == runtime(key="k")
    assert worker_environment("/mnt/root/search", {}) == {}


@pytest.mark.parametrize("text", ["[1]", "s3cret", '"s3cret"'])
def test_options_must_be_an_object(text: str) -> None:
    """Anything else is one line that does not show the value."""
    with pytest.raises(ConfigurationError, match=rf"^{OPTIONS_VARIABLE}: must be a JSON object") as raised:
        local_runtime(runtime(), {OPTIONS_VARIABLE: text})

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("name", ["Heirloom", "Python"])
def test_other_versions_are_refused(name: str) -> None:
    """A worker with another version refuses by name before it unpickles anything."""
    order = PackedOrder.of(EngineSpec(runtime=runtime()), "order")
    other = replace(order, versions={**order.versions, name: "0.0"}, content=b"no pickle")

    with pytest.raises(ConfigurationError, match=rf"the driver has {name} 0\.0, this worker .*Install the same"):
        other.unpack()


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
def test_time_of_a_training_counts_on_the_workers_clock(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """The clocks of driver and worker may differ; only the seconds that are left travel."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}), slot=0, attempt=1)
    spec, clock = EngineSpec(runtime=runtime()), time.time
    orders = [PackedOrder.of(spec, Assignment(trial, train_until=until)) for until in (clock() + 60, math.inf, None)]
    monkeypatch.setattr("time.time", lambda: clock() + ahead_s)
    soon, ever, never = (order.unpack()[1].train_until for order in orders)

    assert soon - time.time() == pytest.approx(60, abs=5)
    assert (ever, never) == (math.inf, None)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """Returns a trial whose proposal is durable."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}), slot=0, attempt=1)
    Records(open_root(str(tmp_path / "search"))).propose(trial)
    return trial


@pytest.mark.parametrize("sessions", [(2,), (1, 2)], ids=["alone", "after an orphan"])
def test_attempt_that_was_started_trains_nothing(tmp_path: Path, trial: Trial, sessions: tuple[int, ...]) -> None:
    """The engine's rerun of a lost task finds the attempt's start record: the trial is lost, no process starts."""
    records = Records(open_root(str(tmp_path / "search")))
    for attempt, session in enumerate(sessions, start=1):
        where = {"session": session, "host": "elsewhere", "pid": 1, "time": 1.0}
        records.start(replace(trial, attempt=attempt), where)
    worker = EngineWorker(EngineSpec(runtime=replace(runtime(str(tmp_path / "search")), session=2)))
    ended = worker.run(Assignment(trial), lambda event: None)
    worker.close()

    assert ended == TrialLost(0, 0, "its worker was lost, and the engine ran its task again")
    assert records.result(trial) is None


class ScoredProblem(Problem):
    """Scores each point with its ``x``."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 1)})

    def train(self, run: TrialRun) -> dict[str, float]:
        return {"score": run.point["x"]}


@pytest.mark.slow
def test_an_order_of_a_killed_driver_costs_no_attempt(tmp_path: Path, trial: Trial) -> None:
    """Its start record has the number of this session's attempt, which takes the next one."""
    records = Records(open_root(str(tmp_path / "search")))
    records.start(trial, {"session": 1, "host": "elsewhere", "pid": 1, "time": 1.0})
    where = replace(runtime(str(tmp_path / "search")), problem=Spec.of(ScoredProblem), session=2)
    worker = EngineWorker(EngineSpec(runtime=where))
    ended = worker.run(Assignment(trial), lambda event: None)
    worker.close()

    assert isinstance(ended, Finished)
    assert (ended.trial.attempt, ended.trial.metrics) == (2, {"score": 1})


def test_worker_without_the_drivers_records_is_unfit(tmp_path: Path, trial: Trial) -> None:
    """A root that is not the driver's is one line with the remedy."""
    (tmp_path / "other").mkdir()
    worker = EngineWorker(EngineSpec(runtime=runtime(str(tmp_path / "other" / "search"))))
    ended = worker.run(Assignment(trial), lambda event: None)
    worker.close()

    assert isinstance(ended, WorkerUnfit)
    assert ended.is_mistake
    assert "does not hold the driver's trial 0. Mount the driver's storage there, or set" in ended.error


class KeptSession(EngineSession):
    """A session that keeps its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Message] = []

    def send(self, key: str | None, message: Message) -> None:
        self.sent.append(message)


def test_a_task_that_begins_while_its_session_ends_trains_nothing(
    tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a worker prepares its process: the trial is lost, which costs no attempt."""
    session = KeptSession()

    def begin(spec: EngineSpec) -> EngineWorker:
        session.close()
        return EngineWorker(spec)

    monkeypatch.setattr(engine_session, "EngineWorker", begin)
    session.run("key", PackedOrder.of(EngineSpec(runtime=runtime(str(tmp_path / "search"))), Assignment(trial)))

    assert session.sent == [Taken(), TrialLost(0, 0, "the driver has ended the session", counts=False)]


def test_a_trial_for_a_job_that_has_left_is_lost(trial: Trial) -> None:
    """A job may leave just when its next trial is sent; the driver waited for that trial forever."""
    session = KeptSession()
    session.run_next("key", Assignment(trial))

    assert session.sent == [TrialLost(0, 0, "its job had left the worker", counts=False)]


class ShownGpusProblem(Problem):
    """Scores each point with the GPU that its process sees."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 1)})

    def train(self, run: TrialRun) -> dict[str, float]:
        return {"score": float(os.environ["CUDA_VISIBLE_DEVICES"])}


@pytest.mark.slow
def test_a_worker_that_joins_late_takes_the_free_gpu(tmp_path: Path) -> None:
    """The third worker of an adaptive cluster gets the GPU of the first, which has left; others have theirs."""
    where = replace(runtime(str(tmp_path / "search")), problem=Spec.of(ShownGpusProblem), device="cuda")
    spec = EngineSpec(runtime=where, gpus=(0, 1), claims=str(tmp_path))
    records = Records(open_root(str(tmp_path / "search")))
    first, second = EngineWorker(spec), EngineWorker(spec)
    first.close()
    workers = [second, EngineWorker(spec)]
    ended = []
    for number, worker in enumerate(workers):
        trial = Trial(number=number, index=number, proposal=Proposal(point={"x": 1}), slot=0, attempt=1)
        records.propose(trial)
        ended.append(worker.run(Assignment(trial), lambda event: None))
        worker.close()

    assert [event.trial.metrics for event in ended if isinstance(event, Finished)] == [{"score": 1.0}, {"score": 0.0}]


def test_a_worker_gets_no_gpu_outside_of_its_allocation() -> None:
    """A worker that is shown fewer GPUs than a trial needs is refused; others count within their list."""
    assert visible_gpus([0, 1], {"CUDA_VISIBLE_DEVICES": "5,7,9"}) == "5,7"
    assert visible_gpus([0, 1], {}) == "0,1"
    for shown in ("5", ""):
        with pytest.raises(ConfigurationError, match=f"^CUDA_VISIBLE_DEVICES={shown}: must list at least 2 GPUs here"):
            visible_gpus([0, 1], {"CUDA_VISIBLE_DEVICES": shown})
