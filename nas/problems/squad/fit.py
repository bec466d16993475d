"""Training and scoring of networks that read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.problems.squad.network import ReadingNetwork
from nas.problems.squad.questions import Question, best_spans, epoch_batches, inputs_of
from nas.training.epochs import begin_epoch, resumed_epochs, warm_up
from nas.training.trial_run import TrialRun

BATCH_SIZE = 64
_LARGEST_NORM = 5.0
_LEAST_RATE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A training in progress: the network, its optimizer, and what it inherited."""

    network: ReadingNetwork
    optimizer: torch.optim.Optimizer
    learning_rate: float
    rules: Rules
    report: InheritanceReport | None

    def set_rate(self, step: int, done: float) -> None:
        """Sets the learning rate after a share of the training, with the rules' warm-up."""
        share = falling(done) * warm_up(self.rules, self.report, step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * share

    def step(self, questions: Sequence[Question], device: str) -> None:
        """Trains on one batch."""
        logits = self.network(*inputs_of(questions, device))
        right = torch.tensor([one.span for one in questions], device=device)  # (batch, 2)
        loss = functional.cross_entropy(logits.flatten(0, 1), right.flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), _LARGEST_NORM)
        self.optimizer.step()


def falling(done: float) -> float:
    """Returns the share of the learning rate after a share of the steps.

    It is constant for half of them, and then falls to 0.02.
    """
    return min(1.0, 2 * (1 - done) + _LEAST_RATE)


def fit(training: Fit, questions: Sequence[Question], n_epochs: int, run: TrialRun) -> Iterator[int]:
    """Trains the network in place. Yields the number of each finished epoch, from 1.

    Questions without a span are left out. The training resumes from an earlier attempt.
    """
    network, optimizer = training.network, training.optimizer
    known = [one for one in questions if one.span is not None]
    lengths = [len(one.read.words) for one in known]
    n_batches = math.ceil(len(known) / BATCH_SIZE)
    shuffling = torch.Generator().manual_seed(run.seed)
    for epoch in resumed_epochs(run, n_epochs, network, optimizer, shuffling):
        begin_epoch(network, training.report, training.rules, epoch)
        for place, batch in enumerate(epoch_batches(lengths, BATCH_SIZE, shuffling)):
            step = (epoch - 1) * n_batches + place
            training.set_rate(step, step / (n_epochs * n_batches))
            training.step([known[index] for index in batch], run.device)
        yield epoch


def answers_of(network: nn.Module, questions: Sequence[Question], device: str = "cpu") -> dict[str, str] | None:
    """Returns the network's answers by question id, or None if an output is not finite."""
    network.eval()
    found: dict[str, str] = {}
    by_length = sorted(questions, key=lambda one: len(one.read.words))
    with torch.no_grad():
        for start in range(0, len(by_length), BATCH_SIZE):
            batch = by_length[start : start + BATCH_SIZE]
            logits = network(*inputs_of(batch, device))
            if not logits.isfinite().all():
                return None
            spans = best_spans(logits.float())
            found |= {one.id: one.answer(*span) for one, span in zip(batch, spans, strict=True)}
    return found
