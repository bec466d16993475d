"""Long trials: an interrupted attempt resumes, and its result equals that of an uninterrupted one."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Proposal, Reason, State, Trial
from nas.executors.events import Event, Reported, Resumed
from nas.executors.in_process_pool import InProcessPool
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.trial_run import TrialRun
from tests.support.problems import BodyProblem, network

pytestmark = pytest.mark.usefixtures("one_thread")

Body = Callable[[TrialRun], object]
N_EPOCHS = 6
ROOT = Path(__file__).parents[3]


class AttemptRunner:
    """A storage in memory, in which one trial is trained in several attempts, as by a worker."""

    def __init__(self, *, every_s: float = 0.0, device: str = "cpu") -> None:
        self.files: BlobStore = open_root(f"memory://resume/{uuid4().hex}", retry_s=0)
        self.records = Records(self.files)
        self.events: list[Event] = []
        self.every_s = every_s
        self.device = device
        self.pool: InProcessPool | None = None
        self.trial = Trial(
            number=1, index=1, proposal=Proposal(point={"x": 1}), seed=11, state=State.RUNNING, slot=0,
            policies=frozenset({Policy.SHARE_PARAMS}),
        )  # fmt: skip
        self.records.propose(self.trial)

    def attempt(self, body: Body, *, donors: Sequence[Trial] = (), answers: bool = False, **more: Any) -> Trial | None:
        """Returns the result of the next attempt, or None if it was interrupted.

        Args:
            answers: Whether reports wait for a verdict, which is to go on.
        """
        self.trial = replace(self.trial, attempt=self.trial.attempt + 1, **more)
        spec = RuntimeSpec(
            problem=Spec.of(BodyProblem),
            url=self.files.url,
            options={},
            device=self.device,
            has_stopper=answers,
            resume_every_s=self.every_s,
        )
        self.pool = InProcessPool(spec, self.files, BodyProblem(body))

        def post(event: Event) -> None:
            self.events.append(event)
            if isinstance(event, Reported) and event.answer is not None:
                event.answer(False)

        weights = tuple(DonorWeights(d.number, d.checkpoint) for d in donors if d.checkpoint is not None)
        return self.pool.run(Assignment(self.trial, weights), post)

    def interrupt(self) -> None:
        """Makes the next report end the attempt without a result, as Ctrl-C does."""
        assert self.pool is not None
        self.pool.stop(self.trial, "interrupt")

    def donor(self, **more: Any) -> Trial:
        """Returns a finished trial with a network full of ones."""
        parent = Trial(number=0, index=0, proposal=Proposal(point={"x": 0}), attempt=1, slot=0)
        self.records.propose(parent)
        spec = RuntimeSpec(problem=Spec.of(BodyProblem), url=self.files.url, options={})

        def body(run: TrialRun) -> object:
            run.save({name: torch.ones_like(tensor) for name, tensor in network().state_dict().items()})
            return {"score": 0.5}

        found = InProcessPool(spec, self.files, BodyProblem(body)).run(Assignment(parent), self.events.append)
        assert found is not None
        return found

    @property
    def kept(self) -> list[str]:
        """Returns the files in the trial's folder of resume points."""
        return self.files.names("resume/000001")

    @property
    def log(self) -> str:
        return self.records.log(1)


@pytest.fixture
def runner() -> AttemptRunner:
    return AttemptRunner()


