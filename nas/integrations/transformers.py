"""Hugging Face's Trainer: a callback that reports, stops, saves and resumes a trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nas.core.errors import ConfigurationError
from nas.integrations.training_state import ResumedTraining, TrainingState
from nas.training.seeds import random_state, set_random_state
from nas.training.trial_run import TrialRun


class TransformersTrialCallback(TrainerCallback):
    """Connects ``Trainer.train`` to a trial.

    ::

        callback = TransformersTrialCallback(run, {"accuracy": "eval_accuracy"})
        if callback.checkpoint is None:
            run.inherit(model)
        trainer = Trainer(model, arguments, callbacks=[callback], ...)
        trainer.train(resume_from_checkpoint=callback.checkpoint)

    After each evaluation within ``train`` it reports. If the trial should end, ``train`` raises ``TrialStopped``, and
    the weights are saved before. They are saved when ``train`` ends, too.

    Args:
        run: The trial.
        metrics: The trial's metrics, with their names in the evaluation.
    """

    def __init__(self, run: TrialRun, metrics: Mapping[str, str]) -> None:
        self._run = run
        self._metrics = dict(metrics)
        self._resumed = ResumedTraining(run)
        self._random = None if self._resumed.state is None else random_state()  # Trainer(...) seeds
        self._is_training = False
        self._has_reported = False
        self._step = 0
        self._values: dict[str, float] = {}  # of the evaluations after this step
        self._names: dict[str, None] = {}  # that evaluations had, in order

    @property
    def checkpoint(self) -> str | None:
        """The folder for ``resume_from_checkpoint``, or None: train from the start."""
        if (state := self._resumed.state) is None:
            return None
        folder = self._resumed.folder
        save_file(state["model"], folder / "model.safetensors")
        torch.save(state["optimizer"], folder / "optimizer.pt")
        torch.save(state["scheduler"], folder / "scheduler.pt")
        (folder / "trainer_state.json").write_text(state["trainer"])
        return str(folder)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks that one process trains.

        Raises:
            ConfigurationError: several do; only this one has the trial.
        """
        self._is_training = True
        if args.world_size > 1:
            raise ConfigurationError(
                f"TrainingArguments: {args.world_size} processes train: must be 1, since a trial trains in one process."
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Deletes the checkpoint, which ``train`` has read before its first step."""
        self._resumed.close()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Reports what an evaluation within ``train`` found.

        Metrics of several data sets, each with an evaluation of its own, are one report.

        Raises:
            TrialStopped: the trial should end.
        """
        if not self._is_training or self._random is not None:  # with eval_on_start, a resumed trial evaluates again
            return
        found = kwargs["metrics"]
        self._names.update(dict.fromkeys(found))
        self._values = self._values if self._step == state.global_step else {}
        self._step = state.global_step
        known = {metric: found[name] for metric, name in self._metrics.items() if name in found}
        self._values |= known
        if known and self._values.keys() == self._metrics.keys():
            self._report(kwargs["model"])

    def _report(self, model: torch.nn.Module) -> None:
        self._has_reported = True
        try:
            self._run.report(self._step, **self._values)
        except BaseException:
            self._run.save(model)
            raise

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Saves a resume point if one is due: the epoch before is evaluated and reported.

        Before the first epoch of a resumed trial it restores the random states.
        """
        if self._random is not None:
            set_random_state(self._random)
            self._random = None
        if state.global_step:
            self._run.save_resume_point(state.global_step, TrainingState(lambda: _state_of(state, kwargs)))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Saves the weights.

        Raises:
            ConfigurationError: no evaluation had the metrics.
        """
        self._is_training = False
        missing = [name for name in self._metrics.values() if name not in self._names]
        if missing and self._names and not self._has_reported:
            names = ", ".join(self._names)
            raise ConfigurationError(f"metrics={missing[0]}: must be a metric of the evaluation: {names}.")
        self._run.save(kwargs["model"])


def _state_of(state: TrainerState, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the Trainer's own checkpoint has, as tensors and plain values."""
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in parts["model"].state_dict().items()}
    return {
        "model": {name: tensor.contiguous() for name, tensor in tensors.items()},
        "optimizer": parts["optimizer"].state_dict(),
        "scheduler": parts["lr_scheduler"].state_dict(),
        "trainer": json.dumps(asdict(state), default=str),
    }
