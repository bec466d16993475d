"""A problem whose trials take long, with all that decides bits, and a stopper; commands import them by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from nas import Choice, Float, Lineage, Metric, ParameterSpace, Policy, Problem, Stopper, Trial, TrialRun
from nas.core.errors import TrialStopped

N_EPOCHS = 12
HELD_EPOCH = 6
"""A trial does not begin it as long as a file ``hold-<number>`` lies in the folder where the command runs."""


class LongTrialProblem(Problem):
    """Trains on shuffled batches with dropout, momentum and a schedule, and saves what it reaches after each epoch.

    Args:
        seconds: How long an epoch takes.
        fail_at: The epoch that raises.
        hang_at: The epoch that never ends.
    """

    metrics = (Metric("loss", "minimize"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace(
        {"optimizer": Choice("SGD", "Adam"), "rate": Float(0.01, 0.1, log=True), "dropout": Float(0.1, 0.5)}
    )

    def __init__(self, *, seconds: float = 0.0, fail_at: int = 0, hang_at: int = 0) -> None:
        self.seconds = seconds
        self.fail_at = fail_at
        self.hang_at = hang_at

    def train(self, run: TrialRun) -> dict[str, float]:
        import torch
        from torch import nn, optim
        from torch.utils.data import DataLoader, TensorDataset

        x = torch.rand(64, 6, generator=torch.Generator().manual_seed(1))
        shuffling = torch.Generator().manual_seed(run.seed)
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), 8, shuffle=True, generator=shuffling)
        network = self.build(run.point)
        rate = run.point["rate"]
        optimizer: Any = optim.Adam(network.parameters(), rate)
        if run.point["optimizer"] == "SGD":
            optimizer = optim.SGD(network.parameters(), rate, momentum=0.9)
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=N_EPOCHS * len(loader))
        resumed = run.resumed_from()
        if resumed is None:
            run.inherit(network)
        else:
            resumed.load(network, optimizer, schedule, shuffling)
        total = 0.0
        for epoch in range(1 if resumed is None else resumed.step + 1, N_EPOCHS + 1):
            while epoch == HELD_EPOCH and Path(f"hold-{run.number}").exists():
                time.sleep(0.02)
            print(f"epoch {epoch} in {os.getpid()}", flush=True)
            total = 0.0
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(network(inputs), targets)
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item()
            time.sleep(1000 if epoch == self.hang_at else self.seconds)
            if epoch == self.fail_at:
                raise RuntimeError("as told")
            try:
                run.report(epoch, loss=total)
            except TrialStopped:
                run.save(network)
                raise
            if epoch < N_EPOCHS:
                run.save_resume_point(epoch, network, optimizer, schedule, shuffling)
        run.save(network)
        return {"loss": total}

    def build(self, point: dict[str, Any]) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(point["dropout"]), nn.Linear(16, 1))


class TenthReportStopper(Stopper):
    """Ends every other trial at its tenth report."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.number % 2 == 1 and len(trial.curve) == 10
