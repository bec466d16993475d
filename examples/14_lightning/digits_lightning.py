"""Digits by a LightningModule: children inherit, hopeless trials stop, interrupted ones resume."""

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from nas import Choice, Float, Metric, ParameterSpace, Policy, Problem, TrialRun
from nas.integrations.lightning import LightningTrialCallback


class Digits(LightningModule):
    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
        self.rate = rate

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_acc", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.rate)


class LightningDigits(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = ParameterSpace({"width": Choice(16, 32, 64), "rate": Float(1e-3, 1e-2, log=True)})

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
        self.train_data, self.val_data = torch.utils.data.random_split(data, [1400, 397], torch.manual_seed(0))

    def train(self, run: TrialRun) -> dict[str, float]:
        module = Digits(run.point["width"], run.point["rate"])
        callback = LightningTrialCallback(run, {"accuracy": "val_acc"})
        if callback.ckpt_path is None:
            run.inherit(module)
        trainer = Trainer(
            max_epochs=run.epochs(full=6, early=3), accelerator="gpu" if run.device == "cuda" else "cpu", devices=1,
            callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        loaders = DataLoader(self.train_data, 64, shuffle=True), DataLoader(self.val_data, 397)
        trainer.fit(module, *loaders, ckpt_path=callback.ckpt_path)
        return {"accuracy": float(trainer.callback_metrics["val_acc"])}
