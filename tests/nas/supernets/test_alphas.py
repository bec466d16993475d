"""Tests of `nas.supernets.alphas`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nas.core.errors import ConfigurationError
from nas.supernets.alphas import Alphas
from nas.supernets.choices import InputChoice, LayerChoice
from nas.supernets.differentiable import add_alphas
from nas.supernets.module import space_of


def layer(label: str) -> LayerChoice:
    return LayerChoice({"none": nn.Identity(), "skip_connect": nn.Identity(), "linear": nn.Linear(2, 2)}, label)


def alphas_with(network: nn.Module, values: dict[str, list[float]]) -> Alphas:
    alphas = Alphas(network, torch.Generator().manual_seed(0))
    alphas.load_state_dict({label: torch.tensor(logits) for label, logits in values.items()})
    return alphas


def test_choices_of_one_label_share_logits() -> None:
    """There is one vector for each label, almost 0 at first, and the same for the same generator."""
    network = nn.Sequential(layer("a"), layer("b"), layer("a"))
    drawn = [Alphas(network, torch.Generator().manual_seed(5)).flat() for _ in range(2)]

    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0].shape == (6,)
    assert 0 < float(drawn[0].abs().max()) < 0.01


def test_point() -> None:
    """It has the option of the largest logit; excluded options never; on ties the first."""
    network = nn.Sequential(layer("a"), layer("b"))
    alphas = alphas_with(network, {"a": [3.0, 2.0, 1.0], "b": [0.0, 0.0, 0.0]})

    assert alphas.point() == {"a": "none", "b": "none"}
    assert alphas.point(["none"]) == {"a": "skip_connect", "b": "skip_connect"}
    space_of(network).validate(alphas.point())


def test_point_needs_an_option() -> None:
    """A choice all of whose options are excluded is named, with the remedy."""
    network = LayerChoice({"none": nn.Identity()}, "only")

    with pytest.raises(ConfigurationError, match=r"label='only': must have .* other than none\. .*tuner.allows_none"):
        Alphas(network).point(["none"])


def test_point_of_inputs() -> None:
    """A choice of inputs takes those with the largest logits, in rising order; a single one is an index."""
    network = nn.ModuleList([InputChoice(4, 2, "two"), InputChoice(3, 1, "one"), InputChoice(2, 2, "all")])
    alphas = alphas_with(network, {"two": [0.3, 0.1, 0.0, 0.2], "one": [0.1, 0.2, 0.3]})

    assert alphas.point() == {"two": [0, 3], "one": 2}
    space_of(network).validate(alphas.point())


def test_entropy() -> None:
    """It is the mean over choices, in nats."""
    network = nn.Sequential(layer("a"), layer("b"))
    alphas = alphas_with(network, {"a": [0.0, 0.0, 0.0], "b": [100.0, 0.0, 0.0]})

    assert alphas.entropy() == pytest.approx(math.log(3) / 2, abs=1e-6)


def test_alphas_are_published_with_the_network() -> None:
    """As a submodule their tensors have the prefix ``alphas.``; other names stay the same."""
    network = nn.Sequential(layer("a"))
    before = set(network.state_dict())
    add_alphas(network, torch.Generator())

    assert set(network.state_dict()) - before == {"alphas.a"}
    assert before <= set(network.state_dict())


@pytest.mark.parametrize("label", ["cells.1", "train", "point"])
def test_labels_that_are_no_names(label: str) -> None:
    """A label with a dot, or of a method, is refused by name."""
    with pytest.raises(ConfigurationError, match=f"label='{label}': must be usable as a parameter's name"):
        Alphas(nn.Sequential(layer(label)))
