"""One attempt of one trial in this process: what train may call, and the record that results."""

from __future__ import annotations

import copy
import errno
import logging
import math
import random
import re
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from torch import nn

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ActionError, CorruptError, MissingError, StorageError, TrialStopped
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.reference import Reference
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Proposal, Reason, State, Trial
from nas.executors.events import Event, Reported, Started
from nas.executors.in_process_pool import InProcessPool
from nas.inheritance.rules import Rules
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.removing import Remove
from nas.spaces.graphs.resizing import Widen
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from nas.storage.verified import digest_of
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.runtime import TrialRuntime
from nas.training.seeds import seed_everything
from nas.training.torch_settings import SavedSettings, torch_settings
from nas.training.trial_run import TrialRun
from tests.support.graph_networks import STARTS
from tests.support.problems import BodyProblem, network

pytestmark = pytest.mark.usefixtures("one_thread")

Body = Callable[[TrialRun], object]
LAZY: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.LazyLinear(4)), torch.arange(12.0).reshape(2, 6)),
    "convolution": (lambda: nn.Sequential(nn.LazyConv2d(4, 3)), torch.arange(96.0).reshape(2, 3, 4, 4)),
    "transposed": (lambda: nn.Sequential(nn.LazyConvTranspose1d(4, 3)), torch.arange(24.0).reshape(2, 3, 4)),
    "batch norm": (lambda: nn.Sequential(nn.LazyBatchNorm1d()), torch.arange(12.0).reshape(2, 6)),
    "instance norm": (
        lambda: nn.Sequential(nn.LazyInstanceNorm1d(affine=True, track_running_stats=True)),
        torch.arange(24.0).reshape(2, 3, 4),
    ),
}
"""Networks of one lazy layer, and a batch for each."""


class TrialTrainer:
    """A storage in memory, in which functions are trained as trials 0, 1, 2, ... by the worker's code."""

    def __init__(self) -> None:
        self.files: BlobStore = open_root(f"memory://run/{uuid4().hex}", retry_s=0)
        self.records = Records(self.files)
        self.events: list[Event] = []
        self.n_trials = 0
        self.kind = BodyProblem

    def train(self, body: Body, *, stops_at: int | None = None, donors: Sequence[Trial] = (), **more: Any) -> Trial:
        """Returns the trial that this function trains. ``stops_at``: the report at which the controller stops it."""
        trial = self.propose(**more)
        result = self.run(trial, body, stops_at=stops_at, donors=donors)
        assert result is not None
        return result

    def propose(self, **more: Any) -> Trial:
        trial = Trial(
            number=self.n_trials,
            index=self.n_trials,
            state=State.RUNNING,
            attempt=1,
            slot=0,
            policies=frozenset(Policy),
            **{"proposal": Proposal(point={"x": self.n_trials}), **more},
        )
        self.n_trials += 1
        self.records.propose(trial)
        return trial

    def run(
        self, trial: Trial, body: Body, *, stops_at: int | None = None, donors: Sequence[Trial] = ()
    ) -> Trial | None:
        pool = self.pool(body, has_stopper=stops_at is not None)

        def post(event: Event) -> None:
            self.events.append(event)
            if isinstance(event, Reported) and event.answer is not None:
                event.answer(event.step == stops_at)

        return pool.run(Assignment(trial, tuple(map(weights_of, donors))), post)

    def pool(self, body: Body, **more: bool) -> InProcessPool:
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=self.files.url, options={}, **more)
        return InProcessPool(spec, self.files, self.kind(body))


@pytest.mark.parametrize("jobs", [False, True])
def test_an_attempt_after_the_end_of_the_pool_is_interrupted(jobs: bool) -> None:
    """It trains nothing and has no result: another session may run it."""
    trainer = TrialTrainer()
    trial, pool = trainer.propose(), trainer.pool(lambda run: {"score": 0.5}, jobs_request_trials=jobs)
    pool.close()

    assert pool.run(Assignment(trial), trainer.events.append) is None
    assert trainer.records.result(trial) is None


class ChangingProblem(BodyProblem):
    """Takes the parameter out of each point that it is given before the training."""

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        return {"size": point.pop("x")}

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        return {"latency_s": point.pop("x")}


def weights_of(trial: Trial) -> DonorWeights:
    assert trial.checkpoint is not None
    return DonorWeights(trial.number, trial.checkpoint)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.flatten().view(torch.int32).tolist()


@pytest.fixture
def trainer() -> TrialTrainer:
    return TrialTrainer()


