"""Spaces, selections and subnets of networks with choices."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules
from nas.supernets.choices import InputChoice, LayerChoice
from nas.supernets.module import select, space_of, subnet
from tests.support.supernets import CellNetwork, ConcatNetwork, images

NETWORKS = (cache(CellNetwork), cache(ConcatNetwork))
SEEDS = st.integers(0, 2**32 - 1)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are equal bit for bit."""
    return one.dtype == other.dtype and one.shape == other.shape and one.equal(other)


@pytest.mark.parametrize("make", NETWORKS)
@given(seed=SEEDS)
@settings(max_examples=15)
def test_subnet_computes_what_the_selection_computes(make: Callable[[], nn.Module], seed: int) -> None:
    """Outputs of a subnet and of its supernet are equal bit for bit, in both modes."""
    network, x = make(), images()
    point = space_of(network).sample(random.Random(seed))
    select(network, point)
    alone = subnet(network, point)

    assert is_same(alone(x), network(x))
    assert is_same(alone.eval()(x), network.eval()(x))


@pytest.mark.parametrize("make", NETWORKS)
@given(seed=SEEDS)
@settings(max_examples=15)
def test_subnet_holds_copies_under_the_same_names(make: Callable[[], nn.Module], seed: int) -> None:
    """A subnet has some of the supernet's tensors, with their values, and does not share them."""
    network = make()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    alone = subnet(network, space_of(network).sample(random.Random(seed)))

    assert alone.state_dict().keys() < before.keys()
    assert all(is_same(tensor, before[name]) for name, tensor in alone.state_dict().items())
    for parameter in alone.parameters():
        parameter.data.add_(1.0)
    assert all(is_same(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("make", NETWORKS)
@given(seed=SEEDS)
@settings(max_examples=15)
def test_subnet_is_what_a_child_inherits(make: Callable[..., nn.Module], seed: int) -> None:
    """A new subnet that inherits from the supernet's weights gets exactly the supernet's subnet."""
    network, point = make(seed=1), space_of(make()).sample(random.Random(seed))
    wanted = subnet(network, point).state_dict()
    child = subnet(make(seed=2), point)
    report = inherit(child, [network.state_dict()], rules=Rules(rest="own"))

    assert report.share == 1.0
    assert list(child.state_dict()) == list(wanted)
    assert all(is_same(tensor, wanted[name]) for name, tensor in child.state_dict().items())


@pytest.mark.parametrize("make", NETWORKS)
def test_subnet_is_exported_and_pickled(make: Callable[[], nn.Module]) -> None:
    """A subnet survives torch.export and pickle with the same outputs."""
    network, x = make(), images(2)
    alone = subnet(network, space_of(network).sample(random.Random(3))).eval()
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(alone, (x,)), buffer)
    exported = torch.export.load(io.BytesIO(buffer.getvalue())).module()

    torch.testing.assert_close(exported(x), alone(x))
    assert is_same(pickle.loads(pickle.dumps(alone))(x), alone(x))


def test_choices_of_one_label_are_one_decision() -> None:
    """Both cells of a network share the six decisions of their edges."""
    space = space_of(CellNetwork())

    assert space.n_points == 5**6
    assert [name for name, *_ in space.decisions(space.sample(random.Random(0)))] == [
        *("op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3")
    ]


def test_decisions_of_one_name_have_the_same_values() -> None:
    """Two choices of one label with different options are refused."""
    network = nn.Sequential(
        LayerChoice({"a": nn.Tanh(), "b": nn.ReLU()}, "x"), LayerChoice({"a": nn.Tanh(), "c": nn.ReLU()}, "x")
    )

    with pytest.raises(ConfigurationError, match="decision 'x': must have the same values everywhere"):
        space_of(network)


def test_network_without_decisions_has_no_space() -> None:
    """A network without choices is refused."""
    with pytest.raises(ConfigurationError, match="Sequential: must have a decision"):
        space_of(nn.Sequential(nn.Linear(1, 1)))


@pytest.mark.parametrize("point", [{}, {"x": "c"}, {"x": 0}, {"x": ["a"]}])
def test_points_are_checked(point: dict[str, object]) -> None:
    """A point without the decision, or with another value, is refused by both functions."""
    network = nn.Sequential(LayerChoice({"a": nn.Tanh(), "b": nn.ReLU()}, "x"))

    with pytest.raises(PointError, match="x"):
        select(network, point)
    with pytest.raises(PointError, match="x"):
        subnet(network, point)


def test_shared_module_stays_shared() -> None:
    """A choice that a network uses in two places is one module in the subnet."""
    choice = LayerChoice({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}, "x")
    alone = subnet(nn.Sequential(choice, nn.ReLU(), choice), {"x": "b"})

    assert isinstance(alone, nn.Sequential)
    assert alone[0] is alone[2]


@pytest.mark.parametrize("is_one_module", [True, False])
def test_shared_tensors_stay_shared(is_one_module: bool) -> None:
    """An option of two choices has one state in the subnet, as has a buffer that two options share."""
    first = nn.BatchNorm1d(3)
    second = first if is_one_module else nn.BatchNorm1d(3)
    second.running_mean = first.running_mean
    choices = [
        LayerChoice({"norm": norm, "none": nn.Identity()}, label) for norm, label in ((first, "x"), (second, "y"))
    ]
    network, point, x = nn.Sequential(first, *choices), {"x": "norm", "y": "norm"}, torch.randn(8, 3)
    alone = subnet(network, point)
    select(network, point)

    assert is_same(alone(x), network(x))
    assert all(is_same(tensor, network.state_dict()[name]) for name, tensor in alone.state_dict().items())
    assert is_same(alone.eval()(x), network.eval()(x))
    assert len({id(norm.running_mean) for norm in alone.modules() if isinstance(norm, nn.BatchNorm1d)}) == 1


def test_hooks_of_choices_are_kept() -> None:
    """Hooks of a choice are called in a subnet: forward, with keywords, and backward; one added later is its own."""
    inner = LayerChoice({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}, "inner")
    network = nn.Sequential(LayerChoice({"deep": inner, "flat": nn.Identity()}, "outer"))
    calls: list[str] = []
    inner.register_forward_pre_hook(lambda *_: calls.append("before"))
    inner.register_forward_hook(lambda module, args, kwargs, output: calls.append("after"), with_kwargs=True)
    network[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    point, x = {"outer": "deep", "inner": "two"}, torch.ones(1, 2, requires_grad=True)
    alone = subnet(network, point)
    alone[0].register_forward_hook(lambda *_: calls.append("own"))  # type: ignore[index]
    alone(x).sum().backward()
    select(network, point)
    network(x).sum().backward()

    assert calls == ["before", "after", "own", "backward", "before", "after", "backward"]


def test_choices_inside_options_are_selected() -> None:
    """A choice in an option of another choice has its own decision."""
    inner = LayerChoice({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)}, "inner")
    network = nn.Sequential(LayerChoice({"deep": inner, "flat": nn.Identity()}, "outer"))
    alone = subnet(network, {"outer": "deep", "inner": "two"})

    assert list(alone.state_dict()) == [f"0.options.deep.options.two.{name}" for name in ("weight", "bias")]


def test_input_choice_of_all_inputs_has_no_decision() -> None:
    """Inputs are a decision only if some are left out."""
    assert InputChoice(2, 2, "all").decisions() == {}
    assert space_of(InputChoice(3, 2, "two")).n_points == 3


def test_hooks_of_a_subnet_are_its_own() -> None:
    """A subnet keeps the hooks of its supernet, and a hook that it gets later is not the supernet's."""
    network, x = nn.Sequential(nn.Linear(4, 4), LayerChoice({"tanh": nn.Tanh(), "relu": nn.ReLU()}, "f")), torch.ones(4)
    calls: list[str] = []
    network[0].register_forward_hook(lambda *_: calls.append("kept"))
    alone = subnet(network, {"f": "tanh"})
    for module in alone.modules():
        module.register_forward_hook(lambda *_: calls.append("own"))
    alone(x)

    assert calls.count("kept") == 1
    assert calls.count("own") == 4  # of all but the dict of options, which is not called
    calls.clear()
    select(network, {"f": "tanh"})
    network(x)
    assert calls == ["kept"]