class Net(nn.Module):
    """A small network with much state: a parameter order of its own, running averages, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        out: torch.Tensor = self.head(nn.functional.dropout(x, 0.3, self.training))
        return out


Parts = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """The parts that a training keeps beside its network, and its step for each loss."""

    make: Callable[[nn.Module], Parts]
    step: Callable[[Parts, torch.Tensor], None]
    """A batch."""
    end: Callable[[Parts, float], None] = lambda parts, total: None
    """An epoch."""


def plain(parts: Parts, loss: torch.Tensor) -> None:
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()


def scheduled(parts: Parts, loss: torch.Tensor) -> None:
    plain(parts, loss)
    parts["schedule"].step()


def scaled(parts: Parts, loss: torch.Tensor) -> None:
    parts["optimizer"].zero_grad()
    parts["scaler"].scale(loss).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()


def averaged(parts: Parts, loss: torch.Tensor) -> None:
    plain(parts, loss)
    parts["average"].update_parameters(parts["network"])


def noisy(parts: Parts, loss: torch.Tensor) -> None:
    """Draws from each kind of generator, global and the problem's own."""
    noise = random.random() + np.random.standard_normal() + float(torch.randn(()))
    noise += parts["python"].gauss(0, 1) + parts["numpy"].standard_normal()
    plain(parts, loss * (1 + 0.1 * noise))
    parts["notes"]["best"] = min(parts["notes"].get("best", np.inf), loss.item())


def sgd(network: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=1e-3)


def with_schedule(optimizer: torch.optim.Optimizer, make: Callable[..., Any], *arguments: Any, **more: Any) -> Parts:
    return {"optimizer": optimizer, "schedule": make(optimizer, *arguments, **more)}


schedules = torch.optim.lr_scheduler
RECIPES = {
    "SGD with momentum": Recipe(lambda net: {"optimizer": sgd(net)}, plain),
    "SGD with a schedule": Recipe(lambda net: with_schedule(sgd(net), schedules.MultiStepLR, [4, 9, 9]), scheduled),
    "Adam": Recipe(lambda net: {"optimizer": torch.optim.Adam(net.parameters(), 0.01, amsgrad=True)}, plain),
    "Adam in one cycle": Recipe(
        lambda net: with_schedule(
            torch.optim.AdamW(net.parameters()), schedules.OneCycleLR, 0.02, total_steps=4 * N_EPOCHS
        ),
        scheduled,
    ),
    "a schedule that watches": Recipe(
        lambda net: with_schedule(sgd(net), schedules.ReduceLROnPlateau, patience=0, threshold=0.05),
        plain,
        lambda parts, total: parts["schedule"].step(total),
    ),
    "a gradient scaler": Recipe(
        lambda net: {"optimizer": sgd(net), "scaler": torch.amp.GradScaler("cpu", growth_interval=3)}, scaled
    ),
    "an average of weights": Recipe(
        lambda net: {"optimizer": sgd(net), "average": torch.optim.swa_utils.AveragedModel(net)}, averaged
    ),
    "generators": Recipe(
        lambda net: {
            "optimizer": sgd(net), "python": random.Random(3), "numpy": np.random.default_rng(3), "notes": {}
        },
        noisy,
    ),
}  # fmt: skip


class Training:
    """Trains by a recipe on shuffled images, and ends attempts after some of their epochs.

    Args:
        ends: After which epoch the first, the second, ... attempt is interrupted.
        forgets: A part that is not saved.
    """

    def __init__(self, runner: AttemptRunner, recipe: Recipe, *, ends: Sequence[int] = (), forgets: str = "") -> None:
        self.runner = runner
        self.recipe = recipe
        self.ends = ends
        self.forgets = forgets
        self.epochs: list[list[int]] = []
        """Those of each attempt."""
        self.final: Parts = {}

    def run(self) -> Trial:
        """Returns the result after as many attempts as needed."""
        while (found := self.runner.attempt(self.train)) is None:
            pass
        assert found.state == State.COMPLETE, found.error
        return found

    def train(self, run: TrialRun) -> object:
        """Trains with deterministic kernels, on a GPU too."""
        with torch.backends.cudnn.flags(enabled=True, deterministic=True):
            return self.train_exactly(run)

    def train_exactly(self, run: TrialRun) -> object:
        run_number = len(self.epochs)
        self.epochs.append([])
        images = torch.rand(32, 2, 5, 5, generator=torch.Generator().manual_seed(5))
        labels = torch.randint(3, (32,), generator=torch.Generator().manual_seed(6))
        shuffling = torch.Generator().manual_seed(run.seed)
        loader = DataLoader(TensorDataset(images, labels), 8, shuffle=True, generator=shuffling)
        net = Net().to(run.device)
        parts: Parts = {"network": net, **self.recipe.make(net), "shuffling": shuffling}
        saved = [part for name, part in parts.items() if name != self.forgets]
        if resumed := run.resumed_from():
            resumed.load(*saved)
        total = 0.0
        for epoch in range(1 + (resumed.step if resumed else 0), N_EPOCHS + 1):
            self.epochs[-1].append(epoch)
            total = 0.0
            for pixels, classes in loader:
                loss = nn.functional.cross_entropy(net.train()(pixels.to(run.device)), classes.to(run.device))
                self.recipe.step(parts, loss)
                total += loss.item()
            self.recipe.end(parts, total)
            if self.ends[run_number : run_number + 1] == [epoch]:
                self.runner.interrupt()
            run.report(epoch, score=total)
            run.save_resume_point(epoch, *saved)
        self.final = parts
        run.save(net)
        return {"score": total}


