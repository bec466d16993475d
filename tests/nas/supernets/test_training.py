"""Training of shared weights by paths."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.elastic_layers import ElasticLinear
from nas.supernets.module import space_of, subnet
from nas.supernets.paths import ListedPaths, SandwichPaths, UniformPaths
from nas.supernets.sizes import Elastic
from nas.supernets.training import PathTraining, train_epoch, train_step
from tests.support.supernets import CellNetwork, images

SGD = "SGD"


def optimizer_of(network: nn.Module, kind: str) -> torch.optim.Optimizer:
    """Returns an optimizer with momentum and weight decay."""
    if kind == SGD:
        return torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    return torch.optim.AdamW(network.parameters(), 0.01, weight_decay=0.1)


def batches(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields random batches of six images."""
    for seed in range(n):
        yield images(seed=seed), torch.randint(3, (6,), generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 999), kind=st.sampled_from([SGD, "AdamW"]))
@settings(max_examples=10)
def test_unsampled_parameters_keep_their_bits(seed: int, kind: str) -> None:
    """A step changes no parameter outside its points' subnets, after steps in which those had momentum."""
    network = CellNetwork()
    optimizer = optimizer_of(network, kind)
    paths = UniformPaths(space_of(network), seed)
    train_epoch(network, batches(6), optimizer, paths)
    points = [*paths(6), *paths(7)]
    used = {name for point in points for name, _ in subnet(network, point).named_parameters()}
    before = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    train_step(network, next(batches(1)), optimizer, points, settings=PathTraining())
    changed = {name for name, tensor in network.named_parameters() if not tensor.equal(before[name])}

    assert changed <= used
    assert {"stem.weight", "head.weight"} <= changed


def test_an_epoch_is_determined_by_its_seed() -> None:
    """Two epochs of the same seeds give the same weights, and another seed gives others."""
    found = []
    for seed in (1, 1, 2):
        network = CellNetwork()
        train_epoch(network, batches(4), optimizer_of(network, SGD), UniformPaths(space_of(network), seed))
        found.append(torch.cat([tensor.flatten() for tensor in network.parameters()]))

    assert found[0].equal(found[1])
    assert not found[0].equal(found[2])


def test_one_path_trains_as_its_subnet_alone() -> None:
    """A supernet that trains one point only gets the weights of this point's network trained alone."""
    network = CellNetwork()
    point = space_of(network).sample(random.Random(5))
    alone = subnet(network, point)
    for one in (network, alone):
        train_epoch(one, batches(5), optimizer_of(one, SGD), ListedPaths([point]))
    trained = dict(network.named_parameters())

    assert all(tensor.equal(trained[name]) for name, tensor in alone.named_parameters())


def test_the_largest_point_teaches_the_others() -> None:
    """With distillation, only the first point of a step learns the targets."""
    network = CellNetwork()
    space = space_of(network)
    skips, convs = (dict.fromkeys(space.sample(random.Random(0)), kind) for kind in ("skip_connect", "nor_conv_3x3"))
    paths = SandwichPaths(space=space, seed=0, largest=convs, smallest=skips, n_random=0)
    assert paths(3) == [convs, skips]

    def loss_of_targets(outputs: Tensor, targets: Tensor) -> Tensor:
        asked.append(len(targets))
        return nn.functional.cross_entropy(outputs, targets)

    asked: list[int] = []
    settings = PathTraining(loss=loss_of_targets, distill=True)
    train_epoch(network, batches(3), optimizer_of(network, SGD), paths, settings=settings)

    assert asked == [6, 6, 6]


def test_distillation_of_tokens() -> None:
    """Classes in the last dimension give the step of the same tokens as single examples."""
    found = []
    for is_flat in (True, False):
        torch.manual_seed(0)
        width = Elastic("width", (2, 4))
        network = nn.Sequential(ElasticLinear(3, width), ElasticLinear(width, 5))
        inputs, targets = torch.rand(2, 6, 3), torch.randint(5, (2, 6))
        batch = (inputs.flatten(0, 1), targets.flatten()) if is_flat else (inputs, targets)
        own = PathTraining(
            loss=lambda outputs, targets: nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten()),
            distill=True, class_dim=-1,
        )  # fmt: skip
        loss = train_step(network, batch, optimizer_of(network, SGD), [{"width": 4}, {"width": 2}], settings=own)
        found.append((loss, *network.parameters()))

    torch.testing.assert_close(found[0], found[1])


def test_gradients_are_clipped() -> None:
    """A step of plain gradient descent is no longer than the rate times the norm."""
    network = CellNetwork()
    before = [tensor.detach().clone() for tensor in network.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), 1.0)
    points = [space_of(network).sample(random.Random(1))]
    train_step(network, next(batches(1)), optimizer, points, settings=PathTraining(clip_norm=0.01))
    moved = [(tensor - old).norm() for tensor, old in zip(network.parameters(), before, strict=True)]

    assert torch.stack(moved).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("make", "option"),
    [(lambda: PathTraining(clip_norm=0.0), "clip_norm=0.0"), (lambda: PathTraining(precision="half"), "'half'")],
)
def test_settings_are_checked(make: Callable[[], PathTraining], option: str) -> None:
    """Values that are not allowed are refused by name."""
    with pytest.raises(ConfigurationError, match=option):
        make()


def test_a_schedule_steps_with_the_batches() -> None:
    """The function for the schedule is called once a batch."""
    network = CellNetwork()
    optimizer = optimizer_of(network, SGD)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
    point: Point = space_of(network).sample(random.Random(2))
    train_epoch(network, batches(3), optimizer, ListedPaths([point]), after_step=schedule.step)

    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4)
