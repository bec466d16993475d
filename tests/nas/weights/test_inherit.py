"""Inheritance between different architectures, by name and shape."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nas.weights.inherit import inherit

sizes = st.integers(1, 6)


def network(width: int, *, kernel: int = 3, n_blocks: int = 2, seed: int = 0) -> nn.Sequential:
    """Convolutions with batch-norm in a row, with statistics that tell the seed."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for block in range(n_blocks):
        layers += [nn.Conv2d(width if block else 1, width, kernel), nn.BatchNorm2d(width)]
    model = nn.Sequential(*layers)
    model(torch.randn(4, 1, 16, 16))
    return model


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def bits(tensor: Tensor) -> list[int]:
    return tensor.flatten().view(torch.int32).tolist()


def test_same_architecture_is_copied_to_the_bit() -> None:
    """A child of the same architecture becomes its donor, buffers included, down to negative zeros and subnormals."""
    donor, child = network(8, seed=1), network(8, seed=2)
    with torch.no_grad():
        donor.get_parameter("0.weight")[0, 0, 0] = torch.tensor([-0.0, 1e-45, -1e-40])

    report = inherit(child, [donor.state_dict()])

    assert report.share == 1.0
    assert {tensor.how for tensor in report.tensors.values()} == {"copied"}
    for name, tensor in donor.state_dict().items():
        assert torch.equal(child.state_dict()[name], tensor)
    assert bits(child.get_parameter("0.weight")) == bits(donor.get_parameter("0.weight"))


def test_wider_child_takes_the_overlap() -> None:
    """A wider child's first channels are its donor's, batch-norm statistics with them, and the others stay fresh."""
    donor, child = network(4, seed=1), network(6, seed=2)
    fresh = copy_of(child)

    report = inherit(child, [donor.state_dict()])

    state = child.state_dict()
    assert torch.equal(state["2.weight"][:4, :4], donor.state_dict()["2.weight"])
    assert torch.equal(state["2.weight"][4:], fresh["2.weight"][4:])
    assert torch.equal(state["2.weight"][:4, 4:], fresh["2.weight"][:4, 4:])
    for statistic in ("1.running_mean", "1.running_var"):
        assert torch.equal(state[statistic][:4], donor.state_dict()[statistic])
        assert torch.equal(state[statistic][4:], fresh[statistic][4:])
    assert report.tensors["2.weight"].how == "sliced"
    assert report.tensors["2.weight"].share == 16 / 36
    assert report.tensors["2.weight"].why == "(4, 4, 3, 3) into (6, 6, 3, 3)"


def test_share_counts_parameters_only() -> None:
    """The share is of the elements of all parameters; buffers that were inherited don't count."""
    donor, child = network(4, n_blocks=1), network(4, n_blocks=2)
    del donor[1].weight, donor[1].bias

    report = inherit(child, [donor.state_dict()])

    assert report.tensors["1.running_mean"].how == "copied"
    n_inherited = 4 * 9 + 4
    assert report.share == n_inherited / sum(parameter.numel() for parameter in child.parameters())


