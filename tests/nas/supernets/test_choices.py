"""Choices of layers and inputs, and their mixtures."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.supernets.choices import InputChoice, LayerChoice, choices_of, mix
from nas.supernets.module import select, subnet
from tests.support.supernets import CellNetwork, ConcatNetwork, images


def choice() -> LayerChoice:
    """Returns a choice of three linear layers."""
    torch.manual_seed(0)
    return LayerChoice({name: nn.Linear(2, 2) for name in "abc"}, "x")


def one_hot(probabilities: Tensor) -> Tensor:
    """Returns weights that are 1 at the largest and 0 elsewhere, with the gradient of the probabilities (GDAS)."""
    hard = nn.functional.one_hot(probabilities.argmax(), len(probabilities)).float()
    return hard - probabilities.detach() + probabilities


def test_mixture_is_the_weighted_sum() -> None:
    """Each option counts by its weight."""
    layers, x = choice(), torch.randn(5, 2)
    layers.mix(torch.tensor([0.5, 0.25, 2.0]))
    a, b, c = (layers.options[name](x) for name in "abc")

    torch.testing.assert_close(layers(x), 0.5 * a + 0.25 * b + 2.0 * c)


def test_options_of_weight_zero_are_not_computed() -> None:
    """Only the option of weight 1 gets gradients, and all weights do; the outputs are its own."""
    layers, x = choice(), torch.randn(5, 2)
    logits = torch.tensor([0.1, 2.0, 0.3], requires_grad=True)
    calls: list[str] = []
    for name in "abc":
        layers.options[name].register_forward_hook(lambda *_, name=name: calls.append(name))
    layers.mix(one_hot(logits.softmax(0)))
    outputs = layers(x)
    outputs.square().sum().backward()

    assert calls == ["b"]
    assert outputs.equal(layers.options["b"](x))
    assert [layers.options[name].weight.grad is None for name in "abc"] == [True, False, True]
    assert logits.grad is not None
    assert logits.grad.count_nonzero() == 3


def test_gradients_of_the_weights_are_those_of_the_sum() -> None:
    """The gradient of a weight other than 0 is the product of the outputs' gradient with the option's output."""
    layers, x = choice(), torch.randn(5, 2)
    weights = torch.tensor([0.5, 0.25, 2.0], requires_grad=True)
    layers.mix(weights)
    layers(x).sum().backward()

    torch.testing.assert_close(weights.grad, torch.stack([layers.options[name](x).sum() for name in "abc"]))


def test_a_parameter_can_be_the_weights() -> None:
    """Weights that are a parameter do not become one of the network."""
    layers = choice()
    mix(layers, {"x": nn.Parameter(torch.ones(3))})

    assert {name for name, _ in layers.named_parameters()} == {name for name, _ in choice().named_parameters()}


def test_networks_are_copied_and_pickled_in_a_mixture() -> None:
    """Copies have no mixture, so a computed weight is no obstacle."""
    layers, x = choice(), torch.randn(5, 2)
    mix(layers, {"x": torch.ones(3, requires_grad=True).softmax(0)})
    for copied in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        with pytest.raises(ConfigurationError, match="choice 'x': must be selected before a forward pass"):
            copied(x)
        select(copied, {"x": "c"})
        assert copied(x).equal(layers.options["c"](x))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights: must have 'x'"),
        ({"x": torch.ones(2)}, r"weights of shape \(2,\): must be \(3,\)"),
        ({"x": torch.zeros(3)}, "must not all be 0"),
    ],
)
def test_weights_are_checked(weights: dict[str, Tensor], message: str) -> None:
    """Missing weights, a wrong number and zeros alone are refused."""
    with pytest.raises(ConfigurationError, match=message):
        mix(choice(), weights)


@pytest.mark.parametrize(("point", "indices"), [({"in": [0, 2]}, (0, 2)), ({"in": [1, 2]}, (1, 2))])
def test_inputs_are_added(point: dict[str, list[int]], indices: tuple[int, int]) -> None:
    """The output is the sum of the selected inputs, also in the subnet."""
    inputs, values = InputChoice(3, 2, "in"), [torch.randn(4) for _ in range(3)]
    inputs.select(point)

    assert inputs(values).equal(values[indices[0]] + values[indices[1]])
    assert subnet(inputs, point)(values).equal(inputs(values))


@pytest.mark.parametrize("value", [[2, 0], [0, 0], [0], 0, [0, 3], "01"])
def test_sets_of_inputs_are_checked(value: object) -> None:
    """A value that is no rising list of indices is refused."""
    with pytest.raises(PointError, match="in"):
        InputChoice(3, 2, "in").select({"in": value})


def test_one_input_is_an_index() -> None:
    """The value of a choice of one input is a number."""
    inputs, values = InputChoice(3, 1, "in"), [torch.randn(4) for _ in range(3)]
    inputs.select({"in": 2})

    assert inputs(values).equal(values[2])


def test_mixtures_of_inputs() -> None:
    """Inputs are mixed by weights, and without weights all are added."""
    inputs, values = InputChoice(2, 1, "in"), [torch.ones(4), 2 * torch.ones(4)]
    mix(inputs, {"in": torch.tensor([0.5, 0.25])})
    weighted = inputs(values)
    mix(inputs, {})

    assert weighted.tolist() == [1.0] * 4
    assert inputs(values).tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("n_inputs", "n_chosen", "message"),
    [
        (2, 3, "n_chosen=3: must be a whole number from 1 to 2"),
        (2, 0, "n_chosen=0: must be a whole number from 1 to 2"),
        (0, 0, "n_inputs=0: must be a whole number of at least 1"),
        ("3", 1, "n_inputs='3': must be a whole number"),
    ],
)
def test_numbers_of_inputs_are_checked(n_inputs: int, n_chosen: int, message: str) -> None:
    """At least one input is chosen, and at most all."""
    with pytest.raises(ConfigurationError, match=message):
        InputChoice(n_inputs, n_chosen, "in")
    with pytest.raises(ConfigurationError, match="'in': 3 inputs: must be 2"):
        InputChoice(2, 2, "in")([torch.ones(1)] * 3)


@pytest.mark.parametrize("options", [[nn.ReLU()], {}, {"conv.1": nn.ReLU()}, {"half": nn.ReLU()}, {"a": 1}])
def test_options_are_checked(options: dict[str, nn.Module]) -> None:
    """Lists, and names that torch refuses, are named with the choice."""
    with pytest.raises(ConfigurationError, match=r"^LayerChoice 'x': opt") as caught:
        LayerChoice(options, "x")
    assert "\n" not in str(caught.value)


class Scaling(nn.Module):
    """Takes an argument by name."""

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return factor * x


def test_arguments_by_name_reach_the_option() -> None:
    """The selection, a mixture and the subnet pass them on."""
    layers, x = LayerChoice({"a": Scaling(), "b": Scaling()}, "x"), torch.ones(2)
    select(layers, {"x": "a"})
    found = [layers(x, factor=3.0), subnet(layers, {"x": "b"})(x, factor=3.0)]
    layers.mix(torch.tensor([0.5, 0.5]))

    assert [value.tolist() for value in (*found, layers(x, factor=3.0))] == [[3.0, 3.0]] * 3


def test_choices_are_found_by_label() -> None:
    """There is one choice a label, without those that decide nothing."""
    assert list(choices_of(CellNetwork())) == ["op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3"]
    names = list(choices_of(ConcatNetwork()))
    assert names == [
        *("normal_inputs_3", "normal_0_2", "normal_1_2", "normal_0_3", "normal_1_3", "normal_2_3"),
        *("reduce_inputs_3", "reduce_0_2", "reduce_1_2", "reduce_0_3", "reduce_1_3", "reduce_2_3"),
    ]


@pytest.mark.parametrize("make", [CellNetwork, ConcatNetwork])
def test_one_hot_mixture_is_the_selection(make: type[CellNetwork]) -> None:
    """A network mixed by weights 0 and 1, without gradients, computes what the selection computes."""
    network, x = make(), images()
    found = choices_of(network)
    layers = {label: one for label, one in found.items() if isinstance(one, LayerChoice)}
    point = {label: one.names[index % len(one.names)] for index, (label, one) in enumerate(layers.items(), 1)}
    point |= {label: [0, 1] for label in found.keys() - layers.keys()}
    hot = {label: torch.tensor([float(name == point[label]) for name in one.names]) for label, one in layers.items()}
    hot |= {label: torch.tensor([1.0, 1.0, 0.0]) for label in found.keys() - layers.keys()}
    select(network, point)
    wanted = network(x)
    mix(network, hot)

    torch.testing.assert_close(network(x), wanted)
