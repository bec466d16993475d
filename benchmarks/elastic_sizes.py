"""Five sizes of a network by one training of shared weights, and each size trained alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from search_quality import interval
from torch import Tensor, nn

from nas.core.point import Point
from nas.problems.digits import DigitsProblem
from nas.supernets.elastic import extremes
from nas.supernets.elastic_blocks import ElasticDepth
from nas.supernets.elastic_layers import ElasticConv2d, ElasticLinear
from nas.supernets.elastic_norms import ElasticBatchNorm2d
from nas.supernets.module import space_of, subnet
from nas.supernets.paths import ListedPaths, PathSampler, SandwichPaths
from nas.supernets.sizes import Elastic
from nas.supernets.statistics import score
from nas.supernets.training import PathTraining, train_epoch

POINTS: Sequence[Point] = (
    {"width": 8, "depth": 1, "kernel": 3},
    {"width": 12, "depth": 1, "kernel": 3},
    {"width": 16, "depth": 2, "kernel": 3},
    {"width": 24, "depth": 2, "kernel": 5},
    {"width": 32, "depth": 3, "kernel": 5},
)
"""The sizes, the largest last."""
N_EPOCHS = 30
BATCH_SIZE = 64
RATE = 0.1


class Residual(nn.Module):
    """A convolution that adds to its input."""

    def __init__(self, width: Elastic, kernel: Elastic) -> None:
        super().__init__()
        self.conv = ElasticConv2d(width, width, kernel, bias=False)
        self.norm = ElasticBatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the same shape."""
        found: Tensor = self.norm(self.conv(x)).relu()
        return x + found


def elastic_network() -> nn.Module:
    """Returns a convolutional network of elastic width, depth and kernel size, for images of one channel."""
    width, kernel = Elastic("width", (8, 12, 16, 24, 32)), Elastic("kernel", (3, 5))
    return nn.Sequential(
        ElasticConv2d(1, width, bias=False),
        ElasticBatchNorm2d(width),
        nn.ReLU(),
        ElasticDepth(Elastic("depth", (1, 2, 3)), [Residual(width, kernel) for _ in range(3)]),
        nn.MaxPool2d(2),
        ElasticConv2d(width, width.times(2), kernel, bias=False),
        ElasticBatchNorm2d(width.times(2)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        ElasticLinear(width.times(2), 10),
    )


def digits() -> tuple[tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
    """Returns training images with labels, and two batches of 360 others."""
    problem = DigitsProblem()
    train, validation = problem.load_train()
    sets = [(images.pixels.float() / 16, images.labels) for images in (train, validation, problem.load_test())]
    return sets[0], sets[1:]


def _later(paths: PathSampler, n_earlier: int, step: int) -> list[Point]:
    """Returns the paths of a step after earlier steps."""
    return paths(n_earlier + step)


def train(network: nn.Module, paths: PathSampler, n_epochs: int, seed: int, *, distill: bool) -> float:
    """Trains a network on digits; returns seconds of processor time."""
    (pixels, labels), _ = digits()
    generator = torch.Generator().manual_seed(seed)
    n_steps = len(pixels) // BATCH_SIZE
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=n_epochs * n_steps + 1)
    began_s = time.process_time()
    for epoch in range(n_epochs):
        order = torch.randperm(len(pixels), generator=generator)[: n_steps * BATCH_SIZE].view(n_steps, -1)
        batches = ((pixels[own], labels[own]) for own in order)
        own_paths = partial(_later, paths, epoch * n_steps)
        train_epoch(
            network, batches, optimizer, own_paths, settings=PathTraining(distill=distill), after_step=schedule.step
        )
    return time.process_time() - began_s


def measure(seed: int, n_epochs: int = N_EPOCHS) -> dict[str, Any]:
    """Returns accuracies in percent and seconds of one seed.

    They are those of shared weights, and of each size alone, in the order of ``POINTS``.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    _, batches = digits()
    network = elastic_network()
    alone = [(subnet(elastic_network(), point), point) for point in POINTS]
    largest, smallest = extremes(network)
    paths = SandwichPaths(
        space=space_of(network), seed=seed, largest=largest, smallest=smallest, accept=POINTS.__contains__
    )
    shared_s = train(network, paths, n_epochs, seed, distill=True)
    alone_s = [train(own, ListedPaths([point]), n_epochs, seed, distill=False) for own, point in alone]
    return {
        "shared": [100 * score(subnet(network, point), batches)["accuracy"] for point in POINTS],
        "alone": [100 * score(own, batches)["accuracy"] for own, _ in alone],
        "shared_s": shared_s,
        "alone_s": alone_s,
    }


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the table of all seeds, as markdown, and the ratio of costs."""
    yield "| size | shared, % | alone, % | shared - alone | alone, s |"
    yield "| --- | --- | --- | --- | --- |"
    for index, point in enumerate(POINTS):
        shared, alone, alone_s = ([own[name][index] for own in found] for name in ("shared", "alone", "alone_s"))
        differences = [one - other for one, other in zip(shared, alone, strict=True)]
        size = ", ".join(f"{name} {value}" for name, value in point.items())
        yield (
            f"| {size} | {fmean(shared):.2f} | {fmean(alone):.2f} | "
            f"{fmean(differences):+.2f} +- {interval(differences):.2f} | {fmean(alone_s):.1f} |"
        )
    ratios = [own["shared_s"] / own["alone_s"][-1] for own in found]
    all_alone = [own["shared_s"] / sum(own["alone_s"]) for own in found]
    yield (
        f"one training of all sizes: {fmean(own['shared_s'] for own in found):.1f} s, "
        f"{fmean(ratios):.2f} +- {interval(ratios):.2f} times the largest alone, "
        f"{fmean(all_alone):.2f} times all five alone"
    )
