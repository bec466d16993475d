"""The examples with Lightning and Hugging Face's Trainer: they inherit, report, stop, and resume to the bit.

Lightning is no part of the test extra: ``.ci/run`` installs it, elsewhere its tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from nas import Budget, Metric, Policy, Search, Spec, TrialRun, run_search
from nas.core.errors import ConfigurationError, TrialInterrupted, TrialStopped
from nas.core.trial import Proposal, Trial
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.problem import Problem
from nas.training.seeds import seed_everything

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of the frameworks' own calls
EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {
    "lightning": ("14_lightning", "digits_lightning.LightningDigits"),
    "transformers": ("15_transformers_trainer", "digits_trainer.TrainerDigits"),
}
POINT = {"width": 16, "rate": 0.01}


@dataclass
class Channel:
    """Raises at the given report."""

    error: TrialStopped | None = None
    at: int = 2
    reports: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)

    def started(self) -> None: ...

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None: ...

    def raise_if_stopped(self) -> None: ...

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]], totals: Mapping[str, Any]) -> None: ...

    def extra_result(self, result: str) -> None: ...

    def committed(self, trial: Trial) -> None: ...

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        self.reports.append((step, metrics))
        if self.error is not None and len(self.reports) == self.at:
            raise self.error


@pytest.fixture(params=FRAMEWORKS)
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Spec]:
    """The problem of an example, which is imported by name."""
    pytest.importorskip("lightning" if request.param == "lightning" else "accelerate")
    folder, target = FRAMEWORKS[request.param]
    monkeypatch.syspath_prepend(EXAMPLES / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Spec(target)
    torch.set_num_threads(n_threads)


def linear_with_dropout(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """The forward pass of a linear layer, with random numbers in training."""
    outputs = torch.nn.functional.linear(inputs, layer.weight, layer.bias)
    return torch.nn.functional.dropout(outputs, 0.1, layer.training)


class Attempts:
    """Trains attempts of one trial, as a worker does."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.files = open_root(f"memory://frameworks/{uuid4().hex}/search", retry_s=0)

    def train(self, channel: Channel, attempt: int = 1) -> tuple[Mapping[str, float] | None, TrialRun]:
        """Returns what ``train`` returned, or None if it was stopped."""
        trial = Trial(number=1, index=1, proposal=Proposal(point=POINT), seed=3, attempt=attempt)
        run = TrialRun(trial, self.files, channel=channel, resume_every_s=0.0)
        run.load_donors()
        seed_everything(3)
        try:
            return self.problem.train(run), run
        except TrialStopped:
            return None, run

    def weights(self, run: TrialRun) -> dict[str, torch.Tensor]:
        checkpoint = run.commit_weights()
        assert checkpoint is not None
        return StoredWeights(self.files, checkpoint).read_all()


def test_children_inherit(spec: Spec, tmp_path: Path) -> None:
    """In a search, each trial reports its epochs, and children inherit."""
    tuner = Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 2, "sample_size": 2})
    search = Search(problem=spec, tuner=tuner, seed=1)
    found = run_search(search, root=str(tmp_path / "root"), budget=Budget(trials=4), finalists=1)
    searched = [trial for trial in found.lineage if trial.stage == "search"]

    assert [trial.error for trial in found.lineage] == [None] * 5
    assert {len(trial.curve) for trial in searched} <= {2, 3}
    assert all(trial.checkpoint for trial in searched)
    assert all((trial.inherited or 0) > 0.2 for trial in searched if trial.parents)
    assert found.lineage[4].metrics["accuracy"] > 0.3


def test_stop_saves_the_weights(spec: Spec) -> None:
    """A stop ends the framework's loop at once; the weights so far are saved."""
    attempts, channel = Attempts(spec.build()), Channel(TrialStopped("hopeless"))
    found, run = attempts.train(channel)

    assert found is None
    assert isinstance(run.stop, TrialStopped)
    assert len(channel.reports) == 2
    assert attempts.weights(run)


