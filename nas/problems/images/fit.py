"""Training and scoring of networks for small images."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.problems.images.augmentation import Augmentation
from nas.problems.images.pixels import Images
from nas.training.epochs import begin_epoch, resumed_epochs, warm_up
from nas.training.memory import keep_freed_memory
from nas.training.precision import precision_of
from nas.training.trial_run import TrialRun

_SCORED_AT_ONCE = 500  # images
MOMENTUM = 0.9
_WARM_UP = 0.2  # share of the steps in which the learning rate rises: inherited weights survive the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a full training, and their values under policies."""

    n_epochs: int
    n_epochs_early: int
    """Under EARLY_STOP."""
    n_train_downscaled: int | None
    """Training images under DOWNSCALE, which also halves every width; None: all."""
    n_validation_quick: int
    """Validation images under QUICK_EVAL."""
    batch_size: int
    augmentation: Augmentation | None = None
    label_smoothing: float = 0.0
    precision: str = "float32"
    """``float32``, ``bfloat16`` (by torch's autocast) or ``auto`` (`nas.training.precision`)."""

    def n_batches(self, n_images: int) -> int:
        """Returns the steps of an epoch: the number of full batches, at least 1."""
        return max(1, n_images // self.batch_size)


def optimizer_of(network: nn.Module, point: Point) -> torch.optim.Optimizer:
    """Returns SGD with Nesterov momentum. The point's learning rate is the peak of its schedule."""
    return torch.optim.SGD(
        network.parameters(),
        lr=point["learning_rate"],
        momentum=MOMENTUM,
        nesterov=True,
        weight_decay=point.get("weight_decay", 5e-4),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state in which a training starts.

    Attributes:
        optimizer: The optimizer of the network's parameters.
        rules: The rules by which the network inherited.
        report: The report of the inheritance; None: it inherited nothing.
    """

    optimizer: torch.optim.Optimizer
    rules: Rules = field(default_factory=Rules)
    report: InheritanceReport | None = None

    def rate(self, step: int, n_steps: int, time_share: float = 0.0) -> float:
        """Returns the share of the peak learning rate at a step, with the rules' warm-up.

        ``time_share``: the share of the time that has passed, if it is limited.
        """
        share = one_cycle(max(step, time_share * n_steps - 1), n_steps)  # at most a step behind
        return share * warm_up(self.rules, self.report, step)


def fit(
    network: nn.Module, images: Images, recipe: Recipe, *, n_steps: int, run: TrialRun, start: Start
) -> Generator[int, None, None]:
    """Trains the network in place. Yields the number of each finished epoch, from 1.

    The last one may be a part of an epoch. After inheritance, the rules decide on warm-up and frozen weights. The order
    and the augmentation of images depend only on ``run.seed``. The last images of an epoch that do not fill a batch are
    left out. The training resumes from an earlier attempt, and saves resume points except after the last epoch.

    If the time is limited, it ends then (Li, Yumer and Ramanan 2020, arXiv:1905.04753), but not before the epochs of
    EARLY_STOP. The learning rate follows the share of the time that has passed, where that exceeds the share of the
    steps.
    """
    if run.device == "cpu":
        keep_freed_memory()
    n_batches = recipe.n_batches(len(images))
    n_least = min(recipe.n_epochs_early, recipe.n_epochs) * n_batches
    n_epochs = math.ceil(n_steps / n_batches)
    shuffling = torch.Generator().manual_seed(run.seed)
    rounding = precision_of(recipe.precision, run.device)
    optimizer = start.optimizer
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: start.rate(step, n_steps, run.time_share))
    for epoch in resumed_epochs(run, n_epochs, network, optimizer, schedule, shuffling):
        begin_epoch(network, start.report, start.rules, epoch)
        batches = one_epochs_batches(len(images), recipe, shuffling).to(run.device)
        for batch in batches[: n_steps - (epoch - 1) * n_batches]:
            pixels, labels = images.pixels[batch], images.labels[batch]
            if recipe.augmentation is not None:
                pixels = recipe.augmentation.apply(pixels, shuffling)
            with rounding:
                logits = network(pixels)
            loss = functional.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if schedule.last_epoch >= n_least and run.time_share >= 1:
                break
        if run.train_until is not None and schedule.last_epoch >= n_least:
            run.trained_share = schedule.last_epoch / (recipe.n_epochs * n_batches)
        yield epoch
        if run.has_trained_its_time:
            break


def one_epochs_batches(n_images: int, recipe: Recipe, shuffling: torch.Generator) -> Tensor:
    """Returns the indices of an epoch's images in a random order: ``(batches, images of a batch)``."""
    n_batches, batch_size = recipe.n_batches(n_images), min(recipe.batch_size, n_images)
    order = torch.randperm(n_images, generator=shuffling)[: n_batches * batch_size]
    return order.view(n_batches, batch_size)


def one_cycle(step: float, n_steps: int) -> float:
    """Returns the share of the peak learning rate at a step, counted from 0.

    It rises in the first fifth, and then falls almost to 0.
    """
    rise = _WARM_UP * n_steps
    return min((step + 1) / max(rise, 1.0), (n_steps - step) / (n_steps - rise)) if step < n_steps else 0.0


def score(network: nn.Module, images: Images, precision: str = "float32") -> float:
    """Returns the share of correctly classified images; NaN if an output is not finite."""
    return evaluate(network, images, precision)["accuracy"]


def evaluate(network: nn.Module, images: Images, precision: str = "float32") -> dict[str, float]:
    """Returns the ``accuracy`` and the mean cross-entropy, ``loss``; both NaN if an output is not finite.

    The images are taken in order, in batches of nearly equal size, at most 500. A network without running statistics
    normalizes each batch by the batch's own.
    """
    rounding = precision_of(precision, images.pixels.device.type)
    network.eval()
    found = torch.zeros(3, device=images.pixels.device)  # right, summed loss, batches with numbers that are not finite
    n_batches = math.ceil(len(images) / _SCORED_AT_ONCE)
    with torch.no_grad():
        for pixels, labels in zip(
            images.pixels.tensor_split(n_batches), images.labels.tensor_split(n_batches), strict=True
        ):
            with rounding:
                logits = network(pixels).float()  # (at most 500, 10)
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            found += torch.stack([(logits.argmax(1) == labels).sum(), loss, ~logits.isfinite().all()])
    n_right, total_loss, n_failed = found.tolist()  # the only time that a GPU is waited for
    if n_failed:
        return {"accuracy": math.nan, "loss": math.nan}
    return {"accuracy": n_right / len(images), "loss": total_loss / len(images)}