def outcome(runner: AttemptRunner, trial: Trial) -> dict[str, Any]:
    """Returns the parts of a result that resuming must not change: the record without times, and the tensors."""
    record = trial.result_record()
    for name in ("attempt", "started", "finished", "cost", "checkpoint"):
        del record[name]
    if trial.checkpoint is not None:
        manifest = load_manifest(runner.files, trial.checkpoint)
        record["tensors"] = {n: (t.digest, t.dtype, t.shape) for n, t in manifest.tensors.items()}
        record["packs"] = [(pack.bytes, pack.digest) for pack in trial.checkpoint.packs]
    return record


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RECIPES)
def test_resumed_result_equals_an_uninterrupted_one(name: str, device: str) -> None:
    """A trial interrupted twice has the same curve, metrics and weights, to the bit, as an uninterrupted one.

    Each attempt trains the epoch that was not saved, and those after it, and no other.
    """
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    calm, torn = (AttemptRunner(device=device) for _ in range(2))
    undisturbed = Training(calm, RECIPES[name])
    disturbed = Training(torn, RECIPES[name], ends=[2, 5])

    first, second = undisturbed.run(), disturbed.run()

    assert undisturbed.epochs == [[1, 2, 3, 4, 5, 6]]
    assert disturbed.epochs == [[1, 2], [2, 3, 4, 5], [5, 6]]
    assert (first.attempt, second.attempt) == (1, 3)
    assert outcome(torn, second) == outcome(calm, first)
    assert disturbed.final.get("notes") == undisturbed.final.get("notes")
    for part, expected in undisturbed.final.items():
        if hasattr(expected, "state_dict") and part != "network":
            assert str(disturbed.final[part].state_dict()) == str(expected.state_dict())


BESIDE = ("scaler", "average")
"""Parts that change no weights, but themselves."""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a schedule that watches", "schedule"),
        ("a gradient scaler", "scaler"),
        ("an average of weights", "average"),
        ("SGD with momentum", "optimizer"),
        ("SGD with momentum", "network"),
        ("SGD with momentum", "shuffling"),
        ("Adam in one cycle", "schedule"),
        ("generators", "numpy"),
        ("generators", "python"),
    ],
)
def test_each_saved_part_matters(name: str, part: str) -> None:
    """If any part is left out of the save, the result differs."""
    calm, torn = AttemptRunner(), AttemptRunner()

    undisturbed, disturbed = Training(calm, RECIPES[name]), Training(torn, RECIPES[name], ends=[3], forgets=part)
    first, second = undisturbed.run(), disturbed.run()
    states = [str(t.final[part].state_dict()) if part in BESIDE else "" for t in (undisturbed, disturbed)]

    assert (outcome(torn, second)["tensors"], states[0]) != (outcome(calm, first)["tensors"], states[1])


