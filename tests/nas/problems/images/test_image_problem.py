"""The network that two problems share, and its training."""

from __future__ import annotations

import math

import pytest
import torch

from nas.inheritance.inherit import inherit
from nas.problems.images.conv_net import ConvNet
from nas.problems.images.fit import one_cycle, score
from nas.problems.images.pixels import Images

POINT = {
    "n_blocks": 2, "width_1": 8, "kernel_1": 3, "depth_1": 1, "width_2": 16, "kernel_2": 3, "depth_2": 1,
    "norm": "batch", "dropout": 0.0, "learning_rate": 0.1,
}  # fmt: skip


def network(seed: int = 0, **changes: object) -> ConvNet:
    torch.manual_seed(seed)
    return ConvNet({**POINT, **changes}, n_halves=2, pixel_mean=100.0, pixel_std=50.0)


def images(n: int) -> Images:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 1, 12, 12), dtype=torch.uint8, generator=random)
    return Images(pixels, torch.randint(0, 10, (n,), generator=random))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_deeper_child_starts_as_its_parent(norm: str) -> None:
    """A child with added residual units has its parent's output, and can learn to differ."""
    parent, child = network(norm=norm), network(seed=1, norm=norm, depth_1=2, depth_2=3)
    pixels = images(20).pixels
    inherit(child, [parent.state_dict()])

    assert torch.equal(child.eval()(pixels), parent.eval()(pixels))
    child(pixels).square().mean().backward()
    assert all(unit.norm.weight.grad.abs().sum() > 0 for block in child.blocks for unit in block.units)


def test_groups_keep_their_channels() -> None:
    """A wider child's group norm treats inherited channels as its parent's does."""
    parent, child = network(norm="group"), network(seed=1, norm="group", width_1=24)
    inherit(child, [parent.state_dict()])
    pixels = images(5).pixels.float()

    channels = [net.blocks[0].norm(net.blocks[0].conv(pixels)) for net in (parent, child)]
    assert torch.allclose(channels[0], channels[1][:, :8], atol=1e-5)


def test_score_is_the_share_of_right_answers() -> None:
    """The score counts each image once, also in a partial batch, and leaves the network unchanged."""
    net, labeled = network(), images(1201)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    answers = net.eval()(labeled.pixels).argmax(1)

    assert score(net, labeled) == (answers == labeled.labels).sum().item() / 1201
    assert score(net, Images(labeled.pixels, answers)) == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_output_that_is_not_finite_scores_nan() -> None:
    """A diverged network has score NaN, so the trial fails."""
    net = network()
    with torch.no_grad():
        net.head.bias[3] = math.nan

    assert math.isnan(score(net, images(10)))


@pytest.mark.parametrize("n_steps", [1, 2, 5, 100])
def test_learning_rate_rises_and_falls(n_steps: int) -> None:
    """The learning rate starts low, peaks after a fifth of the steps, and ends near 0, within (0, 1]."""
    rates = [one_cycle(step, n_steps) for step in range(n_steps)]

    assert all(0.0 < rate <= 1.0 for rate in rates)
    assert rates.index(max(rates)) == max(0, n_steps // 5 - 1)
    if n_steps == 100:
        assert rates[0] == pytest.approx(1 / 20)
        assert rates[-1] == pytest.approx(1 / 80)
