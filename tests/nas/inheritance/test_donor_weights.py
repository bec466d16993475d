"""Unusual donors: modules whose forward writes, several at once, unusual tensors, no donors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from nas.core.errors import ConfigurationError
from nas.inheritance.inherit import inherit
from nas.inheritance.morphism import morph
from nas.inheritance.optimizer_state import inherit_optimizer, optimizer_tensors
from nas.spaces.graphs.branching import Branch
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.starts import plain_cnn


class Counting(nn.Module):
    """Writes into buffers and attributes in forward, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.ones(2))
        self.register_buffer("steps", torch.tensor(0))
        self.last: object = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.get_buffer("mean").mul_(0.9)
            self.get_buffer("steps").add_(1)
        self.last = x
        y: Tensor = self.layer(x)
        return y + torch.rand(2)


def test_tracing_changes_nothing() -> None:
    """Finding the order of layers changes neither donor, child nor generator; copies are equal to the bit."""
    child, donor = Counting(), Counting()
    was = {name: tensor.clone() for name, tensor in donor.state_dict().items()}
    torch.manual_seed(5)

    report = inherit(child, [donor])

    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert report.share == 1.0 and not report.notes
    for name, tensor in was.items():
        assert torch.equal(donor.state_dict()[name], tensor), name
        assert torch.equal(child.state_dict()[name], tensor), name
    assert child.last is None and donor.last is None


def normed(width: int, kernel: int, seed: int) -> nn.Sequential:
    """Returns a convolution and its norm, whose statistics depend on the seed."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, width, kernel, padding=kernel // 2), nn.BatchNorm2d(width))
    model(torch.randn(8, 1, 9, 9) * seed)
    return model


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_norm_goes_with_its_convolution(order: tuple[int, int]) -> None:
    """Bias and norm come from the donor that gave the weight, whichever of two comes first."""
    other_kernel, same = normed(8, 5, seed=1), normed(8, 3, seed=2)
    donors = [(other_kernel, same)[place].state_dict() for place in order]
    child = normed(8, 3, seed=3)

    report = inherit(child, donors)

    x = torch.randn(2, 1, 9, 9)
    assert torch.equal(child.eval()(x), same.eval()(x))
    assert {tensor.donor for tensor in report.tensors.values()} == {order.index(1)}


def test_missing_norms_come_from_the_next_donor() -> None:
    """A donor with the weight, but no norm of this width, leaves the norm to the next donor."""
    child, first, second = normed(8, 3, seed=3), normed(8, 3, seed=1), normed(8, 5, seed=2)
    weights = {name: tensor for name, tensor in first.state_dict().items() if name.startswith("0.")}

    report = inherit(child, [weights, second.state_dict()])

    assert [report.tensors[name].donor for name in ("0.weight", "0.bias", "1.weight", "1.running_var")] == [0, 0, 1, 1]


class Extra(nn.Linear):
    """Has extra state that is a dict, as torch allows."""

    def get_extra_state(self) -> Any:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": 1}


def test_extra_state_is_no_tensor() -> None:
    """A state dict may contain what ``get_extra_state`` returns."""
    child, donor = Extra(2, 2), Extra(2, 2)

    assert inherit(child, [donor.state_dict()]).share == 1.0
    assert torch.equal(child.weight, donor.weight)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def with_second(tensor: Tensor) -> dict[str, Tensor]:
    """Returns a valid state with one replaced tensor."""
    return {**two_layers().state_dict(), "1.weight": tensor}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: torch.ones(2, 2, device="meta"), "on the device meta, without data"),
        (lambda: torch.ones(2, 2).to_sparse(), "it is sparse_coo, not dense"),
        (lambda: torch.ones(2, 2).to_sparse_csr(), "it is sparse_csr, not dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8), "it is quantized, not dense"),
        (lambda: nn.LazyLinear(2).weight, "its shape is not known yet"),
    ],
    ids=["meta", "sparse", "csr", "quantized", "lazy"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_a_donors_tensor_without_data_is_skipped(made: Callable[[], Tensor], why: str) -> None:
    """That tensor stays new, with the reason, and all others are copied."""
    child = two_layers()
    donor, own = with_second(made()), child[1].weight.detach().clone()

    report = inherit(child, [donor])

    assert torch.equal(child[0].weight, donor["0.weight"]) and torch.equal(child[1].bias, donor["1.bias"])
    assert torch.equal(child[1].weight, own)
    assert report.tensors["1.weight"].how == "new" and why in report.tensors["1.weight"].why


class Sparse(nn.Linear):
    """Has a sparse mask."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mask", torch.eye(2).to_sparse())


def test_a_childs_tensor_without_data_stays() -> None:
    """A sparse buffer stays, and a child without data inherits nothing."""
    child, donor = Sparse(), Sparse()
    report = inherit(child, [donor.state_dict()])
    assert torch.equal(child.weight, donor.weight)
    assert "sparse_coo, not dense" in report.tensors["mask"].why

    with torch.device("meta"):
        empty = two_layers()
    report = inherit(empty, [two_layers().state_dict()])
    assert report.share == 0.0
    assert all("on the device meta" in tensor.why for tensor in report.tensors.values())