class TestTiming:
    def test_a_call_in_every_epoch_is_cheap(self) -> None:
        """Before its time a call writes nothing, reads no part, and takes microseconds."""
        runner = AttemptRunner(every_s=1000)

        def body(run: TrialRun) -> object:
            began_s = time.process_time()
            assert not any(run.save_resume_point(step, object()) for step in range(1000))
            assert time.process_time() - began_s < 0.5
            assert runner.kept == []
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.error is None
        assert runner.files.names("resume") == []

    def test_a_finished_trial_saves_nothing(self, runner: AttemptRunner) -> None:
        """Code that test or export shares with train saves nothing there."""
        trial = runner.attempt(lambda run: {"score": 1.0})
        assert trial is not None

        assert not TrialRun(trial, runner.files).save_resume_point(1, force=True)
        assert runner.kept == []

    def test_time_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first save comes one interval after the start, the next one interval after the first."""
        runner, now_s = AttemptRunner(every_s=100), [0.0]

        def body(run: TrialRun) -> object:
            saved = [run.save_resume_point(0)]
            for _ in range(2):
                now_s[0] += 110
                saved += [run.save_resume_point(1), run.save_resume_point(2)]
            assert saved == [False, True, False, True, False]
            return {"score": 1.0}

        monkeypatch.setattr("nas.training.resume.time", SimpleNamespace(monotonic=lambda: now_s[0]))
        result = runner.attempt(body)

        assert result is not None
        assert result.error is None

    def test_the_problem_decides(self) -> None:
        """every_s of the call takes precedence over the session's, and force over both."""
        runner = AttemptRunner(every_s=1000)

        def body(run: TrialRun) -> object:
            assert run.save_resume_point(1, every_s=0)
            assert not run.save_resume_point(2)
            assert run.save_resume_point(3, force=True)
            assert not run.save_resume_point(4, every_s=1000)
            assert len(runner.kept) == 4
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.error is None

    @pytest.mark.parametrize(
        ("step", "every_s"), [(-1, 0.0), (1.5, 0.0), (True, 0.0), ("1", 0.0), (1, -1.0), (1, float("nan"))]
    )
    def test_invalid_steps_and_intervals_are_refused(self, runner: AttemptRunner, step: Any, every_s: float) -> None:
        """An invalid step or interval fails the trial; the error shows its value."""
        result = runner.attempt(lambda run: run.save_resume_point(step, every_s=every_s))

        assert result is not None
        is_step = step != 1 or step is True
        wrong = (
            f"step={step!r}: must be a whole number" if is_step else f"every_s={every_s!r}: must be at least 0 seconds"
        )
        assert f"run.save_resume_point: {wrong}" in (result.error or "")


def saving(run: TrialRun) -> None:
    """Reaches step 3 and saves it."""
    run.report(3, score=0.25)
    run.save_resume_point(3, {"reached": 3})


def ended(runner: AttemptRunner, body: Body, **more: Any) -> None:
    """Runs an attempt that does this and is then interrupted."""

    def and_then(run: TrialRun) -> object:
        body(run)
        runner.interrupt()
        run.report(9, score=0.0)
        pytest.fail("the report must raise")

    assert runner.attempt(and_then, **more) is None


class TestSweep:
    def fail(self, run: TrialRun) -> object:
        raise ValueError("as told")

    def stop(self, run: TrialRun) -> object:
        assert self.runner.pool is not None
        self.runner.pool.stop(self.runner.trial, "stop")
        run.report(4, score=0.5)
        return {}

    @pytest.mark.parametrize(
        ("end", "state"), [("complete", State.COMPLETE), ("fail", State.FAILED), ("stop", State.STOPPED)]
    )
    @pytest.mark.parametrize("attempt", [1, 2])
    def test_a_result_deletes_resume_points(self, runner: AttemptRunner, end: str, state: State, attempt: int) -> None:
        """Any result deletes the trial's resume points, whichever attempt saved them."""
        self.runner = runner
        if attempt == 2:
            ended(runner, saving)
            assert runner.kept

        def body(run: TrialRun) -> object:
            if attempt == 1:
                saving(run)
                assert runner.kept
            return {"score": 1.0} if end == "complete" else getattr(self, end)(run)

        result = runner.attempt(body)

        assert result is not None
        assert result.state == state
        assert runner.kept == []

    def test_a_result_of_another_attempt_deletes_resume_points(self, runner: AttemptRunner) -> None:
        """If another attempt had its result first, this attempt's resume points are deleted too."""

        def body(run: TrialRun) -> object:
            trial = runner.trial
            runner.attempt(lambda run: {"score": 2.0})
            runner.trial = trial
            saving(run)
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.metrics == {"score": 2.0}
        assert runner.kept == []

    def test_an_interruption_keeps_it(self, runner: AttemptRunner) -> None:
        """An attempt without a result keeps its resume points."""
        ended(runner, saving)

        assert len(runner.kept) == 2