class TestOutcomes:
    def test_complete(self, trainer: TrialTrainer) -> None:
        """The metrics that train returns are the trial's; its result is durable, with its cost."""
        trial = trainer.train(lambda run: {"score": np.float32(0.5), "extra": 3})

        assert (trial.state, trial.reason, trial.error) == (State.COMPLETE, None, None)
        assert trial.metrics == {"score": 0.5, "extra": 3}
        assert trial.cost["seconds"] > 0
        assert trial.cost["gpu_seconds"] == 0.0
        assert trainer.records.result(trial) == trial

    def test_zero_is_a_score(self, trainer: TrialTrainer) -> None:
        """A score of 0 is COMPLETE like any other."""
        trial = trainer.train(lambda run: {"score": 0})

        assert (trial.state, trial.metrics) == (State.COMPLETE, {"score": 0})

    @pytest.mark.parametrize("returned", [None, {}, {"loss": 1.0}, 0.5], ids=str)
    def test_no_metric(self, trainer: TrialTrainer, returned: object) -> None:
        """A trial without the declared metric is FAILED(no_metric), with the returned values."""
        trial = trainer.train(lambda run: returned)

        assert (trial.state, trial.reason) == (State.FAILED, Reason.NO_METRIC)
        remedy = "Return {'score': value} from train, or declare other metrics"
        assert trial.error == f"train returned {returned!r}, without score. {remedy}"

    def test_no_metric_in_one_line(self, trainer: TrialTrainer) -> None:
        """Returned arrays, which Python prints on several lines, leave the error one line."""
        trial = trainer.train(lambda run: np.eye(2))

        assert (trial.error or "").startswith("train returned array([[1., 0.],")
        assert len((trial.error or "").splitlines()) == 1

    @pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor(float("nan"))], ids=str)
    def test_not_finite_result(self, trainer: TrialTrainer, value: object) -> None:
        """A NaN or infinite metric is FAILED(not_finite), with the metric's name."""
        trial = trainer.train(lambda run: {"score": 1.0, "loss": value})

        assert (trial.state, trial.reason, trial.checkpoint) == (State.FAILED, Reason.NOT_FINITE, None)
        assert "loss=" in (trial.error or "")

    def test_not_finite_report(self, trainer: TrialTrainer) -> None:
        """A NaN report ends the trial as FAILED(not_finite), with the step; earlier reports are kept."""

        def body(run: TrialRun) -> object:
            run.report(1, score=0.5)
            run.report(2, score=math.nan)
            pytest.fail("the report must raise")

        trial = trainer.train(body)

        assert (trial.state, trial.reason) == (State.FAILED, Reason.NOT_FINITE)
        assert trial.error is not None
        assert trial.error.strip().endswith("step 2 reported score=nan")
        assert trial.curve == ((1, {"score": 0.5}),)

    def test_exception_keeps_its_traceback(self, trainer: TrialTrainer) -> None:
        """An exception is FAILED(exception), with type, message and the problem's lines."""

        def explode(depth: int) -> None:
            raise KeyError("no such layer") if not depth else AssertionError

        trial = trainer.train(lambda run: explode(0))

        assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
        assert (trial.error or "").endswith("KeyError: 'no such layer'\n")
        assert "in explode" in (trial.error or "")

    def test_long_traceback_keeps_its_end(self, trainer: TrialTrainer) -> None:
        """The record keeps the end of a very long message, and the log all of it."""

        def body(run: TrialRun) -> object:
            raise ValueError("x" * 100_000 + " the end")

        trial = trainer.train(body)

        assert 1_000 < len(trial.error or "") < 2_000
        assert (trial.error or "").endswith("the end\n")
        assert "x" * 100_000 + " the end\n" in trainer.records.log(trial.number)

    @pytest.mark.parametrize("status", [0, 1, "no data"])
    def test_exit_is_a_failure(self, trainer: TrialTrainer, status: object) -> None:
        """sys.exit in train, also with status 0, is FAILED(exception) and does not end the process."""
        trial = trainer.train(lambda run: sys.exit(status))  # type: ignore[arg-type]

        assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
        assert "SystemExit" in (trial.error or "")

    @pytest.mark.parametrize("kind", [GeneratorExit, CancelledError, type("Own", (BaseException,), {"__str__": None})])
    def test_an_error_of_any_kind_is_a_failure(self, trainer: TrialTrainer, kind: type[BaseException]) -> None:
        """Errors that are no ``Exception`` fail the trial, whether or not they have a text."""

        def body(run: TrialRun) -> object:
            raise kind

        trial = trainer.train(body)

        assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
        assert kind.__name__ in (trial.error or "")

    def test_failed_trial_has_no_weights(self, trainer: TrialTrainer) -> None:
        """A failed trial has no checkpoint, even if it saved weights."""

        def body(run: TrialRun) -> object:
            run.save(network())
            raise ValueError

        assert trainer.train(body).checkpoint is None

    def test_storage_error_does_not_fail_the_trial(self, trainer: TrialTrainer) -> None:
        """A storage error is raised unchanged, and the trial gets no result."""

        def body(run: TrialRun) -> object:
            raise StorageError("the disk is full")

        trial = trainer.propose()
        with pytest.raises(StorageError, match="the disk is full"):
            trainer.run(trial, body)
        assert trainer.records.result(trial) is None

    def test_finished_trial_is_not_run_again(self, trainer: TrialTrainer) -> None:
        """A trial with a result gets that one, and the problem's code is not called."""
        first = trainer.train(lambda run: {"score": 1.0})

        again = trainer.run(first, lambda run: pytest.fail("it runs again"))

        assert again == first

    def test_first_result_wins(self, trainer: TrialTrainer) -> None:
        """If two attempts run at once, the first result counts for both."""
        trial = trainer.propose()

        def body(run: TrialRun) -> object:
            if trial.attempt == 1:
                trainer.run(replace(trial, attempt=2), lambda run: {"score": 2.0})
            return {"score": 1.0}

        result = trainer.run(trial, body)

        assert result is not None
        assert (result.attempt, result.metrics) == (2, {"score": 2.0})

    def test_attempt_of_a_worker_that_outlived_its_driver(self, trainer: TrialTrainer) -> None:
        """If the start of this attempt is recorded already, it runs under the next number."""
        trial = trainer.propose()
        trainer.records.start(trial, {"session": 1})

        result = trainer.run(trial, lambda run: {"score": 1.0})

        assert result is not None
        assert result.attempt == 2

    def test_start_is_durable_before_the_code(self, trainer: TrialTrainer) -> None:
        """When train is called, the start record is durable, and the controller knows of it."""
        trial = trainer.propose()

        def body(run: TrialRun) -> object:
            record = trainer.records.read("trials/000000.start-1.json") or {}
            assert (record["trial"], record["attempt"], record["resolved_donor"]) == (0, 1, None)
            assert trainer.events == [Started(0, 1, 0)]
            return {"score": 1.0}

        result = trainer.run(trial, body)

        assert result is not None
        assert result.error is None


