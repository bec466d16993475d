"""Classification of small grey images: the network that a point describes, and its training.

The network is a chain of blocks (convolution, 2x2 max-pooling, normalisation, ReLU, then residual units of 3x3) and a
linear layer over the mean of each channel. It is made to be inherited: modules are named by the index of their block,
so that a wider or deeper child still finds its parent's, and a new residual unit starts as the identity.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.errors import ConfigurationError, TrialStopped
from nas.metric import Metric
from nas.policy import Policy
from nas.problems.base import Problem
from nas.run import TrialRun
from nas.spaces.base import Point

N_CLASSES = 10
_WARM_UP = 0.2  # share of the steps in which the learning rate rises: inherited weights survive the start
_GROUP = 4  # channels that group-norm treats as one; a fixed size, so that a wider child keeps its parent's groups


@dataclass(frozen=True, slots=True)
class Images:
    """Labelled images: ``pixels`` uint8 ``(n, 1, height, width)``, ``labels`` int64 ``(n,)``."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: slice | Tensor) -> Images:
        """Those of a slice, or of a tensor of indices."""
        return Images(self.pixels[which], self.labels[which])

    def to(self, device: str) -> Images:
        """The same images on this device."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How networks are trained: in full, and what policies make of it."""

    n_epochs: int
    n_epochs_early: int
    """Under EARLY_STOP."""
    n_train_downscaled: int
    """Training images under DOWNSCALE, which also halves every width."""
    n_validation_quick: int
    """Validation images under QUICK_EVAL."""
    batch_size: int


class ImageProblem(Problem):
    """Ten classes of small grey images, by a convolutional network; what is left to say is the data and the space.

    Trained by stochastic gradient descent with Nesterov momentum and a one-cycle learning rate (Smith 2018,
    arXiv:1803.09820) whose peak is the point's ``learning_rate``. A fidelity that the tuner asks for is a share of
    ``recipe.n_epochs`` and goes before EARLY_STOP. Networks take raw pixels: uint8 ``(batch, 1, height, width)``.
    """

    OBJECTIVES: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy"),
        Metric("parameters", "minimize"),
        Metric("flops", "minimize"),
        Metric("latency_s", "minimize"),
    )
    metrics = OBJECTIVES[:1]
    policies = frozenset(
        {Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.SKIP_TRAIN, Policy.QUICK_EVAL, Policy.DOWNSCALE}
    )
    recipe: Recipe
    pixel_mean: ClassVar[float]
    pixel_std: ClassVar[float]
    image_size: ClassVar[int]
    """Pixels of height and of width."""

    @abstractmethod
    def load_train(self) -> tuple[Images, Images]:
        """The images to train on and those to validate with, each in a random but fixed order."""

    @abstractmethod
    def load_test(self) -> Images:
        """The held-out test images."""

    def choose_objectives(self, names: Sequence[str] | None) -> None:
        """Makes these the metrics, in this order; None: accuracy alone.

        Raises:
            ConfigurationError: a name that is none, or twice; or accuracy, for which it trains, is missing.
        """
        known = {metric.name: metric for metric in self.OBJECTIVES}
        chosen = ["accuracy"] if names is None else [names] if isinstance(names, str) else list(names)
        if "accuracy" not in chosen or len({*chosen}) < len(chosen) or not {*chosen} <= known.keys():
            raise ConfigurationError(
                f"problem.objectives ({chosen}) must be accuracy and any of parameters, flops, latency_s, each once: "
                "problem.objectives=[accuracy,parameters]"
            )
        self.metrics = tuple(known[name] for name in chosen)

    @cached_property
    def data(self) -> tuple[Images, Images]:
        """What ``load_train`` gives, loaded when first asked for and kept for every trial that follows."""
        return self.load_train()

    def build(self, point: Point, n_halves: int = 2) -> ConvNet:
        """The network of this point, freshly initialised from torch's own generator; of so many halves of its width."""
        return ConvNet(point, n_halves=n_halves, pixel_mean=self.pixel_mean, pixel_std=self.pixel_std)

    def build_for(self, run: TrialRun) -> ConvNet:
        """The network that this trial trains: under DOWNSCALE each width is halved."""
        return self.build(run.point, run.scale(halves_of_width=2, downscaled=1))

    def example_inputs(self) -> tuple[Tensor, ...]:
        """One blank image."""
        return (torch.zeros(1, 1, self.image_size, self.image_size, dtype=torch.uint8),)

    def train(self, run: TrialRun) -> dict[str, float]:
        """Trains the point as the policies say; a network whose output is not finite scores NaN, and so fails."""
        train, validation = self.data
        train = train[: run.scale(images=len(train), downscaled=self.recipe.n_train_downscaled)].to(run.device)
        validation = run.subset(validation, quick=self.recipe.n_validation_quick).to(run.device)

        network = self.build_for(run).to(run.device)
        if Policy.SHARE_PARAMS in run.policies and run.resumed_from() is None:
            run.inherit(network)
        n_epochs = run.epochs(full=self.recipe.n_epochs, early=self.recipe.n_epochs_early)
        accuracy = score(network, validation) if n_epochs == 0 else math.nan
        for epoch in fit(network, train, self.recipe, n_epochs=n_epochs, run=run):
            accuracy = score(network, validation)
            try:
                run.report(epoch, accuracy=accuracy)
            except TrialStopped:
                run.save(network)
                raise
        run.save(network)
        return {"accuracy": accuracy}

    def test(self, run: TrialRun) -> dict[str, float]:
        """The accuracy on the held-out test images."""
        return {"accuracy": score(run.restore(self.build_for(run)), self.load_test().to(run.device))}

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The trained network, and two validation images."""
        network = run.restore(self.build_for(run)).eval()
        return network, (self.data[1].pixels[:2].to(run.device),)


class ConvNet(nn.Module):
    """The network of a point: ``n_blocks`` blocks, then dropout and a linear layer.

    Block ``i`` counts from 1 and reads ``width_i``, ``kernel_i`` and, where the space has it, ``depth_i``.
    """

    def __init__(self, point: Point, *, n_halves: int, pixel_mean: float, pixel_std: float) -> None:
        super().__init__()
        self.pixel_mean, self.pixel_std = pixel_mean, pixel_std
        self.blocks = nn.ModuleList()
        n_channels = 1
        for i in range(1, point["n_blocks"] + 1):
            width = point[f"width_{i}"] * n_halves // 2
            depth = point.get(f"depth_{i}", 1)
            self.blocks.append(Block(n_channels, width, kernel=point[f"kernel_{i}"], depth=depth, norm=point["norm"]))
            n_channels = width
        self.dropout = nn.Dropout(point["dropout"])
        self.head = nn.Linear(n_channels, N_CLASSES)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.5 times as fast on a CPU

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits ``(batch, 10)`` of raw pixels ``(batch, 1, height, width)``."""
        x = (pixels.float() - self.pixel_mean) / self.pixel_std
        x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.dropout(x.mean((2, 3))))  # (batch, width) to (batch, 10)
        return logits


