"""Lightning: a callback that reports, stops, saves and resumes a trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from nas.core.errors import ConfigurationError
from nas.integrations.training_state import ResumedTraining, TrainingState
from nas.training.temporary_folders import temporary_folder
from nas.training.trial_run import TrialRun

_ARGUMENTS = frozenset(
    f"{owner}{kind}" for owner in ("", "datamodule_") for kind in ("hyper_parameters", "hparams_name", "hparams_type")
)
"""The keys that ``save_hyperparameters`` adds to a checkpoint."""


class LightningTrialCallback(Callback):  # type: ignore[misc]
    """Connects ``Trainer.fit`` to a trial.

    ::

        callback = LightningTrialCallback(run, {"accuracy": "val_acc"})
        if callback.ckpt_path is None:
            run.inherit(module)
        trainer = Trainer(max_epochs=10, callbacks=[callback], enable_checkpointing=False, logger=False)
        trainer.fit(module, data, ckpt_path=callback.ckpt_path)

    After each epoch with a validation it reports. If the trial should end, ``fit`` raises ``TrialStopped``, and the
    weights are saved before. They are saved when ``fit`` ends, too.

    Args:
        run: The trial.
        metrics: The trial's metrics, with the names under which ``self.log`` has them.
    """

    def __init__(self, run: TrialRun, metrics: Mapping[str, str]) -> None:
        self._run = run
        self._metrics = dict(metrics)
        self._has_validated = False
        self._resumed = ResumedTraining(run)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint for ``Trainer.fit``, or None: train from the start."""
        if self._resumed.state is None:
            return None
        path = self._resumed.folder / "resumed.ckpt"
        torch.save(self._resumed.state, path)
        return str(path)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Checks that one process trains.

        Raises:
            ConfigurationError: several do; only this one has the trial.
        """
        if trainer.world_size > 1:
            raise ConfigurationError(
                f"Trainer(devices={trainer.num_devices}): must be 1, since a trial trains in one process. "
                "Choose devices=1, and gpus_per_trial=1 for more trials at a time."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes that there are new validation metrics."""
        self._has_validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports, and saves a resume point if one is due, but none after the last epoch.

        From that one ``fit`` would train nothing, and would end without ``on_train_end`` and metrics.

        Raises:
            TrialStopped: the trial should end.
        """
        step = trainer.current_epoch + 1
        if self._has_validated:
            self._has_validated = False
            metrics = self._read_metrics(trainer)
            try:
                self._run.report(step, **metrics)
            except BaseException:
                self._run.save(pl_module)
                raise
        is_last = step == trainer.max_epochs or 0 < trainer.max_steps <= trainer.global_step
        if not is_last and not trainer.should_stop:
            self._run.save_resume_point(step, TrainingState(lambda: _checkpoint_of(trainer)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the weights."""
        self._run.save(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Deletes the checkpoint that ``fit`` has read."""
        self._resumed.close()

    def _read_metrics(self, trainer: Trainer) -> dict[str, float]:
        known = trainer.callback_metrics
        if missing := [name for name in self._metrics.values() if name not in known]:
            raise ConfigurationError(
                f"metrics={missing[0]}: must be a name of self.log(...), one of {', '.join(sorted(known)) or 'none'}."
            )
        return {metric: float(known[name]) for metric, name in self._metrics.items()}


def _checkpoint_of(trainer: Trainer) -> dict[str, Any]:
    """Returns what ``Trainer.save_checkpoint`` writes, without arguments of the module and its data.

    ``fit`` does not read those, and they may be objects of any type.
    """
    with temporary_folder("heirloom-checkpoint-") as folder:
        path = Path(folder, "now.ckpt")
        trainer.save_checkpoint(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)  # written by this process
    assert isinstance(checkpoint, dict)
    return {name: value for name, value in checkpoint.items() if name not in _ARGUMENTS}
