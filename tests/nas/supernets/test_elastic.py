"""Elastic layers: a smaller network is a part of the largest, as inheritance takes it, and computes the same."""

from __future__ import annotations

import pickle
import random
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rest, Rules
from nas.supernets.choices import LayerChoice
from nas.supernets.elastic_blocks import ElasticAttention, ElasticDepth
from nas.supernets.elastic_layers import ElasticConv2d, ElasticLinear
from nas.supernets.elastic_norms import ElasticBatchNorm1d, ElasticBatchNorm2d, ElasticGroupNorm, ElasticLayerNorm
from nas.supernets.module import select, space_of, subnet
from nas.supernets.sizes import Elastic

N_DRAWS = 1000


def sizes(rng: random.Random, *allowed: int) -> tuple[int, ...]:
    """Two or more of these sizes."""
    return tuple(sorted(rng.sample(allowed, rng.randint(2, len(allowed)))))


def image_network(rng: random.Random) -> nn.Module:
    """A network of convolutions with elastic width, kernel and depth, a choice of layers, and all norms for images."""
    first, second = (Elastic(name, sizes(rng, 2, 4, 6, 8)) for name in ("first", "second"))
    kernel, depth = Elastic("kernel", sizes(rng, 1, 3, 5)), Elastic("depth", sizes(rng, 1, 2, 3))
    norm = rng.choice(
        [
            lambda: ElasticBatchNorm2d(first, affine=rng.random() < 0.5, track_running_stats=True),
            lambda: ElasticGroupNorm(2, first),
        ]
    )
    alike = [
        nn.Sequential(ElasticConv2d(first, first, kernel, depthwise=True), norm(), nn.ReLU())
        for _ in range(depth.largest)
    ]
    options = {"narrow": ElasticConv2d(first, second, 1, bias=False), "wide": ElasticConv2d(first, second, kernel)}
    return nn.Sequential(
        ElasticConv2d(1, first, kernel, stride=rng.choice((1, 2))),
        ElasticDepth(depth, alike),
        LayerChoice(options, "layer"),
        nn.Flatten(),
    )


def token_network(rng: random.Random) -> nn.Module:
    """A transformer block of elastic width, heads and inner width."""
    width, inner = Elastic("width", sizes(rng, 2, 3, 5, 8)), Elastic("inner", sizes(rng, 2, 4, 8))
    heads = Elastic("heads", sizes(rng, 1, 2, 3, 4))
    return nn.Sequential(
        ElasticLinear(3, width, bias=rng.random() < 0.5),
        ElasticLayerNorm(width),
        ElasticAttention(width, heads, rng.choice((1, 2, 4)), is_causal=rng.random() < 0.5),
        ElasticLinear(width, inner),
        nn.GELU(),
        ElasticLinear(inner, 2),
    )


