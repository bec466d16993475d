"""FLOPs on a path from a network's inputs to its outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from nas.training.costs import NetworkCost
from nas.training.live_flops import count_flops

CONV, HEAD = 2 * 8 * 8 * 4 * 4 * 9, 2 * 4 * 2
"""FLOPs of a 3x3 convolution of four channels on 8x8, and of the linear layer behind it."""


class Branches(nn.Module):
    """Two convolutions on the input, of which ``join`` makes the features."""

    def __init__(self, join: Callable[[Branches, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3))
        self.head = nn.Linear(4, 2)
        self._join = join

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self._join(self, x).mean((2, 3)))
        return logits


def unused(net: Branches, x: Tensor) -> Tensor:
    net.second(x)
    return torch.relu(net.first(x))


def times_zero(net: Branches, x: Tensor) -> Tensor:
    return net.first(x) + net.second(x).mul(0.0)


def behind_zeros(net: Branches, x: Tensor) -> Tensor:
    return net.first(x) + net.second(torch.zeros_like(x))


def in_place(net: Branches, x: Tensor) -> Tensor:
    y = functional.relu_(net.first(x))
    y += net.second(x)
    return y


def through_views(net: Branches, x: Tensor) -> Tensor:
    joined = torch.cat([net.first(x), net.second(x)], 1)
    return joined[:, :4] + joined.flip(1)[:, :4]


def in_a_buffer(net: Branches, x: Tensor) -> Tensor:
    buffer = torch.empty_like(x)
    buffer[:, :2], buffer[:, 2:] = net.first(x)[:, :2], net.second(x)[:, 2:]
    return buffer


def zeroed(net: Branches, x: Tensor) -> Tensor:
    """The first layer's output is set to 0 in place."""
    return net.first(x).mul_(0) + net.second(x)


def half_zeroed(net: Branches, x: Tensor) -> Tensor:
    """Half of the first layer's output is set to 0 in place."""
    y = net.first(x)
    y[:, :2].mul_(0)
    return y + net.second(x)


@pytest.mark.parametrize(
    ("join", "n_run", "n_live"),
    [(unused, 2, 1), (times_zero, 2, 1), (zeroed, 2, 1),
     (half_zeroed, 2, 2), (behind_zeros, 2, 1), (in_place, 2, 2), (through_views, 2, 2),
     (in_a_buffer, 2, 2), (lambda net, x: net.second(net.first(x)) + net.third(x) * 0, 3, 2)],
)  # fmt: skip
def test_only_what_is_used_is_live(join: Callable[[Branches, Tensor], Tensor], n_run: int, n_live: int) -> None:
    """A layer counts if its inputs depend on the network's inputs and the outputs depend on it."""
    cost = NetworkCost(lambda: Branches(join), lambda: (torch.zeros(1, 4, 8, 8),))

    assert cost["flops"] == n_run * CONV + HEAD
    assert cost["live_flops"] == n_live * CONV + HEAD


def test_attention_is_counted() -> None:
    """Layers that torch takes apart into products count as much as by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer.to("meta")(torch.zeros(1, 5, 8, device="meta"))
    cost = NetworkCost(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: (torch.zeros(1, 5, 8),))

    assert cost["live_flops"] == cost["flops"] == counter.get_total_flops() > 0


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.Identity()])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_norms_pass_values_on(norm: nn.Module, with_gradient: bool) -> None:
    """Layers before and after a norm are live. A forward pass may compute a gradient."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), norm, nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(with_gradient):
                x = x.detach().requires_grad_(with_gradient)
                y = self.second(self.norm(self.first(x)))
                return torch.autograd.grad(y.sum(), x)[0] if with_gradient else y

    network = Normed().to("meta").eval()
    flops, live = count_flops(network, [torch.empty(1, 4, 8, 8, device="meta")])

    assert flops >= 4 * CONV if with_gradient else flops == live == 2 * CONV


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True, "batch_first": True}]
)
def test_recurrent_layers_are_counted_as_a_whole(kind: type[nn.RNNBase], options: dict[str, int]) -> None:
    """The FLOPs of a recurrent layer are those that torch's counter finds in all of its steps."""
    layer, inputs = kind(5, 7, **options).to("meta").eval(), torch.zeros(4, 6, 5, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(inputs)

    assert count_flops(layer, [inputs]) == (counter.get_total_flops(), counter.get_total_flops())
    assert counter.get_total_flops() > 0


class Force(nn.Module):
    """The gradient of an energy, as networks of molecules compute forces."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(4, 1)

    def forward(self, places: Tensor) -> Tensor:
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            return torch.autograd.grad(self.energy(places).sum(), places)[0]


def test_a_forward_pass_may_compute_gradients() -> None:
    """Networks without recurrent layers may use autograd in their forward pass."""
    with torch.device("meta"):
        flops, _ = count_flops(Force(), [torch.empty(1, 4)])

    assert flops >= 2 * 4