class TestRecord:
    @pytest.mark.parametrize("text", ["plain ", "\0\x1b", "\N{GRINNING FACE}", "\udcff"], ids=ascii)
    @pytest.mark.parametrize("ends", ["complete", "stopped", "failed"])
    def test_oversized_fields_are_cut(self, trainer: TrialTrainer, text: str, ends: str) -> None:
        """With names, metrics and errors of any size the record without its curve is under 4 kB, with the score."""
        tensors = {f"{n}-{text * 20}": torch.ones(2) for n in range(300)}
        metrics = {**{f"{n}-{text * 9}": n / 7 for n in range(1_000)}, "score": 0.5}
        donor = trainer.train(lambda run: run.save(tensors) or {"score": 1.0})
        replaced = {f"{'far' * 60}:{n}": None for n in range(500)}

        class Huge(nn.Module):
            def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # names that no module takes
                return {name: torch.ones(3) for name in tensors}

            def load_state_dict(self, *_: Any, **__: Any) -> Any: ...

        def body(run: TrialRun) -> object:
            assert run.inherit(Huge()).tensors.keys() == tensors.keys()
            run.save(network())
            run.report(1, **metrics)
            if ends == "failed":
                raise ValueError(text * 100_000)
            return metrics

        resolved_donor = f"{'far' * 60}:{10**9}"
        trial = trainer.train(
            body, donors=[donor], stops_at=1 if ends == "stopped" else None,
            resolved_donor=resolved_donor, inheritance={"replaced": replaced},
        )  # fmt: skip

        record = trainer.records.read(f"trials/{trial.number:06d}.result.json") or {}
        del record["curve"]
        assert len(encode_record(record)) < 4_000
        assert trial == trainer.records.result(trial)
        assert trial.value("score") == (None if ends == "failed" else 0.5)
        assert len(trial.inheritance["not_copied"]) + trial.inheritance["n_unlisted"] == 300
        assert len(trial.curve[0][1]) == 1_001
        logs = trainer.records.other_logs(trial)
        assert logs["inheritance"].count(": (2,) into (3,)\n") == 300
        assert (ends == "failed") != ("record too small" in trainer.records.log(trial.number))

    def test_weights_in_many_packs_leave_little_room(self, trainer: TrialTrainer) -> None:
        """A checkpoint of sixteen packs and long donor names leave the record under 4 kB, with its score."""
        packs = tuple(Reference(f"packs/{n:06d}-1a2b3c4d-0.safetensors", 10**9, digest_of(b"")) for n in range(16))
        manifest = Reference("manifests/000000-1a2b3c4d.json", 10**7, digest_of(b""))
        trial = replace(
            trainer.propose(),
            state=State.COMPLETE,
            metrics={"score": 0.1, **{f"other {n}": n / 7 for n in range(99)}},
            static_metrics={"parameters": 10**12, **{f"known {n}": n / 7 for n in range(99)}},
            checkpoint=Checkpoint(manifest=manifest, packs=packs),
            resolved_donor=f"{'far' * 66}:{10**8}",
            donor=f"{'far' * 66}:{10**8}",
            inheritance={"share": 1 / 3, "not_copied": {f"layer.{n}.weight": "(3, 3) into (4, 4)" for n in range(99)}},
        )
        result = trainer.records.commit(trial)

        record = trainer.records.read("trials/000000.result.json") or {}
        assert len(encode_record(record)) < 4_000
        assert result.metrics["score"] == 0.1
        assert result.inheritance["n_unlisted"] == 99 - len(result.inheritance["not_copied"])

    def test_record_of_a_usual_trial_is_whole(self, trainer: TrialTrainer) -> None:
        """A few metrics, a short error and some tensors are recorded in full."""
        donor = trainer.train(lambda run: run.save(network(6)) or {"score": 1.0})
        trial = trainer.train(
            lambda run: {"score": 0.5, "other": float(len(run.inherit(network(4)).tensors))}, donors=[donor]
        )

        assert trial.metrics == {"score": 0.5, "other": 9}
        assert len(trial.inheritance["not_copied"]) == 7
        assert "n_unlisted" not in trial.inheritance
        assert trainer.records.other_logs(trial) == {}

    def test_suggested_points(self, trainer: TrialTrainer) -> None:
        """The last suggestion of a trial is in its record, whatever its code does to the points later."""

        def body(run: TrialRun) -> object:
            run.suggest_points([{"x": 1}])
            run.suggest_points(points := [{"x": 7}, {"x": 3}])
            points[0]["x"] = 99
            return {"score": 0.5}

        trial = trainer.train(body)

        assert trial.suggested == ({"x": 7}, {"x": 3})
        assert trainer.records.result(trial) == trial
        assert trainer.records.load()[0] == [trial]

    @pytest.mark.parametrize(
        ("points", "error"),
        [
            ([{"x": 1}, {"x": 100}], r"run.suggest_points\[1\]: must be in the space: x=100"),
            ([{"x": n} for n in range(99)], r"99 points take \d+ bytes of JSON: must be at most 600"),
            ([{"supernet_epoch": 0}], r"run.suggest_points\[0\]=.*: must be a point that can be trained"),
            ([7], r"run.suggest_points\[0\]=7: must be a point"),
            ([{"x": {1}}], r"must be plain JSON data"),
        ],
    )
    def test_wrong_suggestion_is_an_error(self, trainer: TrialTrainer, points: list[Any], error: str) -> None:
        """A point outside the space and points that a record can't hold make the trial FAILED with the remedy."""

        def body(run: TrialRun) -> object:
            run.suggest_points(points)
            return {"score": 0.5}

        trial = trainer.train(body)

        assert trial.state == State.FAILED
        assert re.search(error, trial.error or "")
        assert trial.suggested == ()

    def test_code_may_change_its_point(self, trainer: TrialTrainer) -> None:
        """What the problem's code changes in place reaches no trial and no record."""
        trainer.kind = ChangingProblem
        given = {"point": {"x": 7, "sizes": [1]}, "derivation": {"mutated": ["x"]}}

        def body(run: TrialRun) -> object:
            run.point["sizes"].append(run.point.pop("x"))
            run.derivation.clear()
            return {"score": 0.5}

        trial = trainer.train(body, proposal=Proposal(**copy.deepcopy(given)))

        assert (trial.state, trial.static_metrics) == (State.COMPLETE, {"size": 7, "latency_s": 7})
        assert trial.proposal == Proposal(**given)
        assert trainer.records.load()[0] == [trial]

    def test_wrong_trained_share_fails_the_trial(self, trainer: TrialTrainer) -> None:
        """A share that no record can hold is an error of the problem's code."""

        def body(run: TrialRun) -> object:
            run.trained_share = math.nan
            return {"score": 0.5}

        trial = trainer.train(body)

        assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
        assert "run.trained_share=nan: must be a number of at least 0" in (trial.error or "")
        assert trainer.records.load()[0] == [trial]