def filled(network: nn.Module, seed: int) -> nn.Module:
    """The network with random values in all its tensors."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
        else:
            tensor.fill_(seed)
    return network


def draw(seed: int) -> tuple[nn.Module, Point, Tensor]:
    """A network with random sizes and values, a point of its space, and an input."""
    rng = random.Random(seed)
    is_image = rng.random() < 0.5
    network = filled(image_network(rng) if is_image else token_network(rng), seed)
    inputs = torch.rand((2, 1, 6, 6) if is_image else (2, 4, 3), generator=torch.Generator().manual_seed(seed))
    return network, space_of(network).sample(rng), inputs


def inherited(plain: nn.Module, network: nn.Module, rest: Rest) -> tuple[nn.Module, float]:
    """A network like this one with other values, after it inherited; and the share inherited."""
    child = filled(deepcopy(plain), 12345)
    report = inherit(child, [network.state_dict()], rules=Rules(rest=rest))
    return child, report.share


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether both have the same tensors under the same names, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def check_draws(seeds: range) -> None:
    """Compares the subnets of random networks with children that inherit."""
    for seed in seeds:
        network, point, _ = draw(seed)
        plain = subnet(network, point)
        child, share = inherited(plain, network, "own")
        assert same(child, plain), (seed, point)
        assert share == 1.0, (seed, point)


def test_a_subnet_is_the_child_that_inherits() -> None:
    """In random networks the tensors of a subnet are those that inheritance gives, bit for bit."""
    check_draws(range(60))


@pytest.mark.slow
def test_hundreds_of_subnets() -> None:
    """The same holds in 300 more random networks."""
    check_draws(range(60, 360))


def test_other_rules_give_other_tensors() -> None:
    """With the default rules, which scale rows of lost inputs, most of the same children differ."""
    drawn = [draw(seed) for seed in range(20)]
    subnets = [(network, subnet(network, point)) for network, point, _ in drawn]

    assert sum(not same(inherited(plain, network, "scaled")[0], plain) for network, plain in subnets) > 10


@pytest.mark.parametrize("training", [False, True])
def test_a_subnet_computes_what_the_network_computes(training: bool) -> None:
    """The selected network and the subnet of the same point give the same outputs and running statistics."""
    for seed in range(40):
        network, point, inputs = draw(seed)
        network.train(training)
        select(network, point)
        plain = subnet(network, point)
        torch.testing.assert_close(network(inputs), plain(inputs))
        assert same(subnet(network, point), plain), seed


def test_the_largest_is_selected_first() -> None:
    """Without a selection all sizes are the largest."""
    width = Elastic("width", (2, 4))
    network = nn.Sequential(ElasticLinear(3, width), ElasticBatchNorm1d(width), ElasticLinear(width, 1))
    inputs = torch.rand(5, 3)
    before = network(inputs)
    select(network, {"width": 4})

    torch.testing.assert_close(network(inputs), before)
    assert subnet(network, {"width": 4})(inputs).equal(before)


def test_gradients_reach_the_part_that_ran() -> None:
    """A step of a small network has gradients in its own part of a tensor, and zeros elsewhere."""
    layer = ElasticConv2d(1, Elastic("width", (2, 4)), Elastic("kernel", (3, 5)))
    select(layer, {"width": 2, "kernel": 3})
    layer(torch.rand(1, 1, 8, 8)).sum().backward()

    assert layer.weight.grad is not None
    ran = torch.zeros(4, 1, 5, 5, dtype=torch.bool)
    ran[:2, :, 1:4, 1:4] = True
    assert layer.weight.grad[ran].ne(0).all()
    assert layer.weight.grad[~ran].eq(0).all()


def test_a_subnet_is_a_copy_of_plain_modules() -> None:
    """A subnet has torch's own layers, and training it leaves the supernet as it was; both can be pickled."""
    network, point, inputs = draw(4)
    before = deepcopy(network.state_dict())
    plain = pickle.loads(pickle.dumps(subnet(network, point)))
    plain(inputs).sum().backward()
    torch.optim.SGD(plain.parameters(), 1.0).step()

    owners = [module for module in plain.modules() if [*module.parameters(recurse=False)]]
    assert all(type(module).__module__.startswith("torch.nn.") for module in owners)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert same(pickle.loads(pickle.dumps(network)), network)


def test_space_of_a_mixture() -> None:
    """Choices of layers and elastic sizes are parameters of one space; sizes without a gap are a range."""
    width, depth = Elastic("width", (4, 8)), Elastic("depth", (1, 2, 3))
    options = {"linear": ElasticLinear(width, width), "skip": nn.Identity()}
    network = nn.Sequential(
        ElasticLinear(2, width), ElasticDepth(depth, [LayerChoice(options, f"layer_{i}") for i in range(3)])
    )

    assert str(space_of(network)) == (
        "ParameterSpace({'width': one of 4, 8, 'depth': an int from 1 to 3, 'layer_0': one of 'linear', 'skip', "
        "'layer_1': one of 'linear', 'skip', 'layer_2': one of 'linear', 'skip'})"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Elastic("width", (8,)), r"Elastic\('width'\): sizes=\(8,\): must be at least two ascending"),
        (lambda: Elastic("width", (8, 4)), "must be at least two ascending whole numbers from 1"),
        (lambda: Elastic("width", (8, 16), factor=0), "factor=0: must be a whole number from 1"),
        (lambda: ElasticConv2d(1, 2, Elastic("kernel", (2, 3))), "must be odd numbers"),
        (lambda: ElasticConv2d(1, 2, depthwise=True), "must have in_channels=1 also as out_channels, not 2"),
        (lambda: ElasticGroupNorm(4, Elastic("width", (4, 6))), r"n_groups=4: must divide each of the sizes \[4, 6\]"),
        (
            lambda: ElasticDepth(Elastic("depth", (1, 3)), [nn.ReLU()]),
            "1 layers: must be 3, the largest size of 'depth'",
        ),
    ],
)
def test_mistakes(make: object, said: str) -> None:
    """Sizes that can't be are refused by name."""
    assert callable(make)
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize("point", [{}, {"width": 6}, {"width": "8"}, {"width": True}])
def test_points_outside_the_space(point: Point) -> None:
    """A point without the size, or with another one, is refused, and the selection stays."""
    layer = ElasticLinear(2, Elastic("width", (4, 8)))
    select(layer, {"width": 4})
    with pytest.raises(PointError, match="width"):
        select(layer, point)
    with pytest.raises(PointError, match="width"):
        subnet(layer, point)

    assert layer(torch.rand(1, 2)).shape == (1, 4)
