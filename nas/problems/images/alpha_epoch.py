"""Supernet epochs of a differentiable search on images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.core.policy import Policy
from nas.inheritance.optimizer_state import optimizer_tensors
from nas.inheritance.rules import Rules
from nas.problems.images.fit import Recipe, evaluate
from nas.problems.images.pixels import Images
from nas.problems.images.supernet_schedule import SupernetSchedule
from nas.supernets.differentiable import (
    Loss,
    RelaxedTraining,
    add_alphas,
    alpha_metrics,
    alpha_optimizer_of,
    alphas_of,
)
from nas.supernets.method import Method
from nas.supernets.perturbation import select_by_perturbation
from nas.training.precision import precision_of
from nas.training.trial_run import TrialRun

N_SCORED = 500
"""The images on which DARTS-PT scores a supernet without an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaEpoch:
    """The settings of a supernet epoch that trains alphas.

    Attributes:
        method: The method of the search.
        number: The number of the epoch, from 0.
        schedule: The steps of an epoch, and the learning rates of weights; its number of epochs is that of the method.
        recipe: Batch size, augmentation and precision.
        rules: The rules of inheritance.
    """

    method: Method
    number: int
    schedule: SupernetSchedule
    recipe: Recipe
    rules: Rules

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", replace(self.schedule, n_epochs=self.method.n_epochs))

    def done(self, step: int) -> float:
        """Returns the share of the search that is done before a step of this epoch."""
        return min((self.number + step / self.schedule.epoch_steps) / self.method.n_epochs, 1.0)

    @property
    def precision(self) -> str:
        """The precision of training; second order takes differences, which bfloat16 can't resolve."""
        return "float32" if self.method.order == 2 else self.recipe.precision


def parts_of(images: Images, share: float) -> tuple[Images, Images]:
    """Returns the images that train weights, and those that train alphas: the first ``share`` of them.

    They are the same in all epochs, so that alphas and weights never see the same image.
    """
    n_alpha = min(max(round(share * len(images)), 1), len(images) - 1)
    return images[n_alpha:], images[:n_alpha]


def train_alphas(
    run: TrialRun, network: nn.Module, optimizer: torch.optim.Optimizer, images: Images, epoch: AlphaEpoch
) -> dict[str, float]:
    """Trains weights and alphas for an epoch, suggests the point that they give, and saves both.

    Weights, alphas and the states of both optimizers continue those of the donor. An interrupted epoch resumes.

    Args:
        run: The trial of the epoch.
        network: The new supernet, which gets alphas.
        optimizer: The optimizer of the network's weights.
        images: The training images, in an order that is the same in all epochs.
        epoch: The settings.

    Returns:
        ``skips`` and ``nones`` of the suggested point, and ``entropy`` and ``alpha_distance`` of the alphas.
    """
    generator = torch.Generator().manual_seed(run.seed)
    alphas = add_alphas(network, generator).to(run.device)
    alpha_optimizer = alpha_optimizer_of(network, epoch.method)
    before: dict[str, Tensor] = {}
    states = (network, optimizer, alpha_optimizer, generator, before)
    n_done = _start(run, states, epoch.rules)
    before.setdefault("alphas", alphas.flat())
    trainer = RelaxedTraining(
        network,
        _loss(epoch.precision, run.device),
        optimizer=optimizer,
        alpha_optimizer=alpha_optimizer,
        method=epoch.method,
        generator=generator,
    )
    of_weights, of_alphas = parts_of(images, epoch.method.alpha_share)
    batches = zip(
        epoch.schedule.batches(of_weights, epoch.recipe, optimizer, epoch=epoch.number, seed=run.seed),
        epoch.schedule.draw(of_alphas, epoch.recipe, seed=run.seed),
        strict=True,
    )
    network.train()
    for step, (batch, alpha_batch) in islice(enumerate(batches), n_done, None):
        trainer.step(batch, alpha_batch, epoch.done(step))
        run.save_resume_point(step + 1, *states)
    point = _point(network, of_alphas, epoch, generator)
    run.suggest_points([point])
    run.save(
        {
            **network.state_dict(),
            **optimizer_tensors(optimizer, network),
            **optimizer_tensors(alpha_optimizer, network),
        }
    )
    return alpha_metrics(alphas, before["alphas"].to(run.device), point)


def _start(run: TrialRun, states: tuple[Any, ...], rules: Rules) -> int:
    """Restores an interrupted epoch, or inherits. Returns the number of steps that are done."""
    network, optimizer, alpha_optimizer, *_ = states
    if (resumed := run.resumed_from()) is not None:
        resumed.load(*states)
        return resumed.step
    if Policy.SHARE_PARAMS in run.policies:
        run.inherit(network, rules=rules)
        run.inherit_optimizer(optimizer, network)
        run.inherit_optimizer(alpha_optimizer, network)
    return 0


def _point(network: nn.Module, of_alphas: Images, epoch: AlphaEpoch, generator: torch.Generator) -> Point:
    """Returns the point of the largest alphas; with DARTS-PT, of the most needed options."""
    alphas, excluded = alphas_of(network), epoch.method.excluded
    if epoch.method.method != "darts_pt":
        return alphas.point(excluded)

    def score(mixture: nn.Module) -> tuple[float, float]:
        scores = evaluate(mixture, of_alphas[:N_SCORED], epoch.recipe.precision)
        return scores["accuracy"], scores["loss"]

    return select_by_perturbation(network, alphas, score, generator, excluded)


def _loss(precision: str, device: str) -> Loss:
    """Returns the cross-entropy of a network on pixels and labels."""

    def loss(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pixels, labels = batch
        with precision_of(precision, device):
            logits = network(pixels)
        return functional.cross_entropy(logits.float(), labels)

    return loss