class TestReports:
    def test_reports_become_the_curve(self, trainer: TrialTrainer) -> None:
        """Reports reach the controller as plain numbers, and make the trial's curve."""

        def body(run: TrialRun) -> object:
            run.report(1, score=np.float64(0.25), loss=torch.tensor(2))
            run.report(2, score=0.5)
            return {"score": 1.0}

        trial = trainer.train(body)

        assert trial.curve == ((1, {"score": 0.25, "loss": 2}), (2, {"score": 0.5}))
        reports = [(e.trial, e.step, e.metrics) for e in trainer.events if isinstance(e, Reported)]
        assert reports == [(0, 1, {"score": 0.25, "loss": 2}), (0, 2, {"score": 0.5})]

    def test_observers_may_change_reports(self, trainer: TrialTrainer) -> None:
        """The event of a report has metrics of its own; the record's curve stays."""

        def body(run: TrialRun) -> object:
            run.report(1, score=0.25)
            return {"score": 0.5}

        def post(event: Event) -> None:
            if isinstance(event, Reported):
                assert isinstance(event.metrics, dict)
                event.metrics.clear()

        trial = trainer.pool(body).run(Assignment(trainer.propose()), post)

        assert trial is not None
        assert trial.curve == ((1, {"score": 0.25}),)

    def test_steps_are_whole_numbers(self, trainer: TrialTrainer) -> None:
        """Whole steps of any type are integers of the curve; a step that would lose its fraction fails the trial."""

        def body(run: TrialRun) -> object:
            for step in (np.int64(1), 2.0, torch.tensor(3)):
                run.report(step, score=0.5)  # type: ignore[arg-type]
                run.save_resume_point(step, force=True)  # type: ignore[arg-type]
            run.report(3.5, score=0.5)  # type: ignore[arg-type]
            return {"score": 1.0}

        trial = trainer.train(body)

        assert trial.curve == ((1, {"score": 0.5}), (2, {"score": 0.5}), (3, {"score": 0.5}))
        assert trial.error is not None
        assert "run.report: step=3.5: must be a whole number. Count batches or epochs." in trial.error

    def test_stop_ends_the_trial(self, trainer: TrialTrainer) -> None:
        """A trial ended by the stopper is STOPPED, and its last report gives its metrics."""

        def body(run: TrialRun) -> object:
            for step in range(1, 9):
                run.report(step, score=step / 10)
            pytest.fail("report must raise")

        trial = trainer.train(body, stops_at=3)

        assert (trial.state, trial.reason) == (State.STOPPED, Reason.STOPPER)
        assert trial.metrics == {"score": 0.3}
        assert len(trial.curve) == 3

    def test_stopped_trial_may_save(self, trainer: TrialTrainer) -> None:
        """A last save while TrialStopped is raised is published."""

        def body(run: TrialRun) -> object:
            try:
                run.report(1, score=0.5)
            except TrialStopped:
                run.save({"weight": torch.tensor([1.0, 2.0])})
                raise
            return {"score": 1.0}

        trial = trainer.train(body, stops_at=1)

        assert trial.state == State.STOPPED
        assert trial.checkpoint is not None
        assert StoredWeights(trainer.files, trial.checkpoint).read_all()["weight"].tolist() == [1.0, 2.0]

    def test_caught_stop_is_still_a_stop(self, trainer: TrialTrainer) -> None:
        """A trial that catches TrialStopped and returns scores is STOPPED."""

        def body(run: TrialRun) -> object:
            try:
                run.report(1, score=0.5)
            except TrialStopped:
                return {"score": 0.9}
            return {"score": 1.0}

        trial = trainer.train(body, stops_at=1)

        assert (trial.state, trial.metrics) == (State.STOPPED, {"score": 0.5})

    def test_stop_that_became_another_error_is_still_a_stop(self, trainer: TrialTrainer) -> None:
        """A trial that raises another exception from TrialStopped is STOPPED, not FAILED."""

        def body(run: TrialRun) -> object:
            try:
                run.report(1, score=0.5)
            except TrialStopped as stop:
                raise RuntimeError("the callback raised") from stop
            return {"score": 1.0}

        assert trainer.train(body, stops_at=1).state == State.STOPPED

    def test_failing_last_save_is_a_storage_error(self, trainer: TrialTrainer) -> None:
        """A storage that fails in a stopped trial's last save raises a storage error."""

        def body(run: TrialRun) -> object:
            try:
                run.report(1, score=0.5)
            finally:
                raise StorageError("the disk is full")

        with pytest.raises(StorageError, match="the disk is full"):
            trainer.train(body, stops_at=1)

    def test_interrupted_trial_has_no_result(self, trainer: TrialTrainer) -> None:
        """A trial interrupted by the session's end has no result, so it runs again."""
        trial = trainer.propose()

        def body(run: TrialRun) -> object:
            pool.stop(trial, "interrupt")
            run.report(1, score=0.5)
            return {"score": 1.0}

        pool = trainer.pool(body)

        assert pool.run(Assignment(trial), trainer.events.append) is None
        assert trainer.records.result(trial) is None


