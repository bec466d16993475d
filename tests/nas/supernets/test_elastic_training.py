"""Several sizes of a network by one training, on digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from nas.core.point import Point
from nas.problems.digits import DigitsProblem
from nas.supernets.choices import LayerChoice
from nas.supernets.elastic import extremes
from nas.supernets.elastic_blocks import ElasticDepth
from nas.supernets.elastic_layers import ElasticLinear
from nas.supernets.elastic_norms import ElasticBatchNorm1d
from nas.supernets.module import select, space_of, subnet
from nas.supernets.paths import ListedPaths, PathSampler, SandwichPaths
from nas.supernets.sizes import Elastic
from nas.supernets.statistics import score
from nas.supernets.training import PathTraining, train_epoch

SIZES: list[Point] = [{"width": width, "depth": depth} for width, depth in ((8, 1), (16, 1), (24, 2), (32, 2), (48, 3))]
Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads are slower where other tests run beside."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@cache
def digits() -> tuple[Batch, Batch]:
    """Training images and all others, flat."""
    train, validation = DigitsProblem().load_train()
    test = DigitsProblem().load_test()
    one, *others = ((part.pixels.flatten(1).float() / 16, part.labels) for part in (train, validation, test))
    return one, (torch.cat([pixels for pixels, _ in others]), torch.cat([labels for _, labels in others]))


def elastic_mlp() -> nn.Module:
    """Residual layers of elastic width, of which the first run."""
    width = Elastic("width", tuple(size["width"] for size in SIZES))
    layers = [nn.Sequential(ElasticLinear(width, width), ElasticBatchNorm1d(width), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(
        ElasticLinear(64, width),
        ElasticBatchNorm1d(width),
        nn.ReLU(),
        ElasticDepth(Elastic("depth", (1, 2, 3)), layers),
        ElasticLinear(width, 10),
    )


def train(network: nn.Module, paths: PathSampler, *, distill: bool = False, n_epochs: int = 12) -> None:
    """Trains by paths, with a rate that falls to 0."""
    pixels, labels = digits()[0]
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    n_steps = len(pixels) // 64
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=n_epochs * n_steps + 1)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(n_epochs):
        order = torch.randperm(len(pixels), generator=generator)[: n_steps * 64].view(n_steps, 64)
        train_epoch(
            network, ((pixels[own], labels[own]) for own in order), optimizer,
            lambda step, epoch=epoch: paths(epoch * n_steps + step),
            settings=PathTraining(distill=distill), after_step=schedule.step,
        )  # fmt: skip


def sandwich(network: nn.Module, **others: str) -> SandwichPaths:
    """The largest and the smallest network, and two of the five sizes."""
    largest, smallest = extremes(network, others)
    sizes = [{**size, **others} for size in SIZES]
    return SandwichPaths(space=space_of(network), seed=0, largest=largest, smallest=smallest, accept=sizes.__contains__)


def accuracy(network: nn.Module) -> float:
    return score(network, [digits()[1]])["accuracy"]


@pytest.mark.slow
def test_five_sizes_by_one_training() -> None:
    """Trained by the sandwich rule with distillation, each size is as good as alone; without it small ones fail."""
    torch.manual_seed(0)
    network, largest_only = elastic_mlp(), elastic_mlp()
    train(network, sandwich(network), distill=True)
    train(largest_only, ListedPaths([SIZES[-1]]))
    alone = [subnet(elastic_mlp(), size) for size in SIZES]
    for own, size in zip(alone, SIZES, strict=True):
        train(own, ListedPaths([size]))

    shared = [accuracy(subnet(network, size)) for size in SIZES]
    assert min(shared) > 0.9
    assert all(one > accuracy(own) - 0.03 for one, own in zip(shared, alone, strict=True))
    assert accuracy(subnet(largest_only, SIZES[-1])) > 0.95
    assert accuracy(subnet(largest_only, SIZES[0])) < 0.6
    select(network, SIZES[1])
    assert accuracy(network) == pytest.approx(shared[1], abs=0.003)


def test_sizes_and_choices_in_one_training() -> None:
    """A network with a choice of layers beside elastic sizes is trained by paths, and each of its subnets works."""
    torch.manual_seed(0)
    width = Elastic("width", (16, 48))
    options = {"plain": ElasticLinear(width, width), "skip": nn.Identity()}
    network = nn.Sequential(
        ElasticLinear(64, width),
        ElasticBatchNorm1d(width),
        nn.ReLU(),
        LayerChoice(options, "layer"),
        ElasticLinear(width, 10),
    )
    largest, smallest = extremes(network, {"layer": "plain"})
    paths = SandwichPaths(space=space_of(network), seed=0, largest=largest, smallest=smallest)
    train(network, paths, distill=True, n_epochs=5)

    points = list(space_of(network).points())
    assert len(points) == 4
    assert min(accuracy(subnet(network, point)) for point in points) > 0.85
    assert {len(subnet(network, point).state_dict()) for point in points} == {6, 8}
