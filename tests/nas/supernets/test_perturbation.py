"""Tests of `nas.supernets.perturbation`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nas.supernets.alphas import Alphas
from nas.supernets.choices import LayerChoice
from nas.supernets.perturbation import select_by_perturbation


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


def supernet() -> tuple[nn.Module, Alphas]:
    options = {"none": Times(0.0), "small": Times(1.0), "large": Times(10.0), "harmful": Times(-5.0)}
    network = nn.Sequential(LayerChoice(options, "a"), LayerChoice(options, "b"))
    alphas = Alphas(network, torch.Generator().manual_seed(0))
    alphas.load_state_dict({"a": torch.tensor([0.0, 2.0, 0.0, 0.0]), "b": torch.tensor([0.0, 2.0, 0.0, 0.0])})
    return network, alphas


def output(network: nn.Module) -> float:
    return float(network(torch.ones(1)))


def test_the_needed_option_is_taken_against_alpha() -> None:
    """The option without which the score falls most is taken, although another one has the largest alpha."""
    network, alphas = supernet()
    point = select_by_perturbation(network, alphas, lambda net: (output(net), 0.0), torch.Generator())

    assert alphas.point() == {"a": "small", "b": "small"}
    assert point == {"a": "large", "b": "large"}
    assert list(point) == ["a", "b"]


def test_the_loss_decides_between_equal_accuracies() -> None:
    """With the same accuracy without any option, the option without which the loss is greatest is taken."""
    network, alphas = supernet()
    point = select_by_perturbation(network, alphas, lambda net: (0.5, -output(net)), torch.Generator())

    assert point == {"a": "large", "b": "large"}


def test_later_choices_build_on_earlier_ones() -> None:
    """A decided choice has only its option, so that the last mixture is that of the other choices decided."""
    network, alphas = supernet()
    seen: list[float] = []

    def score(net: nn.Module) -> tuple[float, float]:
        seen.append(output(net))
        return seen[-1], 0.0

    select_by_perturbation(network, alphas, score, torch.Generator())

    shares = torch.tensor([0.0, 2.0, 0.0, 0.0]).softmax(0)
    mixture = float(shares @ torch.tensor([0.0, 1.0, 10.0, -5.0]))
    assert len(seen) == 8
    assert abs(seen[0] - mixture * mixture) < 1e-5  # none contributes nothing, so its removal changes nothing
    assert abs(seen[4] - 10 * mixture) < 1e-5


def test_excluded_options_are_never_taken() -> None:
    """Excluded options are left out even if the supernet needs them most."""
    network, alphas = supernet()
    point = select_by_perturbation(network, alphas, lambda net: (output(net), 0.0), torch.Generator(), ["large"])

    assert "large" not in point.values()


def test_an_option_with_all_the_weight_is_needed() -> None:
    """Without it nothing is left to score."""
    network, alphas = supernet()
    alphas.load_state_dict({"a": torch.tensor([0.0, 0.0, 0.0, 500.0]), "b": torch.tensor([0.0, 2.0, 0.0, 0.0])})
    point = select_by_perturbation(network, alphas, lambda net: (output(net), 0.0), torch.Generator())

    assert point["a"] == "harmful"