class TestWeights:
    def test_weights_are_inherited_to_the_bit(self, trainer: TrialTrainer) -> None:
        """A child of the same shape starts from its parent's float32 weights, equal to the bit."""
        kept: dict[str, torch.Tensor] = {}

        def parent(run: TrialRun) -> object:
            model = network()
            with torch.no_grad():
                model[0].weight[0] = torch.tensor([-0.0, 1e-45, 3.4e38])  # type: ignore[operator, union-attr]
                model[1].running_var.fill_(1 / 3)  # type: ignore[operator, union-attr]
            kept.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
            run.save(model)
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            model = network()
            report = run.inherit(model)
            assert report.share == 1.0
            for name, tensor in model.state_dict().items():
                assert tensor.dtype == kept[name].dtype
                assert torch.equal(tensor, kept[name])
            assert bits(model[0].weight) == bits(kept["0.weight"])  # type: ignore[arg-type]
            return {"score": 1.0}

        trial = trainer.train(child, donors=[trainer.train(parent)])

        assert trial.error is None
        assert trial.inherited == 1.0
        assert trial.inheritance["n_new"] == 0

    def test_last_save_counts(self, trainer: TrialTrainer) -> None:
        """The last of several saves is the checkpoint, and the other packs are deleted."""

        def body(run: TrialRun) -> object:
            for value in (1.0, 2.0, 3.0):
                run.save({"weight": torch.tensor([value])})
            return {"score": 1.0}

        trial = trainer.train(body)

        assert trial.checkpoint is not None
        assert StoredWeights(trainer.files, trial.checkpoint).read_all()["weight"].tolist() == [3.0]
        assert len(trainer.files.names("packs")) == 1

    def test_saved_weights_are_a_copy(self, trainer: TrialTrainer) -> None:
        """Training after a save does not change the saved weights."""

        def body(run: TrialRun) -> object:
            weight = torch.zeros(3)
            run.save({"weight": weight})
            weight += 1
            return {"score": 1.0}

        trial = trainer.train(body)

        assert trial.checkpoint is not None
        assert StoredWeights(trainer.files, trial.checkpoint).read_all()["weight"].tolist() == [0.0] * 3

    def test_without_a_donor_nothing_is_inherited(self, trainer: TrialTrainer) -> None:
        """Without donors inherit changes nothing and records 0; without a call nothing is recorded."""

        def body(run: TrialRun) -> object:
            assert not run.has_donor
            assert run.restore_dir is None
            assert run.inherit(network()).share == 0.0
            return {"score": 1.0}

        assert trainer.train(body).inherited == 0.0
        assert trainer.train(lambda run: {"score": 1.0}).inherited is None

    def test_recorded_donor_gave_the_most_parameters(self, trainer: TrialTrainer) -> None:
        """The recorded donor gave most parameters, and need not be the one named first."""

        def parent(*names: str) -> Trial:
            return trainer.train(lambda run: run.save({n: torch.ones(2, 2) for n in names}) or {"score": 1.0})

        def child(run: TrialRun) -> object:
            model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abc"})
            return {"score": run.inherit(model).share}

        first, second, stranger = parent("a.weight"), parent("b.weight", "c.weight"), parent("d.weight")
        mixed = trainer.train(child, donors=[stranger, first, second], resolved_donor=stranger.number)
        equal = trainer.train(child, donors=[stranger, first, parent("b.weight")])

        assert (mixed.resolved_donor, mixed.donor, mixed.inherited) == (stranger.number, second.number, 1.0)
        assert mixed.inheritance["given"] == {"1": pytest.approx(2 / 3), "0": pytest.approx(1 / 3)}
        assert [*mixed.inheritance["given"]] == ["1", "0"]
        assert equal.donor == first.number
        assert trainer.records.result(mixed) == mixed

    def test_donor_without_shared_parameters_is_not_recorded(self, trainer: TrialTrainer) -> None:
        """If only buffers fit, or inherit was not called, no donor is recorded."""
        state = {"x.weight": torch.ones(2, 2), "1.running_mean": torch.zeros(4)}
        parent = trainer.train(lambda run: run.save(state) or {"score": 1.0})

        buffers = trainer.train(
            lambda run: {"score": run.inherit(network()).share}, donors=[parent], resolved_donor=parent.number
        )
        uncalled = trainer.train(lambda run: {"score": 1.0}, donors=[parent], resolved_donor=parent.number)

        assert (buffers.resolved_donor, buffers.donor, buffers.inherited) == (parent.number, None, 0.0)
        assert buffers.inheritance["n_copied"] == 1
        assert (uncalled.resolved_donor, uncalled.donor, uncalled.inherited) == (parent.number, None, None)

    def test_two_networks_may_inherit(self, trainer: TrialTrainer) -> None:
        """A problem with two networks can call inherit for both."""

        def parent(run: TrialRun) -> object:
            run.save({f"{part}.weight": torch.ones(2, 2) for part in ("encoder", "decoder")})
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            for part in ("encoder", "decoder"):
                assert run.inherit(nn.ModuleDict({part: nn.Linear(2, 2, bias=False)})).share == 1.0
            return {"score": 1.0}

        assert trainer.train(child, donors=[trainer.train(parent)]).error is None

    def test_rules_are_followed(self, trainer: TrialTrainer) -> None:
        """run.inherit follows the rules: it skips renamed layers by name, and shrink halves values."""

        def parent(run: TrialRun) -> object:
            run.save({f"{place}.weight": torch.full((2, 2), float(place)) for place in range(2)})
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            model = nn.Sequential(nn.Linear(2, 3, bias=False), *[nn.Linear(2, 2, bias=False) for _ in range(2)])
            report = run.inherit(model, rules=Rules(first="structure", shrink=0.5))
            assert [tensor.how for tensor in report.tensors.values()] == ["new", "copied", "copied"]
            assert report.tensors["2.weight"].why == "by structure, from 1.weight"
            return {"score": float(model[2].weight.detach().sum())}

        trial = trainer.train(child, donors=[trainer.train(parent)])

        assert (trial.error, trial.metrics) == (None, {"score": 2.0})

    def test_replaying_on_another_than_the_parent_is_noted(self, trainer: TrialTrainer) -> None:
        """If another donor has the parent's tensors, the record names the donor of the replayed operations."""
        ancestral = STARTS[0]
        parental = Remove(3).apply(ancestral)  # an activation: the tensors are called and shaped as before
        operations = (Widen(1, 6, 0.5, 1),)
        module = GraphModule(operations[0].apply(parental))
        ancestor, parent = (
            trainer.train(lambda run, graph=graph: run.save(GraphModule(graph)) or {"score": 1.0})
            for graph in (ancestral, parental)
        )

        def child(run: TrialRun) -> object:
            return {"score": run.inherit(module).share}

        proposal = Proposal(
            point={"x": 2}, parents=(parent.number,), derivation=Derivation(parental, operations).to_json()
        )
        found = [trainer.train(child, donors=[donor], proposal=proposal) for donor in (parent, ancestor)]

        assert [trial.metrics for trial in found] == [{"score": 1.0}] * 2, found[0].error
        assert "notes" not in found[0].inheritance
        assert found[1].inheritance["notes"] == [
            "replayed on trial 0, not on the parent (1): same tensors, possibly another network"
        ]

    def test_restored_network_is_the_trials_own(self, trainer: TrialTrainer) -> None:
        """restore gives a test the trained network, equal to the bit; without weights it raises an error."""

        def body(run: TrialRun) -> object:
            model = network()
            nn.init.constant_(model[0].weight, 1 / 3)  # type: ignore[arg-type]
            run.save(model)
            return {"score": 1.0}

        trial = trainer.train(body)

        restored = TrialRun(trial, trainer.files).restore(network())

        assert torch.equal(restored.state_dict()["0.weight"], torch.full((4, 3), 1 / 3))
        with pytest.raises(LookupError, match="trial 1 published no weights"):
            TrialRun(trainer.train(lambda run: {"score": 1.0}), trainer.files).restore(network())

    @pytest.mark.parametrize("saves_state", [False, True])
    def test_heads_are_saved_with_the_weights(self, trainer: TrialTrainer, saves_state: bool) -> None:
        """A wider child inherits head by head from a saved module, or from the state of one that inherited."""

        def parent(run: TrialRun) -> object:
            model = nn.MultiheadAttention(8, 2)
            nn.init.constant_(model.in_proj_weight, 2.0)
            run.inherit(model)
            run.save(model.state_dict() if saves_state else model)
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            model = nn.MultiheadAttention(12, 3)
            assert run.inherit(model).summary()["n_new"] == 0
            return {"score": float((model.in_proj_weight.view(3, 3, 4, 12)[:, :2, :, :8] == 2).float().mean())}

        assert trainer.train(child, donors=[trainer.train(parent)]).metrics == {"score": 1.0}

    def test_networks_whose_state_is_copied_are_inherited_and_restored(self, trainer: TrialTrainer) -> None:
        """Hooks that copy the state_dict prevent neither inheriting nor restoring."""

        def copying() -> nn.Sequential:
            model = network()

            def copy(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
                state.update({name: tensor.clone() for name, tensor in state.items()})

            model.register_state_dict_post_hook(copy)
            return model

        def parent(run: TrialRun) -> object:
            model = copying()
            nn.init.constant_(model[0].weight, 1 / 3)  # type: ignore[arg-type]
            run.save(model)
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            model = copying()
            assert run.inherit(model).share == 1.0
            return {"score": float(model[0].weight.detach().sum())}  # type: ignore[operator, union-attr]

        donor = trainer.train(parent)

        assert trainer.train(child, donors=[donor]).metrics == {"score": pytest.approx(4.0)}
        restored = TrialRun(donor, trainer.files).restore(copying())
        assert torch.equal(restored.get_parameter("0.weight"), torch.full((4, 3), 1 / 3))

    @pytest.mark.parametrize("kind", LAZY)
    def test_lazy_network_is_restored_and_told(self, trainer: TrialTrainer, kind: str) -> None:
        """Lazy layers are restored with their sizes; if they are still without, they inherit nothing with a warning."""
        build, inputs = LAZY[kind]

        def parent(run: TrialRun) -> object:
            model = build()
            model(inputs)
            run.save(model)
            run.inherit(build())
            return {"score": model.eval()(inputs).sum().item()}

        def early(run: TrialRun) -> object:
            run.save(build())
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            model = build()
            model(inputs)
            return {"score": run.inherit(model).share}

        donor = trainer.train(parent)
        restored = TrialRun(donor, trainer.files).restore(build())

        assert restored.eval()(inputs).sum().item() == donor.metrics["score"]
        assert donor.inheritance["warnings"] == [
            "run.inherit: lazy layers 0 have no sizes and inherit nothing. "
            "Run one batch through the network before run.inherit."
        ]
        assert trainer.train(child, donors=[donor]).metrics == {"score": 1.0}
        assert "run.save: lazy layers 0 must have sizes" in str(trainer.train(early).error)

    def test_the_same_warning_is_kept_once(self, trainer: TrialTrainer) -> None:
        """Also if it is cut."""

        def body(run: TrialRun) -> object:
            run.inherit(network())
            for text in ("short", "w" * 1_000, "short", "w" * 1_000):
                run.warn(text)
            return {"score": 1.0}

        assert trainer.train(body).inheritance["warnings"] == ["short", "w" * 400]

    @pytest.mark.parametrize("kind", LAZY)
    def test_example_inputs_give_lazy_layers_their_sizes(self, trainer: TrialTrainer, kind: str) -> None:
        """With the problem's example inputs a lazy network inherits all, and keeps its mode and statistics."""
        build, inputs = LAZY[kind]

        class LazyProblem(BodyProblem):
            def example_inputs(self) -> tuple[torch.Tensor, ...]:
                return (inputs[:1],)

        def parent(run: TrialRun) -> object:
            model = build()
            model(inputs)
            run.save(model)
            return {"score": model.eval()(inputs).sum().item()}

        def child(run: TrialRun) -> object:
            model = build()
            share = run.inherit(model).share
            assert all(module.training for module in model.modules())
            return {"score": model.eval()(inputs).sum().item() if share == 1.0 else math.nan}

        donor = trainer.train(parent)
        trainer.kind = LazyProblem
        found = trainer.train(child, donors=[donor])

        assert found.metrics == donor.metrics
        assert "warnings" not in found.inheritance

    @pytest.mark.parametrize(
        "wrap", [partial(torch.compile, backend="eager"), nn.DataParallel], ids=["compiled", "parallel"]
    )
    def test_wrapped_network_has_its_own_names(self, trainer: TrialTrainer, wrap: Callable[..., nn.Module]) -> None:
        """A compiled or parallel network is saved, inherited and restored like the network in it."""

        def parent(run: TrialRun) -> object:
            model = wrap(network())
            nn.init.constant_(next(model.parameters()), 1 / 3)
            run.save(model)
            return {"score": run.inherit(model).share}

        donor = trainer.train(parent)
        child = trainer.train(parent, donors=[donor])
        restored = TrialRun(donor, trainer.files).restore(wrap(network()))

        assert (donor.metrics, child.metrics) == ({"score": 0.0}, {"score": 1.0})
        assert StoredWeights(trainer.files, weights_of(donor).checkpoint).shapes.keys() == network().state_dict().keys()
        assert torch.equal(next(restored.parameters()), torch.full((4, 3), 1 / 3))

    @pytest.mark.parametrize("damage", ["delete", "replace"])
    def test_damaged_donor_fails_the_child(self, trainer: TrialTrainer, damage: str) -> None:
        """Missing or changed donor files make the child FAILED(parent) before the problem's code runs."""
        parent = trainer.train(lambda run: run.save(network()) or {"score": 1.0})
        assert parent.checkpoint is not None
        path = parent.checkpoint.packs[0].path
        if damage == "delete":
            trainer.files.delete(path)
        else:
            trainer.files.replace(path, b"torn")

        child = trainer.train(lambda run: pytest.fail("it must not run"), donors=[parent])

        assert (child.state, child.reason) == (State.FAILED, Reason.PARENT)
        assert parent.checkpoint.manifest.path in (child.error or "")
        assert child.inheritance["lost"] == [0]
        assert path in trainer.records.log(child.number)
        with pytest.raises((MissingError, CorruptError)):
            StoredWeights(trainer.files, parent.checkpoint).read_all()

    @pytest.mark.parametrize("code", ["lets it pass", "goes on", "raises another"])
    def test_flipped_bit_fails_the_child_that_takes_it(self, trainer: TrialTrainer, code: str) -> None:
        """One flipped bit in an inherited tensor is FAILED(parent), even if the problem's code catches the error."""
        parent = trainer.train(lambda run: run.save(network()) or {"score": 1.0})
        assert parent.checkpoint is not None
        pack = parent.checkpoint.packs[0]
        data = bytearray(trainer.files.read(pack))
        data[-1] ^= 1
        trainer.files.replace(pack.path, bytes(data))

        def body(run: TrialRun) -> object:
            try:
                run.inherit(network())
            except CorruptError:
                if code == "lets it pass":
                    raise
                if code == "raises another":
                    raise ValueError("the code's own") from None
            return {"score": 1.0}

        child = trainer.train(body, donors=[parent])

        assert (child.state, child.reason) == (State.FAILED, Reason.PARENT)
        assert child.inheritance["lost"] == [0]
        assert child.checkpoint is None
        assert "corrupt" in (child.error or "")
        assert pack.path in trainer.records.log(child.number)

    @pytest.mark.parametrize("held", ["the same", "changed", "another type", "another shape", "nothing"])
    def test_memory_is_a_cache_of_published_weights(self, trainer: TrialTrainer, held: str) -> None:
        """A tensor in memory is used only if it equals the published one to the bit; the report is the same."""
        published = torch.tensor([[-0.0, 1e-45], [3.4e38, 1 / 3]])
        parent = trainer.train(lambda run: run.save({"weight": published}) or {"score": 1.0})
        caches = {
            "the same": {"weight": published.clone()},
            "changed": {"weight": published + 0.0},  # -0.0 becomes 0.0, which is equal but not the same
            "another type": {"weight": published.view(torch.int32)},
            "another shape": {"weight": published.reshape(4)},
            "nothing": {},
        }
        parts: list[torch.Tensor] = []

        def body(run: TrialRun) -> object:
            model = nn.Linear(2, 2, bias=False)
            assert run.inherit(model, caches[held]).share == 1.0
            parts.append(model.weight.detach())
            return {"score": 1.0}

        child = trainer.train(body, donors=[parent])

        assert (child.state, child.donor, child.inherited) == (State.COMPLETE, 0, 1.0), child.error
        assert bits(parts[0]) == bits(published)

    @pytest.mark.parametrize("cached", [False, True])
    def test_cached_weights_are_not_read_again(self, trainer: TrialTrainer, cached: bool) -> None:
        """With the weights in memory the donor's pack is not read, so a flipped bit there has no effect."""
        model = network()
        parent = trainer.train(lambda run: run.save(model) or {"score": 1.0})
        assert parent.checkpoint is not None
        pack = parent.checkpoint.packs[0]
        data = bytearray(trainer.files.read(pack))
        data[-1] ^= 1
        trainer.files.replace(pack.path, bytes(data))

        def body(run: TrialRun) -> object:
            return {"score": run.inherit(network(), model.state_dict() if cached else None).share}

        child = trainer.train(body, donors=[parent])

        assert child.state == (State.COMPLETE if cached else State.FAILED)

    def test_child_writes_only_changed_tensors(self, trainer: TrialTrainer) -> None:
        """A child stores only tensors that its donor lacks, and reads without the donor's manifest."""

        def first(run: TrialRun) -> object:
            run.save({"trunk": torch.ones(1000), "head": torch.zeros(1000)})
            return {"score": 1.0}

        def second(run: TrialRun) -> object:
            for head in (1.0, 2.0):
                run.save({"trunk": torch.ones(1000), "head": torch.full((1000,), head)})
            return {"score": 1.0}

        parent = trainer.train(first)
        child = trainer.train(second, donors=[parent])

        assert parent.checkpoint is not None
        assert child.checkpoint is not None
        own, shared = child.checkpoint.packs
        assert shared == parent.checkpoint.packs[0]
        assert 4000 < own.bytes < 5000
        assert len(trainer.files.names("packs")) == 2
        trainer.files.delete(parent.checkpoint.manifest.path)
        found = StoredWeights(trainer.files, child.checkpoint).read_all()
        assert found["trunk"].tolist() == [1.0] * 1000
        assert found["head"].tolist() == [2.0] * 1000

    def test_weights_of_another_search_are_copied(self, trainer: TrialTrainer) -> None:
        """A child of another search's trial names no pack of that search."""
        other = TrialTrainer()
        parent = other.train(lambda run: run.save({"weight": torch.ones(2, 2)}) or {"score": 1.0})
        assert parent.checkpoint is not None
        donor = DonorWeights(f"{other.files.url.rpartition('/')[2]}:0", parent.checkpoint)

        def body(run: TrialRun) -> object:
            run.save({"weight": torch.ones(2, 2)})
            return {"score": 1.0}

        trial = trainer.pool(body).run(Assignment(trainer.propose(), (donor,)), trainer.events.append)

        assert trial is not None
        assert trial.checkpoint is not None
        assert [pack.path.startswith("packs/000000-") for pack in trial.checkpoint.packs] == [True]
        assert trainer.files.names("packs")

    def test_donor_of_another_search(self, trainer: TrialTrainer) -> None:
        """A donor in another search is read from that search's folder."""
        other = TrialTrainer()
        parent = other.train(lambda run: run.save({"weight": torch.ones(2, 2)}) or {"score": 1.0})
        assert parent.checkpoint is not None
        donor = DonorWeights(f"{other.files.url.rpartition('/')[2]}:0", parent.checkpoint)

        def child(run: TrialRun) -> object:
            assert run.inherit(nn.Linear(2, 2, bias=False)).share == 1.0
            return {"score": 1.0}

        result = trainer.pool(child).run(Assignment(trainer.propose(), (donor,)), trainer.events.append)

        assert result is not None
        assert result.error is None


class TestOtherFrameworks:
    def test_files_go_from_parent_to_child(self, trainer: TrialTrainer) -> None:
        """The parent's files in save_dir, with subfolders, are in the child's restore_dir, byte for byte."""
        array = np.arange(5, dtype=np.float32) / 3

        def parent(run: TrialRun) -> object:
            (run.save_dir / "deep").mkdir()
            (run.save_dir / "deep" / "notes.txt").write_text("grüße\r\n")
            np.savez(run.save_dir / "weights.npz", array=array)
            return {"score": 1.0}

        def child(run: TrialRun) -> object:
            assert run.restore_dir is not None
            assert (run.restore_dir / "deep" / "notes.txt").read_bytes() == "grüße\r\n".encode()
            assert np.load(run.restore_dir / "weights.npz")["array"].tobytes() == array.tobytes()
            return {"score": 1.0}

        trial = trainer.train(child, donors=[trainer.train(parent)])

        assert trial.error is None

    def test_child_publishes_its_own_files_only(self, trainer: TrialTrainer) -> None:
        """Restored files are not published again, and save_dir starts empty."""
        parent = trainer.train(lambda run: (run.save_dir / "a.txt").write_text("a") and {"score": 1.0})

        def body(run: TrialRun) -> object:
            assert list(run.save_dir.iterdir()) == []
            (run.save_dir / "b.txt").write_text("b")
            return {"score": 1.0}

        child = trainer.train(body, donors=[parent])

        assert child.checkpoint is not None
        saved = load_manifest(trainer.files, child.checkpoint).files
        assert [reference.path.rpartition("/")[2] for reference in saved] == ["b.txt"]

    def test_empty_save_dir_is_no_checkpoint(self, trainer: TrialTrainer) -> None:
        """A trial that leaves save_dir empty has no weights."""
        assert trainer.train(lambda run: run.save_dir.exists() and {"score": 1.0}).checkpoint is None

    def test_local_folders_are_removed(self, trainer: TrialTrainer) -> None:
        """A trial's local folders are removed after it, also after a failure."""
        seen = []

        def body(run: TrialRun) -> object:
            seen.append(run.save_dir)
            (run.save_dir / "a").write_text("a")
            raise ValueError

        trainer.train(body)

        assert [folder.exists() for folder in seen] == [False]

    def test_test_finds_the_trials_own_files(self, trainer: TrialTrainer) -> None:
        """When a finalist is tested, restore_dir holds its own published files."""
        trial = trainer.train(lambda run: (run.save_dir / "a.txt").write_text("mine") and {"score": 1.0})

        def test(run: TrialRun) -> dict[str, float]:
            assert run.restore_dir is not None
            assert (run.restore_dir / "a.txt").read_text() == "mine"
            return {"score": 0.5}

        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=trainer.files.url, options={})

        assert TrialRuntime(spec, problem=BodyProblem(test=test), files=trainer.files).test(trial) == {
            "metrics": {"score": 0.5}
        }