class TestResumption:
    def test_a_first_attempt_has_none(self, runner: AttemptRunner) -> None:
        """A first attempt has no resume point."""
        result = runner.attempt(lambda run: {"score": 1.0} if run.resumed_from() is None else None)

        assert result is not None
        assert result.state == State.COMPLETE

    def test_nothing_saved_is_none(self, runner: AttemptRunner) -> None:
        """A second attempt without a resume point starts from the beginning."""
        ended(runner, lambda run: None)
        result = runner.attempt(lambda run: {"score": 1.0} if run.resumed_from() is None else None)

        assert result is not None
        assert result.state == State.COMPLETE

    def test_asking_twice_gives_the_same(self, runner: AttemptRunner) -> None:
        """resumed_from gives the same answer at each call."""
        ended(runner, saving)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            assert run.resumed_from() is resumed
            assert resumed.step == 3
            resumed.load(notes := {})
            assert notes == {"reached": 3}
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.error is None

    def test_reports_are_told_again_without_a_question(self, runner: AttemptRunner) -> None:
        """The next session and its stopper see the whole curve, but decide on new reports only."""
        ended(runner, saving, answers=True)
        runner.events.clear()

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load({})
            run.report(4, score=0.5)
            return {"score": 1.0}

        result = runner.attempt(body, answers=True)

        assert result is not None
        reports = [(e.step, e.metrics, e.answer is not None) for e in runner.events if isinstance(e, Reported)]
        assert reports == [(3, {"score": 0.25}, False), (4, {"score": 0.5}, True)]
        assert [(step, dict(metrics)) for step, metrics in result.curve] == [(3, {"score": 0.25}), (4, {"score": 0.5})]

    def test_suggested_points_stay(self, runner: AttemptRunner) -> None:
        """Points suggested before the resume point are in the result of the attempt that loads it."""

        def suggest_and_save(run: TrialRun) -> None:
            run.suggest_points([{"x": 7}])
            saving(run)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load({})
            return {"score": 1.0}

        ended(runner, suggest_and_save)
        result = runner.attempt(body)

        assert result is not None
        assert result.suggested == ({"x": 7},)

    def test_time_adds_up(self, runner: AttemptRunner) -> None:
        """A result's cost includes the time of all attempts up to the save that it resumed from, which is told."""

        def sleep_and_save(run: TrialRun) -> None:
            if resumed := run.resumed_from():
                resumed.load()
            time.sleep(0.2)
            run.save_resume_point(1)

        ended(runner, sleep_and_save)
        ended(runner, sleep_and_save)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load()
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert 0.4 <= result.cost["seconds"] < 60
        assert result.cost["gpu_seconds"] == 0.0
        told = [(event.trial, event.cost["seconds"]) for event in runner.events if isinstance(event, Resumed)]
        assert [trial for trial, _ in told] == [1, 1]
        assert 0.2 <= told[0][1] <= told[1][1] - 0.2 <= result.cost["seconds"] - 0.2

    def test_earlier_weights_and_files_are_published(self, runner: AttemptRunner) -> None:
        """Weights of run.save and files of run.save_dir from before the save are published with the result."""

        def early(run: TrialRun) -> None:
            run.save({"weight": torch.ones(2), "tied": torch.ones(2)})
            (run.save_dir / "deep").mkdir()
            (run.save_dir / "deep" / "trees.txt").write_bytes(b"one\0two")
            (run.save_dir / "empty").write_bytes(b"")
            run.save_resume_point(1)
            run.save({"weight": torch.zeros(2)})
            (run.save_dir / "late").write_bytes(b"")

        ended(runner, early)

        def body(run: TrialRun) -> object:
            (run.save_dir / "again").write_text("what every attempt writes")
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load()
            assert (run.save_dir / "deep" / "trees.txt").read_bytes() == b"one\0two"
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.checkpoint is not None, result.error
        tensors = StoredWeights(runner.files, result.checkpoint).read_all()
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"weight": [1, 1], "tied": [1, 1]}
        published = {
            reference.path.split("/", 2)[2]: reference
            for reference in load_manifest(runner.files, result.checkpoint).files
        }
        assert published.keys() == {"again", "deep/trees.txt", "empty"}
        assert runner.files.read(published["deep/trees.txt"]) == b"one\0two"

    def test_heads_of_attentions_are_published(self, runner: AttemptRunner) -> None:
        """A resumed trial that saves a state dict publishes the heads of its network's attentions."""

        attention = nn.MultiheadAttention(8, 2)

        def early(run: TrialRun) -> None:
            run.inherit(attention)
            run.save_resume_point(1, attention)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load(attention)
            run.save({**attention.state_dict()})
            return {"score": 1.0}

        ended(runner, early)
        result = runner.attempt(body)

        assert result is not None
        assert result.checkpoint is not None, result.error
        parts = load_manifest(runner.files, result.checkpoint).parts
        assert parts["in_proj_weight"].sizes == ((2, 4), (2, 4), (2, 4))

    def test_lazy_norms_get_their_sizes(self, runner: AttemptRunner) -> None:
        """A lazy network takes its sizes from the resume point, without a batch before it."""
        first, second = (nn.Sequential(nn.LazyInstanceNorm1d(affine=True)) for _ in range(2))
        batch = torch.arange(24.0).reshape(2, 3, 4)

        def early(run: TrialRun) -> None:
            first(batch)
            run.save_resume_point(1, first)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load(second)
            return {"score": float(second(batch).detach().sum())}

        ended(runner, early)
        result = runner.attempt(body)

        assert result is not None
        assert result.state == State.COMPLETE, result.error

    def test_other_parts_are_refused(self, runner: AttemptRunner) -> None:
        """load accepts only the parts given to checkpoint: the same kinds, order and number."""
        ended(runner, lambda run: run.save_resume_point(1, net := nn.Linear(1, 1), sgd(net)))

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            net = nn.Linear(1, 1)
            with pytest.raises(
                ConfigurationError, match=r"saved Linear, SGD, but load is given SGD, Linear: give both"
            ):
                resumed.load(sgd(net), net)
            with pytest.raises(ConfigurationError, match=r"saved Linear, SGD, but load is given nothing: "):
                resumed.load()
            resumed.load(net, sgd(net))
            with pytest.raises(ConfigurationError, match="loaded already: load all parts in one call"):
                resumed.load(net, sgd(net))
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.error is None

    @pytest.mark.parametrize(
        ("part", "line"),
        [
            (object(), "part 2 of run.save_resume_point is a object, which has no state_dict and load_state_dict"),
            (
                DataLoader(TensorDataset(torch.ones(2)), 1),
                "part 2 of run.save_resume_point is a DataLoader, .* its generator",
            ),
            ({"hook": print}, r"part 2 \(dict\)\['hook'\] is of type builtins.builtin_function_or_method: a resume "),
            (
                {"w": torch.ones(2).to_sparse()},
                r"tensor \"part 2 \(dict\)\['w'\]\" \(torch.sparse_coo\) can't be saved",
            ),
        ],
    )
    def test_values_that_need_pickling_are_refused(self, runner: AttemptRunner, part: object, line: str) -> None:
        """A value that can't be saved is refused by its place and key, and nothing is written."""

        def body(run: TrialRun) -> object:
            with pytest.raises(ConfigurationError, match=line):
                run.save_resume_point(1, nn.Linear(1, 1), part)
            assert runner.kept == []
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert result.error is None

    def test_a_problem_that_never_asks_is_told(self, runner: AttemptRunner) -> None:
        """An attempt that saves without having called resumed_from logs a warning."""
        ended(runner, saving)
        assert "never" not in runner.log
        runner.attempt(lambda run: [saving(run), saving(run)] and {"score": 1.0})

        assert runner.log.count("train must call run.resumed_from()") == 1