class Block(nn.Module):
    """A convolution that halves height and width, and ``depth - 1`` residual units."""

    def __init__(self, n_inputs: int, width: int, *, kernel: int, depth: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_inputs, width, kernel, padding=kernel // 2, bias=False)
        self.norm = _norm(norm, width)
        self.units = nn.ModuleList(ResidualUnit(width, norm) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, n_inputs, height, width)`` to ``(batch, width, height // 2, width // 2)``."""
        x = functional.relu(
            self.norm(functional.max_pool2d(self.conv(x), 2))
        )  # pooling first: a quarter of the work for the rest
        for unit in self.units:
            x = unit(x)
        return x


class ResidualUnit(nn.Module):
    """``relu(x + norm(conv(x)))``, where the norm's zero weight makes a fresh unit the identity."""

    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = _norm(norm, width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the shape of ``x``, which holds no negative number."""
        return functional.relu(x + self.norm(self.conv(x)))


def _norm(kind: str, width: int) -> nn.BatchNorm2d | nn.GroupNorm:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(width // _GROUP, width)


def fit(network: nn.Module, images: Images, recipe: Recipe, *, n_epochs: int, run: TrialRun) -> Iterator[int]:
    """Trains the network in place, and yields the number of each epoch, from 1, when it is done.

    The order comes from ``run.seed`` alone. The last images of an epoch that fill no batch are left out of it.
    What an earlier attempt had reached is gone on from; of what is reached now the last epoch needs no saving.
    """
    batch_size = min(recipe.batch_size, len(images))
    n_batches = len(images) // batch_size
    n_steps = n_epochs * n_batches
    shuffling = torch.Generator().manual_seed(run.seed)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=run.point["learning_rate"],
        momentum=0.9,
        nesterov=True,
        weight_decay=run.point.get("weight_decay", 5e-4),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, n_steps))
    if (resumed := run.resumed_from()) is not None:
        resumed.load(network, optimizer, schedule, shuffling)
    for epoch in range(1 if resumed is None else resumed.step + 1, n_epochs + 1):
        network.train()
        order = torch.randperm(len(images), generator=shuffling)[: n_batches * batch_size].to(run.device)
        for batch in order.view(n_batches, batch_size):
            loss = functional.cross_entropy(network(images.pixels[batch]), images.labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        yield epoch
        if epoch < n_epochs:
            run.checkpoint(epoch, network, optimizer, schedule, shuffling)


def one_cycle(step: int, n_steps: int) -> float:
    """The share of the peak learning rate at a step, from 0: up in the first fifth, then down to almost 0."""
    rise = _WARM_UP * n_steps
    return min((step + 1) / max(rise, 1.0), (n_steps - step) / (n_steps - rise)) if step < n_steps else 0.0


def score(network: nn.Module, images: Images) -> float:
    """The share of images whose label the network names; NaN where an output is not finite."""
    network.eval()
    n_right = 0
    with torch.no_grad():
        for start in range(0, len(images), 500):
            batch = images[start : start + 500]
            logits = network(batch.pixels)  # (500, 10)
            if not logits.isfinite().all():
                return math.nan
            n_right += int((logits.argmax(1) == batch.labels).sum())
    return n_right / len(images)