def test_interrupted_trial_resumes_to_the_bit(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt continues after the last resume point, and ends with the weights of an uninterrupted one."""
    monkeypatch.setattr(torch.nn.Linear, "forward", linear_with_dropout)
    whole = Attempts(spec.build())
    expected, run = whole.train(Channel())
    attempts = Attempts(spec.build())
    attempts.train(Channel(TrialInterrupted("Ctrl-C"), at=3))
    channel = Channel()
    found, resumed = attempts.train(channel, attempt=2)

    n_reports = len(run.curve)
    assert len(channel.reports) == n_reports - 2
    assert resumed.curve == run.curve
    assert found == expected
    weights = whole.weights(run)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in attempts.weights(resumed).items())


def test_a_worker_that_dies_after_the_last_epoch(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt trains again and saves weights: a finished trainer would only return."""

    def die(run: TrialRun, network: torch.nn.Module) -> None:
        raise TrialInterrupted("kill -9")

    attempts, channel = Attempts(spec.build()), Channel()
    with monkeypatch.context() as patch:
        patch.setattr(TrialRun, "save", die)
        attempts.train(Channel())
    found, run = attempts.train(channel, attempt=2)

    assert found == {"accuracy": run.curve[-1][1]["accuracy"]}
    assert len(channel.reports) == 1
    assert attempts.weights(run)


class Tiny(torch.nn.Module):
    """A classifier of the form that Hugging Face's Trainer wants."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class TwoSets(Problem):
    """Is evaluated on two data sets in training, and on others afterwards."""

    metrics = (Metric("score"), Metric("other"))

    def __init__(self, *, eval_on_start: bool = False) -> None:
        self.eval_on_start = eval_on_start

    def train(self, run: TrialRun) -> dict[str, float]:
        """Reports both metrics after each epoch."""
        from transformers import Trainer, TrainingArguments

        from nas.integrations.transformers import TransformersTrialCallback

        data: Any = [{"x": torch.tensor([n, 1.0]), "labels": n % 2} for n in range(8)]
        callback = TransformersTrialCallback(run, {"score": "eval_a_mean", "other": "eval_b_mean"})
        arguments = TrainingArguments(
            str(run.log_dir), num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True,
            eval_on_start=self.eval_on_start,
        )  # fmt: skip
        trainer = Trainer(
            Tiny(), arguments, train_dataset=data, eval_dataset={"a": data[:4], "b": data[4:]}, callbacks=[callback],
            compute_metrics=lambda found: {"mean": float(found.label_ids.mean())},
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=callback.checkpoint)
        trainer.evaluate(data, metric_key_prefix="test")
        trainer.evaluate()
        return {"score": 0.5, "other": 0.5}


def test_evaluations_of_several_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Evaluations of two data sets are one report; those after training are none, whatever their names."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    channel = Channel()
    Attempts(TwoSets()).train(channel)

    assert channel.reports == [(step, {"score": 0.5, "other": 0.5}) for step in (1, 2)]


def test_evaluation_on_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The evaluation before the first step is a report; that of a resumed trial is none."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    attempts, channel = Attempts(TwoSets(eval_on_start=True)), Channel()
    attempts.train(Channel(TrialInterrupted("Ctrl-C"), at=3))
    _, run = attempts.train(channel, attempt=2)

    assert [step for step, _ in channel.reports] == [2]
    assert [step for step, _ in run.curve] == [0, 1, 2]


def test_several_processes_are_refused() -> None:
    """Lightning's DDP is refused in one line."""
    pytest.importorskip("lightning")
    from nas.integrations.lightning import LightningTrialCallback

    run = TrialRun(Trial(number=1, index=1, proposal=Proposal(point=POINT)), open_root("memory://none", retry_s=0))
    trainer: Any = type("Trainer", (), {"world_size": 2, "num_devices": 2})()
    with pytest.raises(ConfigurationError, match=r"^Trainer\(devices=2\): must be 1"):
        LightningTrialCallback(run, {}).setup(trainer, trainer, "fit")


class HyperParameters(Problem):
    """Trains a Lightning module that saves its arguments, of which JSON has no types."""

    metrics = (Metric("score"),)

    def train(self, run: TrialRun) -> dict[str, float]:
        """Reports after each of three epochs."""
        from lightning.pytorch import LightningModule, Trainer

        from nas.integrations.lightning import LightningTrialCallback

        class Module(LightningModule):
            def __init__(self, layer: torch.nn.Module, folder: Path, optimizer: Any) -> None:
                super().__init__()
                self.save_hyperparameters()
                self.layer = layer

            def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
                return self.layer(batch).square().mean()

            def validation_step(self, batch: torch.Tensor, _: int) -> None:
                self.log("norm", self.layer(batch).norm())

            def configure_optimizers(self) -> Any:
                return self.hparams["optimizer"](self.parameters())

        callback = LightningTrialCallback(run, {"score": "norm"})
        trainer = Trainer(
            max_epochs=3, accelerator="cpu", callbacks=[callback], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        data = torch.utils.data.DataLoader(torch.eye(2), 2)
        module = Module(torch.nn.Linear(2, 1), Path("data"), partial(torch.optim.SGD, lr=0.1))
        trainer.fit(module, data, data, ckpt_path=callback.ckpt_path)
        return {"score": float(trainer.callback_metrics["norm"])}


def test_hyperparameters_of_any_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module that saves a network, a path and a function as its hyperparameters resumes, too."""
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    expected, _ = Attempts(HyperParameters()).train(Channel())
    attempts, channel = Attempts(HyperParameters()), Channel()
    attempts.train(Channel(TrialInterrupted("Ctrl-C"), at=2))
    found, _ = attempts.train(channel, attempt=2)

    assert found == expected
    assert [step for step, _ in channel.reports] == [2, 3]


def test_trial_trains_by_two_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trial in a worker process starts a second rank of DDP; rank 0 inherits and saves by the network's names."""
    monkeypatch.syspath_prepend(EXAMPLES / "16_two_processes")
    tuner = Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 1, "sample_size": 1})
    search = Search(problem=Spec("two_processes.TwoProcesses"), tuner=tuner)
    found = run_search(search, root=str(tmp_path), budget=Budget(trials=2), finalists=1, runner="processes")

    logs = Records(open_root(found.url)).log  # with the output of the second rank
    assert [trial.error for trial in found.lineage] == [None] * 2, [logs(number) for number in range(2)]
    assert all(trial.metrics["accuracy"] > 0.5 for trial in found.lineage)
    assert (found.lineage[1].inherited or 0) > 0.2


def test_unknown_metric_is_named(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric that the framework does not have fails the trial, and the known ones are listed."""
    problem = spec.build()
    module = __import__(spec.target.partition(".")[0])
    name = next(name for name in dir(module) if name.endswith("TrialCallback"))
    callback = getattr(module, name)
    monkeypatch.setattr(module, name, lambda run, metrics: callback(run, {"accuracy": "nothing"}))
    with pytest.raises(ConfigurationError, match=r"metrics=nothing: must be .*(val_acc|eval_accuracy)"):
        Attempts(problem).train(Channel())
    assert Policy.SHARE_PARAMS in problem.policies
