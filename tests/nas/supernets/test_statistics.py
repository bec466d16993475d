"""Batch statistics of shared weights."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from nas.supernets.module import select, space_of, subnet
from nas.supernets.operations import Operations
from nas.supernets.statistics import batch_statistics, panel_score, recalibrate, score
from tests.support.supernets import CellNetwork, images

TRACKING = Operations(affine=True, track_running_stats=True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Gives each test the same weights in each run."""
    torch.manual_seed(0)


def batches(n: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Returns random images with random targets."""
    return [(images(size, seed), torch.arange(size) % 3) for seed in range(n)]


@pytest.mark.parametrize("operations", [Operations(), TRACKING])
def test_a_subnet_scores_as_its_selection(operations: Operations) -> None:
    """Supernet and subnet have the same score, bit for bit, whatever was scored and trained before."""
    network = CellNetwork(operations).train()
    points = [space_of(network).sample(random.Random(seed)) for seed in range(3)]
    select(network, points[0])
    network(images())  # changes running statistics
    alone = [panel_score(subnet(network, point), [point], batches(3)) for point in points]

    assert [panel_score(network, [point], batches(3)) for point in points] == alone


def test_score_of_a_panel_is_the_mean_of_its_points() -> None:
    """A supernet's score is the mean over the subnets of a panel."""
    network = CellNetwork()
    points = [space_of(network).sample(random.Random(seed)) for seed in range(3)]
    own = [score(subnet(network, point), batches(2)) for point in points]

    assert panel_score(network, points, batches(2)) == {name: fmean(one[name] for one in own) for name in own[0]}


def test_running_statistics_count_in_the_score_of_one_network() -> None:
    """A network of its own is scored with its running statistics, a subnet with those of the batch."""
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3))
    inputs, targets = 5 + images(8), torch.arange(8) % 3
    network(inputs)
    scores = [score(network, [(inputs, targets)]), panel_score(network, [{}], [(inputs, targets)])]
    losses = [nn.functional.cross_entropy(network.train(mode)(inputs), targets) for mode in (False, True)]

    assert [found["loss"] for found in scores] == pytest.approx([loss.item() for loss in losses], abs=1e-6)
    assert abs(losses[0] - losses[1]) > 0.001


def test_scores_do_not_change_the_network() -> None:
    """Running statistics and modes are those before the score."""
    network = CellNetwork(TRACKING).train()
    network.first.eval()
    point = space_of(network).sample(random.Random(0))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    panel_score(network, [point], batches(2))
    score(network, batches(2))

    assert all(tensor.equal(before[name]) for name, tensor in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes


def test_score_is_the_mean_over_examples() -> None:
    """Batches of different sizes count by their examples."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    given = [*batches(1, 2), *batches(1, 6)]
    outputs = torch.cat([network(inputs) for inputs, _ in given])
    targets = torch.cat([targets for _, targets in given])

    assert score(network, given)["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, targets).item())
    assert score(network, given)["accuracy"] == pytest.approx((outputs.argmax(1) == targets).double().mean().item())


def test_broken_weights_score_nan() -> None:
    """A network with outputs that are not finite has no score."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.constant_(network[1].weight, math.inf)

    assert all(math.isnan(value) for value in score(network, batches(1)).values())


def test_batch_statistics_depend_on_the_batch() -> None:
    """With batch statistics, an image's output depends on the others; dropout is off."""
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5)).train()
    x = images(4)
    with batch_statistics(network):
        whole, half = network(x), network(x[:2])

    assert not torch.allclose(whole[:2], half)
    torch.testing.assert_close(whole, (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt())


@pytest.mark.parametrize("operations", [Operations(), TRACKING])
def test_recalibrated_statistics_are_means_of_batches(operations: Operations) -> None:
    """Afterwards, evaluation of one batch gives the outputs of training, and those of single images agree."""
    network = CellNetwork(operations)
    alone = subnet(network, dict.fromkeys(space_of(network).sample(random.Random(0)), "nor_conv_3x3")).train()
    x = images(64)
    trained = alone(x)
    recalibrate(alone, [x])
    assert alone.training
    alone.eval()

    torch.testing.assert_close(alone(x), trained, rtol=0.02, atol=0.02)  # the running variance is n / (n - 1) of it
    torch.testing.assert_close(torch.cat([alone(one) for one in x.split(1)]), alone(x), rtol=1e-4, atol=1e-4)


def test_recalibration_keeps_the_number_format_and_needs_a_batch() -> None:
    """A network of float64 gets statistics of float64. Without a batch it stays as it is, with a clear error."""
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).double()
    with pytest.raises(ValueError, match="batches: must have at least one batch"):
        recalibrate(network, [])
    assert network[1].running_mean is None
    x = torch.randn(8, 3, 5, 5, dtype=torch.float64)
    recalibrate(network, (batch for batch in x.split(4)))

    torch.testing.assert_close(network[1].running_mean, network[0](x).mean((0, 2, 3)))