class TestDamage:
    @pytest.mark.parametrize("n_torn", [1, 2])
    def test_damaged_resume_points_are_logged(self, runner: AttemptRunner, n_torn: int) -> None:
        """If the newest is damaged, the trial resumes from the one before, else from the start; the log names both."""

        def save_two(run: TrialRun) -> None:
            run.save_resume_point(1, {"at": 1})
            run.save_resume_point(2, {"at": 2})

        ended(runner, save_two)
        packs = [name for name in runner.kept if name.endswith(".safetensors")]
        for name in packs[2 - n_torn :]:
            runner.files.replace(f"resume/000001/{name}", b"torn")
        found: list[object] = []

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            if resumed is not None:
                resumed.load(notes := {})
                found.append((resumed.step, notes))
            return {"score": 1.0}

        result = runner.attempt(body)

        assert result is not None
        assert found == ([(1, {"at": 1})] if n_torn == 1 else [])
        assert runner.log.count("resume point is damaged") == n_torn
        assert runner.log.count("resume point is damaged, the trial starts from the beginning: ") == n_torn - 1
        assert all(name in runner.log for name in packs[2 - n_torn :])
        assert runner.kept == []


class TestInheritance:
    def body(self, run: TrialRun) -> object:
        """Inherits only if there is no resume point."""
        net = network()
        if resumed := run.resumed_from():
            resumed.load(net)
            assert resumed.inheritance is not None
            self.reports.append(resumed.inheritance)
        else:
            self.reports = [run.inherit(net)]
            run.save_resume_point(1, net)
            run.report(1, score=0.5)
        run.save(net)
        return {"score": 1.0}

    @pytest.mark.parametrize("fate", ["kept", "gone", "torn"])
    def test_the_donor_is_needed_once(self, runner: AttemptRunner, fate: str) -> None:
        """A second attempt needs no donor; its record has the first one's report, donor and weights."""
        donor = runner.donor()
        assert donor.checkpoint is not None

        def first(run: TrialRun) -> object:
            runner.interrupt()
            return self.body(run)

        assert runner.attempt(first, donors=[donor], resolved_donor=0, inheritance={"replaced": {"7": 0}}) is None
        for pack in donor.checkpoint.packs if fate != "kept" else ():
            runner.files.delete(pack.path)
            if fate == "torn":
                runner.files.replace(pack.path, b"torn")
        result = runner.attempt(self.body, donors=[donor], resolved_donor=0, inheritance={})

        assert result is not None
        assert (result.state, result.attempt) == (State.COMPLETE, 2), result.error
        assert (result.donor, result.inherited) == (0, 1.0)
        assert result.inheritance["replaced"] == {"7": 0}
        assert self.reports == [self.reports[0]] * 2
        assert {tensor.how for tensor in self.reports[0].tensors.values()} == {"copied"}
        assert (result.inheritance["share"], result.inheritance["n_copied"]) == (1.0, 9)
        assert result.checkpoint is not None
        assert all(bool((t == 1).all()) for t in StoredWeights(runner.files, result.checkpoint).read_all().values())

    def test_without_anything_saved_the_donor_is_needed(self, runner: AttemptRunner) -> None:
        """A second attempt without a resume point is FAILED(parent) if the donor is gone."""
        donor = runner.donor()
        assert donor.checkpoint is not None
        ended(runner, lambda run: None, donors=[donor])
        for pack in donor.checkpoint.packs:
            runner.files.delete(pack.path)

        result = runner.attempt(lambda run: pytest.fail("it must not run"), donors=[donor])

        assert result is not None
        assert (result.state, result.reason) == (State.FAILED, Reason.PARENT)

    def test_a_second_network_may_inherit(self, runner: AttemptRunner) -> None:
        """A resumed attempt may still call inherit if the donor is there; the first report stays."""
        donor = runner.donor()
        ended(
            runner,
            lambda run: [run.inherit(net := network()), run.save_resume_point(1, net)],
            donors=[donor],
            resolved_donor=0,
        )

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            assert run.inherit(nn.Linear(5, 5)).share == 0.0
            resumed.load(network())
            return {"score": 1.0}

        result = runner.attempt(body, donors=[donor], resolved_donor=0)

        assert result is not None
        assert result.error is None
        assert result.inherited == 1.0

    def test_a_lost_donor_that_is_needed_fails(self, runner: AttemptRunner) -> None:
        """A resumed attempt that calls inherit for a missing donor fails."""
        donor = runner.donor()
        assert donor.checkpoint is not None
        ended(
            runner,
            lambda run: [run.inherit(net := network()), run.save_resume_point(1, net)],
            donors=[donor],
            resolved_donor=0,
        )
        runner.files.delete(donor.checkpoint.packs[0].path)

        def body(run: TrialRun) -> object:
            resumed = run.resumed_from()
            assert resumed is not None
            resumed.load(network())
            run.inherit(network())
            return {"score": 1.0}

        result = runner.attempt(body, donors=[donor], resolved_donor=0)

        assert result is not None
        assert (result.state, result.reason) == (State.FAILED, Reason.PARENT)
        assert (result.inheritance["lost"], result.inheritance["n_copied"]) == ([0], 9)


EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "long_trials.md").read_text(), re.DOTALL)


class Documented:
    """The names that the document's example expects from its reader.

    Args:
        interrupt: Called before the report of epoch 41.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.interrupt = interrupt
        self.n_epochs = 0

    def build(self, point: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def fit(self, network: nn.Module, optimizer: torch.optim.Optimizer, shuffling: torch.Generator) -> None:
        self.n_epochs += 1
        for i in torch.randperm(8, generator=shuffling).split(4):
            optimizer.zero_grad()
            network.train()(X[i]).sub(X[i].sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()

    def score(self, network: nn.Module) -> dict[str, float]:
        if self.n_epochs == 41:
            self.interrupt()
        with torch.no_grad():
            return {"score": network.eval()(X).sum().item()}


X = torch.arange(16.0).reshape(8, 2) / 16


def test_the_documents_example() -> None:
    """The example of docs/guides/long_trials.md has at most 15 lines, and does what the text says."""
    (example,) = EXAMPLE
    namespace: dict[str, Any] = {"torch": torch, "optim": torch.optim}
    exec(example, namespace)
    calm, torn = AttemptRunner(), AttemptRunner()
    for runner in (calm, torn):
        runner.trial = replace(runner.trial, proposal=Proposal(point={"lr": 0.05}))
    undisturbed, disturbed = Documented(lambda: None), Documented(torn.interrupt)

    first = calm.attempt(lambda run: namespace["train"](undisturbed, run))
    assert torn.attempt(lambda run: namespace["train"](disturbed, run)) is None
    second = torn.attempt(lambda run: namespace["train"](disturbed, run))

    assert len(example.splitlines()) <= 15
    assert first is not None
    assert second is not None
    assert (undisturbed.n_epochs, disturbed.n_epochs) == (100, 101)
    assert outcome(torn, second) == outcome(calm, first)


def test_going_on_is_in_the_log(runner: AttemptRunner, caplog: pytest.LogCaptureFixture) -> None:
    """The log of a resumed attempt names the step from which it resumes."""
    ended(runner, saving)

    def body(run: TrialRun) -> object:
        resumed = run.resumed_from()
        assert resumed is not None
        resumed.load({})
        return {"score": 1.0}

    runner.attempt(body)

    assert "trial 1 resumes after step 3 of an earlier attempt" in runner.log
    assert all(record.levelno < logging.ERROR for record in caplog.records)