class TestLog:
    def test_output_lands_in_the_log(self, trainer: TrialTrainer, capsys: pytest.CaptureFixture[str]) -> None:
        """The problem's prints and logs go to the trial's log, and not to the terminal."""

        def body(run: TrialRun) -> object:
            print("to standard output")
            print("to standard error", file=sys.stderr)
            logging.getLogger("mine").warning("by logging")
            return {"score": 1.0}

        trial = trainer.train(body)
        print("not the trial's")

        log = trainer.records.log(trial.number)
        assert "to standard output\nto standard error\n" in log
        assert "WARNING mine: by logging" in log
        assert "not the trial's" not in log
        assert capsys.readouterr().out == "not the trial's\n"

    def test_failed_trial_has_a_log(self, trainer: TrialTrainer) -> None:
        """Output before a failure is kept."""

        def body(run: TrialRun) -> object:
            print("so far, so good")
            raise ValueError

        log = trainer.records.log(trainer.train(body).number)

        assert log.startswith("so far, so good\n")
        assert "ValueError" in log

    def test_each_attempt_keeps_its_log(self, trainer: TrialTrainer) -> None:
        """The last attempt's log has the trial's name, and earlier logs are kept, also if one is empty."""
        trial = trainer.propose()

        def attempt(number: int, text: str, *, is_last: bool = False) -> None:
            def body(run: TrialRun) -> object:
                print(text, end="")
                if not is_last:
                    pool.stop(trial, "interrupt")
                    run.report(1, score=0.5)
                return {"score": 1.0}

            pool = trainer.pool(body)
            pool.run(Assignment(replace(trial, attempt=number)), trainer.events.append)

        attempt(1, "one\n")
        attempt(2, "")
        attempt(3, "three\n")
        attempt(4, "four\n", is_last=True)

        last = trainer.records.load()[0][0]
        assert trainer.records.log(0) == "four\n"
        assert trainer.records.other_logs(last) == {"attempt 1": "one\n", "attempt 3": "three\n"}
        assert trainer.files.names("logs") == ["000000-1.log", "000000-3.log", "000000.log"]

    def test_output_of_a_test_is_kept(self, trainer: TrialTrainer, capsys: pytest.CaptureFixture[str]) -> None:
        """The output of test has a log of its own, with a failure's traceback; the trial's log stays."""

        def test(run: TrialRun) -> dict[str, float]:
            print("testing", run.number)
            raise ZeroDivisionError("no test data")

        trial = trainer.train(lambda run: print("training") or {"score": 1.0})
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=trainer.files.url, options={})
        pool = InProcessPool(spec, trainer.files, BodyProblem(test=test))
        with pytest.raises(ActionError, match="ZeroDivisionError: no test data"):
            pool.call("test", trial)

        logs = trainer.records.other_logs(trial)
        assert trainer.records.log(trial.number) == "training\n"
        assert list(logs) == ["test"]
        assert logs["test"].startswith("testing 0\nTraceback")
        assert logs["test"].endswith("ZeroDivisionError: no test data\n")
        assert capsys.readouterr().out == ""

    def test_a_running_test_keeps_the_problem_open(self, trainer: TrialTrainer) -> None:
        """A pool that closes during a call leaves the problem to it; one that is idle closes the problem."""
        begun, closed = threading.Event(), threading.Event()

        class Closing(BodyProblem):
            def close(self) -> None:
                closed.set()

        def test(run: TrialRun) -> dict[str, float]:
            begun.set()
            return {"score": float(closed.wait(0.1))}

        trial = trainer.train(lambda run: {"score": 1.0})
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=trainer.files.url, options={})
        pool = InProcessPool(spec, trainer.files, Closing(test=test))
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(pool.call, "test", trial)
            begun.wait(60)
            pool.close()

        assert answer.result()["metrics"] == {"score": 0.0}
        pool.close()
        assert closed.is_set()

    def test_silent_trial_has_no_log(self, trainer: TrialTrainer) -> None:
        """A trial without output has no log file."""
        assert trainer.records.log(trainer.train(lambda run: {"score": 1.0}).number) == ""