@given(child=st.lists(sizes, max_size=4), donor=st.lists(sizes, max_size=4))
def test_nothing_outside_the_overlap_changes(child: list[int], donor: list[int]) -> None:
    """For any two shapes, the overlap holds the donor's bits and all else the child's own."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.rand(child))
    fresh, given_ = copy_of(model)["weight"], -1 - torch.rand(donor)

    report = inherit(model, [{"weight": given_}])

    expected = fresh.clone()
    if len(child) == len(donor):
        overlap = tuple(slice(min(pair)) for pair in zip(child, donor, strict=True))
        expected[overlap] = given_[overlap]
    assert bits(model.weight.detach()) == bits(expected)
    taken = int((model.weight < 0).sum())
    assert report.share == taken / fresh.numel()
    assert report.tensors["weight"].how == ("fresh" if not taken else "copied" if child == donor else "sliced")


@given(widths=st.lists(sizes, min_size=2, max_size=4), kernel=st.sampled_from([1, 3, 5]))
def test_any_two_networks_fit_somehow(widths: list[int], kernel: int) -> None:
    """Between networks of any widths and kernels the share is above 0, at most 1, and the child still runs."""
    child = network(widths[0], kernel=kernel)

    report = inherit(child, [copy_of(network(width)) for width in widths[1:]])

    assert 0.0 < report.share <= 1.0
    assert child(torch.randn(2, 1, 16, 16)).isfinite().all()


def test_same_shape_wins_over_better_donor() -> None:
    """A tensor comes whole from a later donor rather than in part from the best, else from the best that has it."""
    best, later = network(4, seed=1), network(6, seed=2)

    report = inherit(child := network(6, seed=3), [best.state_dict(), later.state_dict()])
    assert {tensor.donor for tensor in report.tensors.values()} == {0, 1}
    assert report.tensors["1.num_batches_tracked"].donor == 0
    assert torch.equal(child.get_parameter("2.weight"), later.get_parameter("2.weight"))

    assert report.main_donor == 1

    report = inherit(network(8), [best.state_dict(), later.state_dict()])
    assert {tensor.donor for tensor in report.tensors.values()} == {0}
    assert report.main_donor == 0


def test_fresh_tensors_say_why() -> None:
    """What could not be inherited keeps its bits, and the report says what stood against it."""
    child = nn.Module()
    child.here = nn.Parameter(torch.rand(3))
    child.rank = nn.Parameter(torch.rand(3))
    child.nan = nn.Parameter(torch.rand(3))
    child.inf = nn.Parameter(torch.rand(3))
    child.kind = nn.Parameter(torch.rand(3))
    child.empty = nn.Parameter(torch.rand(3))
    child.register_buffer("count", torch.tensor([1, 2, 3]))
    child.register_buffer("whole", torch.tensor([1, 2, 3]))
    fresh = copy_of(child)
    donor = {
        "rank": torch.rand(3, 1), "nan": torch.tensor([1.0, math.nan, 2.0]), "inf": torch.tensor([math.inf, 1.0]),
        "kind": torch.rand(3, dtype=torch.complex64), "empty": torch.rand(0),
        "count": torch.tensor([4, 5]), "whole": torch.rand(3),
    }  # fmt: skip

    report = inherit(child, [donor])

    assert report.share == 0.0
    assert report.summary()["not_copied"] == {
        "here": "no donor has this name",
        "rank": "donor 0: other rank: (3, 1) into (3,)",
        "nan": "donor 0: not finite",
        "inf": "donor 0: not finite",
        "kind": "donor 0: torch.complex64 does not fit torch.float32",
        "empty": "donor 0: no overlap: (0,) into (3,)",
        "count": "donor 0: integers are not sliced: (2,) into (3,)",
        "whole": "donor 0: torch.float32 does not fit torch.int64",
    }
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in child.state_dict().items())


def test_next_donor_fills_in_for_a_broken_one() -> None:
    """A tensor that is not finite in the best donor comes from the next one, in part if need be."""
    torn = copy_of(network(4))
    torn["0.weight"][0, 0, 0, 0] = math.nan
    healthy = network(3, seed=1)

    report = inherit(child := network(4, seed=2), [torn, healthy.state_dict()])

    assert report.tensors["0.weight"].donor == 1
    assert torch.equal(child.get_parameter("0.weight")[:3], healthy.get_parameter("0.weight"))
    assert report.tensors["2.weight"].donor == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_values_are_cast_to_the_dtype_of_the_child(dtype: torch.dtype) -> None:
    """The child keeps its dtype, whichever the donor has."""
    donor, child = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2)

    assert inherit(child, [donor.state_dict()]).share == 1.0

    assert child.weight.dtype == torch.float32
    assert torch.equal(child.weight, donor.weight.float())


def test_overflow_in_the_dtype_of_the_child_is_refused() -> None:
    """A finite value that would be infinite in the child is not inherited."""
    child = nn.Linear(1, 1).half()

    assert inherit(child, [{"weight": torch.tensor([[1e6]])}]).tensors["weight"].why == "donor 0: not finite"

    assert child.weight.isfinite().all()


def test_tied_parameters_are_handled_once() -> None:
    """A parameter under two names is written once, by the name that fits, and counts once."""
    child = nn.ModuleDict({"encoder": nn.Linear(3, 3, bias=False), "decoder": nn.Linear(3, 3, bias=False)})
    child["decoder"].weight = child["encoder"].weight
    donor = {"encoder.weight": torch.rand(2, 3), "decoder.weight": torch.rand(3, 3)}

    report = inherit(child, [donor])

    assert child["encoder"].weight is child["decoder"].weight
    assert torch.equal(child["encoder"].weight, donor["decoder.weight"])
    assert report.share == 1.0
    assert report.tensors["encoder.weight"] == report.tensors["decoder.weight"]


def test_gradients_and_modes_are_left_alone() -> None:
    """Inheriting leaves no trace in autograd, and parameters stay leaves that want gradients."""
    child = network(4)
    child.eval()

    inherit(child, [network(6, seed=1).state_dict()])

    assert not child.training
    assert all(p.is_leaf and p.requires_grad and p.grad is None for p in child.parameters())


def test_strides_of_the_child_are_kept() -> None:
    """A child in channels-last memory inherits values, not strides."""
    child, donor = network(4).to(memory_format=torch.channels_last), network(4, seed=1)

    inherit(child, [donor.state_dict()])

    assert child.get_parameter("2.weight").is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(child.get_parameter("2.weight"), donor.get_parameter("2.weight"))


def test_without_donor_nothing_is_inherited() -> None:
    """Without a donor all stays fresh, the share is 0.0 and the summary stays small."""
    child = network(4)
    fresh = copy_of(child)

    report = inherit(child, [])

    assert all(torch.equal(tensor, fresh[name]) for name, tensor in child.state_dict().items())
    assert {tensor.why for tensor in report.tensors.values()} == {"no donor"}
    assert report.summary() == {
        "share": 0.0, "n_copied": 0, "n_sliced": 0, "n_fresh": len(fresh), "not_copied": {}
    }  # fmt: skip


def test_model_without_parameters_has_share_zero() -> None:
    """A share of nothing is 0.0."""
    assert inherit(nn.ReLU(), [network(4).state_dict()]).share == 0.0
    assert inherit(nn.BatchNorm2d(3, affine=False), [nn.BatchNorm2d(3).state_dict()]).share == 0.0


def test_summary_is_json() -> None:
    """The summary goes through JSON, counts every tensor and says why each was not copied."""
    child = nn.ModuleList(nn.Linear(2, 2) for _ in range(40))

    summary = inherit(child, [{"0.weight": torch.rand(2, 2), "1.weight": torch.rand(1, 2)}]).summary()

    assert json.loads(json.dumps(summary)) == summary
    assert (summary["n_copied"], summary["n_sliced"], summary["n_fresh"]) == (1, 1, 78)
    assert len(summary["not_copied"]) == 79
    assert summary["share"] == 6 / (40 * 6)


def test_lazy_parameters_and_extra_state_are_left_alone() -> None:
    """A parameter without a shape yet stays fresh, and state that is no tensor is passed over."""

    class Stateful(nn.LazyLinear):
        def get_extra_state(self) -> object:
            return {"step": 1}

        def set_extra_state(self, state: object) -> None: ...

    report = inherit(child := Stateful(3), [nn.Linear(2, 3).state_dict()])

    assert list(report.tensors) == ["weight", "bias"]
    assert "run one batch" in report.tensors["weight"].why
    assert report.share == 0.0
    assert child.has_uninitialized_params()
