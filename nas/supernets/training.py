"""Training of a supernet by paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.module import select
from nas.supernets.paths import PathSampler
from nas.training.precision import checked_precision, precision_of

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns the mean loss of outputs and targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTraining:
    """The settings of a supernet's training.

    Attributes:
        loss: The loss of outputs (in float32) and targets.
        clip_norm: The largest norm of all gradients together; larger ones are scaled down.
        precision: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`).
        distill: Whether a step's first point learns the targets, and the others learn its class probabilities.
        class_dim: The dimension of outputs that has the classes: 1 as in torch's losses, -1 for tokens.
    """

    loss: Loss = functional.cross_entropy
    clip_norm: float = 5.0
    precision: str = "float32"
    distill: bool = False
    class_dim: int = 1

    def __post_init__(self) -> None:
        checked_precision(self.precision)
        if not self.clip_norm > 0:
            raise ConfigurationError(f"clip_norm={self.clip_norm!r}: must be above 0. math.inf clips nothing.")


def train_epoch(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    paths: PathSampler,
    *,
    settings: PathTraining | None = None,
    after_step: Callable[[], object] = lambda: None,
) -> float:
    """Trains shared weights on each batch by the paths of its step. Returns the mean loss.

    Args:
        network: The supernet.
        batches: Inputs and targets.
        optimizer: The optimizer of the network's parameters.
        paths: The sampler of points; steps count from 0.
        settings: The defaults if None.
        after_step: Called after each step, for example the ``step`` of a schedule.
    """
    settings = settings or PathTraining()
    network.train()
    losses = []
    for step, (inputs, targets) in enumerate(batches):
        losses.append(train_step(network, (inputs, targets), optimizer, paths(step), settings=settings))
        after_step()
    return torch.stack(losses).double().mean().item() if losses else math.nan


def train_step(
    network: nn.Module,
    batch: tuple[Tensor, Tensor],
    optimizer: torch.optim.Optimizer,
    points: Sequence[Point],
    *,
    settings: PathTraining,
) -> Tensor:
    """Makes one step by the mean gradient of all points. Returns the mean loss.

    Parameters that no point uses keep their values to the bit. They have no gradient, so the optimizer applies neither
    momentum nor decay to them. An elastic one changes as a whole by both, as in Once-for-all, whichever part is used.
    """
    optimizer.zero_grad(set_to_none=True)
    inputs, targets = batch
    teacher: Tensor | None = None
    total = torch.zeros((), device=inputs.device)
    for point in points:
        select(network, point)
        with precision_of(settings.precision, inputs.device.type):
            outputs = network(inputs)
        outputs = outputs.float()
        loss = settings.loss(outputs, targets) if teacher is None else _distance(outputs, teacher, settings.class_dim)
        (loss / len(points)).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
        if settings.distill and teacher is None:
            teacher = outputs.detach().softmax(settings.class_dim)
    apply_gradients(network, optimizer, settings.clip_norm)
    return total / len(points)


def apply_gradients(network: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float) -> None:
    """Clips the gradients of the network and lets the optimizer make a step."""
    nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
    optimizer.step()


def _distance(outputs: Tensor, teacher: Tensor, class_dim: int) -> Tensor:
    """Returns the mean Kullback-Leibler divergence from the teacher's class probabilities."""
    divergences = functional.kl_div(outputs.log_softmax(class_dim), teacher, reduction="none")
    return divergences.sum(class_dim).mean()