def test_derivation_of_a_donor_without_data() -> None:
    """It is not replayed during inheritance, and the notes say why; a direct call refuses it."""
    network = plain_cnn((1, 8, 8), 3, widths=[4], pool_after=[])
    branch = Branch(1, 0.5, 0)
    with torch.device("meta"):
        donor = GraphModule(network).state_dict()
    child = GraphModule(branch.apply(network))

    report = inherit(child, [donor], derivation=Derivation(network, (branch,)))

    assert report.replayed is None and report.share == 0.0
    assert report.notes == ("not replayed: it is on the device meta, without data",)
    with pytest.raises(ConfigurationError, match=r"weights: layers.1.weight: it is on the device meta.*. Give tensors"):
        morph(network, donor, branch)
    for wrong in (None, {"layers.1.weight": 3}):
        with pytest.raises(ConfigurationError, match="must be a state dict: tensors by name"):
            morph(network, wrong, branch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("donors", "message"),
    [
        (None, r"donors=NoneType: must be a list"),
        (3, r"donors=int: must be a list"),
        ([{"weight": np.zeros(2)}], "tensors by name; 'weight' of it is a ndarray: leave it out"),
        ([{"weight": 3}], "tensors by name; 'weight' of it is a int: leave it out"),
        ([{1: torch.ones(2)}], "tensors by name; 1 of it is a Tensor"),
        ([{"model": {"weight": torch.ones(2)}}], "'model' of it is a dict: give that"),
    ],
)
def test_invalid_donors_are_refused(donors: Any, message: str) -> None:
    """An invalid list of donors is refused in one line before any write, for an optimizer too."""
    child = two_layers()
    own = {name: tensor.clone() for name, tensor in child.state_dict().items()}

    with pytest.raises(ConfigurationError, match=message):
        inherit(child, donors)
    with pytest.raises(ConfigurationError, match=message):
        inherit_optimizer(optim.SGD(child.parameters()), child, donors)
    assert all(torch.equal(tensor, own[name]) for name, tensor in child.state_dict().items())


def test_donors_may_be_a_generator() -> None:
    """Donors may be given as a generator."""
    child, donor = two_layers(), two_layers()
    assert inherit(child, (one.state_dict() for one in [donor])).share == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"derivation": {"morphism": {}}},
            r"derivation=dict: must be a Derivation, a Growth or a Crossing; .*derivation_from_json",
        ),
        ({"parents": (5,)}, r"parents\[0\]=5: must be None or the index of one of the 1 donors, from 0"),
        ({"parents": (None, True)}, r"parents\[1\]=True: must be"),
    ],
)
def test_invalid_derivations_are_refused(options: dict[str, Any], message: str) -> None:
    """A proposal's raw derivation and an index without a donor are refused."""
    with pytest.raises(ConfigurationError, match=message):
        inherit(two_layers(), [two_layers().state_dict()], **options)


def test_a_view_of_the_childs_own_memory() -> None:
    """A child may inherit from views of its own memory, as parts of a supernet do."""
    child = nn.Linear(8, 8)
    was = child.weight.detach().clone()
    inherit(child, [{"weight": child.weight.detach()[:, :4]}])
    assert torch.equal(child.weight[:, :4], was[:, :4])

    inherit(child, [{"weight": child.weight.detach().flip(0).t().contiguous().t()}])
    moved = child.weight.detach().clone()
    inherit(child, [{"weight": child.weight.detach().t()}])
    assert torch.equal(child.weight, moved.t())


class Signs(optim.Optimizer):
    """A user's optimizer with its state in attributes."""

    def __init__(self, parameters: Any, beta: float) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.beta = beta

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(self.beta).add_(parameter.grad)
                parameter.sub_(group["lr"] * momentum.sign())


def test_a_users_optimizer() -> None:
    """A user's optimizer with state in attributes, and a scheduler on it, inherits its donor's state."""
    donor, child = nn.Linear(2, 2), nn.Linear(2, 2)
    trained = Signs(donor.parameters(), 0.5)
    donor(torch.ones(1, 2)).sum().backward()
    trained.step()
    fresh = Signs(child.parameters(), 0.5)
    optim.lr_scheduler.StepLR(fresh, 1)
    was = child.weight.detach().clone()

    report = inherit_optimizer(fresh, child, [optimizer_tensors(trained, donor)])

    assert report.share == 1.0
    assert torch.equal(fresh.state[child.weight]["momentum"], trained.state[donor.weight]["momentum"])
    assert torch.equal(child.weight, was)


@pytest.mark.parametrize("kind", [optim.LBFGS, optim.SparseAdam])
def test_unsupported_optimizers_are_refused(kind: type[optim.Optimizer]) -> None:
    """Two of torch's optimizers are refused by name."""
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match=rf"optimizer={kind.__name__}: can't inherit its state. Leave it"):
        inherit_optimizer(kind(model.parameters()), model, [])  # type: ignore[call-arg]