class TestSameStart:
    def test_leftovers_do_not_reach_the_next_trial(self, trainer: TrialTrainer) -> None:
        """Each trial starts from torch's defaults, whatever the one before has set."""

        def settings() -> list[object]:
            return [
                torch.get_default_dtype(),
                torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_float32_matmul_precision(),
                torch.is_grad_enabled(),
                torch.backends.mkldnn.enabled,
                torch.backends.cudnn.enabled,
                torch.backends.cudnn.benchmark,
                str(torch.get_default_device()),
            ]

        found: list[list[object]] = []

        def untidy(run: TrialRun) -> object:
            found.append(settings())
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(2)
            torch.use_deterministic_algorithms(True)
            torch.set_float32_matmul_precision("medium")
            torch.set_grad_enabled(False)
            torch.backends.mkldnn.enabled = False
            torch.backends.cudnn.enabled = False
            torch.backends.cudnn.benchmark = True
            torch.set_default_device("meta")
            return {"score": 1.0}

        defaults, n_threads = SavedSettings(torch_settings()), torch.get_num_threads()
        pool = trainer.pool(untidy)
        for _ in range(3):
            pool.run(Assignment(trainer.propose()), trainer.events.append)
        torch.set_num_threads(n_threads)
        defaults.restore()

        assert found == [[torch.float32, 1, False, "highest", True, True, True, False, "cpu"]] * 3

    @pytest.mark.parametrize(
        ("error", "is_of_device"),
        [
            (MemoryError("of the machine"), False),
            (OSError(errno.ENOMEM, "Cannot allocate memory"), False),
            (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), False),
            (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
            (RuntimeError("MPS backend out of memory"), False),
        ],
    )
    def test_out_of_memory_is_a_reason(self, trainer: TrialTrainer, error: Exception, is_of_device: bool) -> None:
        """An error of memory is told from others, also as the cause of another; after CUDA's, the worker is unfit."""

        def body(run: TrialRun) -> object:
            raise ValueError("as it is wrapped") from error

        pool = trainer.pool(body)
        trial = pool.run(Assignment(trainer.propose()), trainer.events.append)

        assert trial is not None
        assert (trial.state, trial.reason) == (State.FAILED, Reason.OUT_OF_MEMORY)
        assert (pool._get_runtime().device_error is not None) == is_of_device

    def test_random_state_follows_from_the_seed(self, trainer: TrialTrainer) -> None:
        """python, numpy and torch draw the same in trials of the same seed, whatever ran before."""
        drawn: list[tuple[float, float, float]] = []

        def body(run: TrialRun) -> object:
            drawn.append((random.random(), float(np.random.random()), float(torch.rand(()))))
            return {"score": 1.0}

        for seed in (1, 2, 1):
            trainer.train(body, seed=seed)

        assert drawn[0] == drawn[2]
        assert all(a != b for a, b in zip(drawn[0], drawn[1], strict=True))

    def test_any_seed_will_do(self) -> None:
        """Seeds of 31 bits and more seed each generator."""
        for seed in (0, 2**31 - 1, 2**40):
            seed_everything(seed)

    def test_test_is_seeded_too(self, trainer: TrialTrainer) -> None:
        """A finalist's test draws the same numbers each time."""
        trial = trainer.train(lambda run: {"score": 1.0})
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=trainer.files.url, options={})
        runtime = TrialRuntime(
            spec, problem=BodyProblem(test=lambda run: {"score": random.random()}), files=trainer.files
        )

        assert runtime.test(trial) == runtime.test(trial)

    def test_test_that_is_not_finite_raises(self, trainer: TrialTrainer) -> None:
        """A NaN on test data raises an error of the problem."""
        trial = trainer.train(lambda run: {"score": 1.0})
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=trainer.files.url, options={})

        with pytest.raises(FloatingPointError, match="test returned score=nan"):
            TrialRuntime(spec, problem=BodyProblem(test=lambda run: {"score": math.nan}), files=trainer.files).test(
                trial
            )
