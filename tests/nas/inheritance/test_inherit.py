"""Inheritance between different architectures, by name and shape."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.freezing import set_frozen
from nas.inheritance.inherit import inherit
from nas.inheritance.morphism import outcome
from nas.inheritance.optimizer_state import inherit_optimizer, optimizer_tensors
from nas.inheritance.rules import Match, Rest, Rules
from nas.spaces.graphs.branching import Branch
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.inserting import InsertConv, InsertResidual
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.moves import MOVES, Move, draw_move
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.resizing import Widen
from nas.spaces.graphs.skipping import AddSkip
from tests.support.graph_networks import LIMITS, STARTS

sizes = st.integers(1, 6)


def network(width: int, *, kernel: int = 3, n_blocks: int = 2, seed: int = 0) -> nn.Sequential:
    """Returns convolutions with batch norm in a row, with statistics that depend on the seed."""
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
    """A child of the same architecture equals its donor, with buffers, negative zeros and subnormals."""
    donor, child = network(8, seed=1), network(8, seed=2)
    with torch.no_grad():
        donor.get_parameter("0.weight")[0, 0, 0] = torch.tensor([-0.0, 1e-45, -1e-40])

    report = inherit(child, [donor.state_dict()])

    assert report.share == 1.0
    assert {tensor.how for tensor in report.tensors.values()} == {"copied"}
    for name, tensor in donor.state_dict().items():
        assert torch.equal(child.state_dict()[name], tensor)
    assert bits(child.get_parameter("0.weight")) == bits(donor.get_parameter("0.weight"))


@pytest.mark.parametrize("rest", ["scaled", "own"])
def test_wider_child_takes_the_overlap(rest: Rest) -> None:
    """A wider child's first channels are its donor's, with batch-norm statistics; the others are its own."""
    donor, child = network(4, seed=1), network(6, seed=2)
    fresh = copy_of(child)

    report = inherit(child, [donor.state_dict()], rules=Rules(rest=rest))

    state = child.state_dict()
    new_rows, own_rows = state["2.weight"][4:], fresh["2.weight"][4:]
    assert torch.equal(state["2.weight"][:4, :4], donor.state_dict()["2.weight"])
    if rest == "own":
        assert torch.equal(new_rows, own_rows)
        assert torch.equal(state["2.weight"][:4, 4:], fresh["2.weight"][:4, 4:])
    else:
        assert torch.allclose(new_rows, own_rows * (new_rows.std() / own_rows.std()), rtol=1e-4)
        assert bool((state["2.weight"][:4, 4:] == 0).all())
    for statistic in ("1.running_mean", "1.running_var"):
        assert torch.equal(state[statistic][:4], donor.state_dict()[statistic])
        assert torch.equal(state[statistic][4:], fresh[statistic][4:])
    assert report.tensors["2.weight"].how == "sliced"
    assert report.tensors["2.weight"].share == 16 / 36
    assert report.tensors["2.weight"].why == "(4, 4, 3, 3) into (6, 6, 3, 3)"


@settings(max_examples=12)
@given(donor=sizes, child=sizes, kernels=st.sampled_from([(1, 3), (3, 3), (3, 5)]))
def test_larger_child_gives_its_donors_outputs(donor: int, child: int, kernels: tuple[int, int]) -> None:
    """With a scaled rest, the inherited channels of a wider child with larger kernels give the same outputs."""
    small, large = (
        nn.Sequential(*[layer for c, n in ((1, width), (width, width)) for layer in conv_norm(c, n, kernel)])
        for width, kernel in ((min(donor, child), kernels[0]), (max(donor, child), kernels[1]))
    )
    x = torch.randn(4, 1, 8, 8)
    small(x)
    inherit(large, [small.state_dict()])
    small.eval(), large.eval()

    assert torch.allclose(large(x)[:, : min(donor, child)], small(x), atol=1e-5)


def conv_norm(n_inputs: int, n_outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(n_inputs, n_outputs, kernel, padding=kernel // 2), nn.BatchNorm2d(n_outputs), nn.ReLU()]


@pytest.mark.parametrize(
    ("kind", "n_sides"), [(nn.ConvTranspose1d, 1), (nn.ConvTranspose2d, 2), (nn.ConvTranspose3d, 3)]
)
def test_larger_decoder_gives_its_donors_outputs(kind: type[nn.Module], n_sides: int) -> None:
    """With a scaled rest, new inputs and larger kernels of transposed convolutions count nothing."""
    small, large = (
        nn.Sequential(kind(2, width, 3, padding=1), nn.ReLU(), kind(width, 1, kernel, padding=kernel // 2))
        for width, kernel in ((3, 3), (5, 5))
    )
    x = torch.randn(2, 2, *[4] * n_sides)
    inherit(large, [small.state_dict()])

    assert torch.allclose(large(x), small(x), atol=1e-5)


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3)])
@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_transposed_kernels_are_taken_from_the_middle(kind: type[nn.Module], sizes: tuple[int, int]) -> None:
    """A transposed convolution's kernel and its momentum have the donor's middle."""
    small, large = (kind(2, 2, size, padding=size // 2, bias=False) for size in sorted(sizes))
    x = torch.randn(1, 2, *[4] * (small.weight.dim() - 2))
    middle = [slice(1, -1)] * (small.weight.dim() - 2)
    donor, child = (small, large) if sizes[0] == 3 else (large, small)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (donor, child)]
    donor(x).square().sum().backward()
    optimizers[0].step()
    published = {**donor.state_dict(), **optimizer_tensors(optimizers[0], donor)}
    inherit(child, [published], rules=Rules(rest="own"))
    inherit_optimizer(optimizers[1], child, [published])

    momentum = {
        one: made.state[one.weight]["momentum_buffer"] for one, made in zip((donor, child), optimizers, strict=True)
    }
    assert torch.equal(large.weight[:, :, *middle], small.weight)
    assert torch.equal(momentum[large][:, :, *middle], momentum[small])


def test_momentum_is_sliced_as_its_parameter() -> None:
    """A parameter that is no kernel, and its momentum, is sliced from the first index in every dimension."""

    class Cube(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2, size, size))

    donor, child = Cube(2), Cube(4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (donor, child)]
    donor.weight.square().sum().backward()
    optimizers[0].step()
    published = {**donor.state_dict(), **optimizer_tensors(optimizers[0], donor)}

    inherit(child, [published])
    inherit_optimizer(optimizers[1], child, [published])

    assert torch.equal(child.weight[:, :2, :2], donor.weight)
    momentum = [made.state[one.weight]["momentum_buffer"] for one, made in zip((donor, child), optimizers, strict=True)]
    assert torch.equal(momentum[1][:, :2, :2], momentum[0])


CONVOLUTIONS = {
    "dense": lambda n, k: nn.Conv2d(n, n, k),
    "depthwise": lambda n, k: nn.Conv2d(n, n, k, groups=n),
    "halves": lambda n, k: nn.Conv2d(n, n, k, groups=2),
    "quarters": lambda n, k: nn.Conv2d(n, n, k, groups=4),
    "twice": lambda n, k: nn.Conv2d(n, 2 * n, k, groups=n),
    "transposed": lambda n, k: nn.ConvTranspose2d(n, n, k, groups=n),
}


@pytest.mark.parametrize(
    ("donor", "child", "how"),
    [
        (("depthwise", 8, 3), ("dense", 8, 3), "new"),
        (("dense", 8, 3), ("depthwise", 8, 3), "new"),
        (("halves", 8, 3), ("quarters", 8, 3), "new"),
        (("quarters", 8, 3), ("halves", 8, 3), "new"),
        (("halves", 8, 3), ("halves", 12, 3), "new"),
        (("twice", 4, 3), ("twice", 8, 3), "new"),
        (("depthwise", 8, 3), ("twice", 8, 3), "new"),
        (("dense", 8, 3), ("transposed", 8, 3), "new"),
        (("halves", 8, 3), ("halves", 8, 5), "sliced"),
        (("twice", 8, 3), ("twice", 8, 5), "sliced"),
        (("depthwise", 8, 3), ("depthwise", 12, 5), "sliced"),
        (("transposed", 8, 3), ("transposed", 6, 3), "sliced"),
        (("dense", 1, 3), ("dense", 8, 3), "sliced"),
    ],
    ids=str,
)
def test_weights_of_other_groups_are_not_sliced(
    donor: tuple[str, int, int], child: tuple[str, int, int], how: str
) -> None:
    """The overlap of two grouped convolutions is inherited only if it connects the same channels in both."""
    donor_, child_ = (CONVOLUTIONS[kind](n, k) for kind, n, k in (donor, child))

    found = inherit(child_, [donor_.state_dict()]).tensors["weight"]

    assert found.how == how
    assert found.why.startswith("donor at index 0: other groups of channels: (" if how == "new" else "(")


@pytest.mark.parametrize("n_hidden", [12, 4])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell])
def test_gates_of_other_sizes_are_not_mixed(kind: Callable[[int, int], nn.Module], n_hidden: int) -> None:
    """With another number of units no gate inherits the rows of another gate."""
    child = kind(3, n_hidden)
    before = {name: tensor.clone() for name, tensor in child.state_dict().items()}

    report = inherit(child, [kind(3, 8).state_dict()])

    assert report.share == 0.0
    assert all(tensor.equal(before[name]) for name, tensor in child.state_dict().items())
    assert "stacked parts of other sizes: (" in next(iter(report.tensors.values())).why


def test_gates_take_more_inputs() -> None:
    """With as many units and more inputs each gate keeps its own rows."""
    donor, child = nn.LSTM(3, 8), nn.LSTM(5, 8)

    report = inherit(child, [donor.state_dict()])

    assert torch.equal(child.weight_ih_l0[:, :3], donor.weight_ih_l0)
    assert report.tensors["weight_hh_l0"].how == "copied"


def test_projections_of_attention_are_not_mixed() -> None:
    """Stacked query, key and value are not mixed; the output projection is sliced as a linear layer."""
    donor, child = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(16, 2)
    donor.in_proj_weight.data[:] = torch.arange(1, 4).repeat_interleave(8)[:, None]
    nn.init.zeros_(child.in_proj_weight)
    report = inherit(child, [donor.state_dict()], rules=Rules(rest="own"))

    found = child.in_proj_weight.unflatten(0, (3, 16))
    assert [part.unique().tolist() for part in found] == [[0, 1], [0, 2], [0, 3]]
    assert report.tensors["in_proj_bias"].how == "sliced"
    assert report.tensors["out_proj.weight"].how == "sliced"


@pytest.mark.parametrize(
    ("donors", "rules", "message"),
    [
        (nn.Linear(2, 2), None, r"donors=Linear: must be a list"),
        (nn.Linear(2, 2).state_dict(), None, r"donors=OrderedDict: must be a list"),
        (["parent.safetensors"], None, r"donor=str: must be a state dict, a module or weights"),
        ([None], None, r"donor=NoneType: must be"),
        ([{"model": {}, "epoch": 3}], None, "'model' of it is a dict: give that"),
        ([], {"rest": "own"}, r"rules=dict: must be nas.inheritance.rules.Rules"),
    ],
)
def test_invalid_donors_are_refused(donors: Any, rules: Any, message: str) -> None:
    """An invalid donor is refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        inherit(nn.Linear(2, 2), donors, rules=rules)


@settings(max_examples=12)
@given(donor=st.integers(4, 64), child=st.integers(4, 64))
def test_scale_of_the_output_is_kept(donor: int, child: int) -> None:
    """A layer with other inputs and outputs keeps the scale of the donor's outputs, old and new."""
    torch.manual_seed(0)
    one, other = nn.Linear(donor, 400, bias=False), nn.Linear(child, 800, bias=False)
    nn.init.normal_(one.weight, std=3.0)

    inherit(other, [one.state_dict()])

    outputs = other(torch.randn(800, child)).detach()
    expected = 3.0 * donor**0.5
    assert abs(float(outputs[:, :400].std()) / expected - 1) < 0.2
    assert abs(float(outputs[:, 400:].std()) / expected - 1) < 0.2


class Block(nn.Module):
    """Two layers with names of the subclass, run in the order of ``order``."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.order = list(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def test_renamed_block_is_found() -> None:
    """A layer with a new name inherits from the unmatched layer in its place, and the report says so."""
    donor = Block(stem=nn.Linear(3, 4), body=nn.Linear(4, 4), head=nn.Linear(4, 2))
    child = Block(stem=nn.Linear(3, 4), fresh=nn.Linear(4, 4), trunk=nn.Linear(4, 4), head=nn.Linear(4, 2))

    report = inherit(child, [donor.state_dict()])

    assert [tensor.how for name, tensor in report.tensors.items() if "weight" in name].count("copied") == 3
    found = next(name for name in ("fresh", "trunk") if report.tensors[f"{name}.weight"].how == "copied")
    assert report.tensors[f"{found}.weight"].why == "by structure, from body.weight"
    assert torch.equal(child.get_parameter(f"{found}.bias"), donor.get_parameter("body.bias"))
    assert report.summary()["not_copied"][f"{found}.bias"] == "by structure, from body.bias"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_renamed_block_of_another_type_is_found(dtype: torch.dtype) -> None:
    """A renamed layer is found in a donor of other precision, but not of another kind of number."""
    donor, child = Block(body=nn.Linear(4, 4)), Block(trunk=nn.Linear(4, 4))

    assert inherit(child, [donor.to(dtype).state_dict()]).share == 1.0

    assert torch.equal(child.get_parameter("trunk.weight"), donor.get_parameter("body.weight").float())
    assert inherit(child, [{name: tensor.int() for name, tensor in donor.state_dict().items()}]).share == 0.0


def test_shifted_block_is_found_by_structure_first() -> None:
    """In a chain with one more layer at its start, all others are matched despite other names."""
    donor = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)], nn.Linear(4, 2))
    child = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4), *[nn.Linear(4, 4) for _ in range(3)], nn.Linear(4, 2))

    report = inherit(child, [donor.state_dict()], rules=Rules(first="structure"))

    for place in range(4):
        assert torch.equal(child.get_parameter(f"{place + 2}.weight"), donor.get_parameter(f"{place}.weight"))
    assert [report.tensors[f"{place}.weight"].how for place in range(6)] == ["new", "new", *["copied"] * 4]


@pytest.mark.parametrize("first", ["name", "structure"])
def test_a_norm_goes_with_its_convolution(first: Match) -> None:
    """The norm of a resized and renamed convolution never inherits from a norm of other channels."""

    def chain(kernel: int, prefix: str) -> Block:
        layers = {"a": nn.Conv2d(4, 4, 3), "a_norm": nn.BatchNorm2d(4), "b": nn.Conv2d(4, 4, kernel)}
        return Block(**{f"{prefix}{name}": layer for name, layer in {**layers, "b_norm": nn.BatchNorm2d(4)}.items()})

    donor, child = chain(3, ""), chain(5, "new_")
    for norm in ("a_norm", "b_norm"):
        donor.get_submodule(norm).running_mean.fill_(3.0)

    report = inherit(child, [donor.state_dict()], rules=Rules(first=first))

    copied = {name.rpartition(".")[0] for name, tensor in report.tensors.items() if tensor.how == "copied"}
    assert copied == {"new_a", "new_a_norm"}
    assert child.get_submodule("new_b_norm").running_mean.tolist() == [0.0] * 4


def test_a_renamed_norm_is_found_behind_the_convolution_of_its_name() -> None:
    """If names match the convolutions, a norm inherits from the one after its convolution."""
    donor = Block(a=nn.Linear(4, 4), old_a=nn.BatchNorm1d(4), b=nn.Linear(4, 4), old_b=nn.BatchNorm1d(4))
    child = Block(a=nn.Linear(4, 4), b=nn.Linear(4, 4), new_b=nn.BatchNorm1d(4))

    report = inherit(child, [donor.state_dict()])

    assert report.tensors["new_b.weight"].why == "by structure, from old_b.weight"


def test_modules_are_aligned_as_they_run() -> None:
    """A donor module's layers count in the order in which torch.fx sees them run."""
    donor = Block(a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    child = Block(d=nn.Linear(4, 4), c=nn.Linear(4, 4))
    child.order = ["c", "d"]

    inherit(child, [donor])

    assert torch.equal(child.get_parameter("c.weight"), donor.get_parameter("a.weight"))
    assert torch.equal(child.get_parameter("d.weight"), donor.get_parameter("b.weight"))


def test_layers_with_tensors_of_their_own_are_aligned_as_they_run() -> None:
    """A user's module whose forward uses its own tensors counts at the place where it runs."""

    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))
            self.register_buffer("shift", torch.rand(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.shift

    donor, child = Block(a=Scaling(), b=Scaling()), Block(d=Scaling(), c=Scaling())
    child.order = ["c", "d"]

    report = inherit(child, [donor])

    assert (report.share, report.notes) == (1.0, ())
    assert torch.equal(child.get_buffer("c.shift"), donor.get_buffer("a.shift"))


@pytest.mark.parametrize("kind", MOVES)
def test_networks_of_every_move_are_aligned_as_they_run(kind: str) -> None:
    """torch.fx can trace a network after each kind of move."""
    rng = random.Random(0)
    moves = [move for start in STARTS for _ in range(3) if (move := grown_by(kind, start, rng)) is not None]
    assert moves
    for move in moves:
        donor = GraphModule(move.network)

        report = inherit(Block(net=GraphModule(move.network)), [donor])

        assert (report.share, report.notes) == (1.0, ())


def grown_by(kind: str, start: Network, rng: random.Random) -> Move | None:
    """Returns a network after a move of this kind and one that makes it possible."""
    before = {"merge": "branch", "disconnect": "add_skip", "fuse_stride": "delay_stride"}.get(kind, "widen")
    first = draw_move(start, [before], LIMITS, rng)
    return first and draw_move(first.network, [kind], LIMITS, rng)


def test_modules_that_cannot_be_traced_are_aligned_as_defined() -> None:
    """If forward branches on values, layers count in the order of their definition."""

    class Branching(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    donor, child = Branching(a=nn.Linear(4, 4), b=nn.Linear(4, 4)), Branching(c=nn.Linear(4, 4), d=nn.Linear(4, 4))

    report = inherit(child, [donor, donor])

    assert report.share == 1.0
    assert len(report.notes) == 1
    assert "in the order of their definition: torch.fx can't trace Branching: " in report.notes[0]
    assert torch.equal(child.get_parameter("d.weight"), donor.get_parameter("b.weight"))


def derived() -> tuple[GraphModule, GraphModule, Derivation]:
    """Returns a parent, a child made of it, and the derivation."""
    operations = (Widen(1, 6, 0.5, 3), InsertResidual(4, 3, 1), AddSkip(1, 3))
    network = STARTS[0]
    parent = GraphModule(network)
    parent(torch.randn(16, *network.input_shape))
    for operation in operations:
        network = operation.apply(network)
    return parent, GraphModule(network), Derivation(parent.network, operations)


def test_recorded_operations_are_replayed() -> None:
    """A child of recorded morphisms starts with its parent's function, also within another module."""
    parent, graph, derivation = derived()
    told = Derivation.from_json(json.loads(json.dumps({"reason": "x", **derivation.to_json()})))
    child = nn.ModuleDict({"graph": graph, "extra": nn.Linear(2, 2)})
    donor = {f"graph.{name}": tensor for name, tensor in parent.state_dict().items()}

    report = inherit(child, [donor], derivation=told)

    x = torch.randn(4, *parent.network.input_shape)
    assert torch.allclose(graph.eval()(x), parent.eval()(x), atol=1e-5)
    assert report.notes == ()
    assert report.tensors["graph.layers.1.weight"].how == "morphed"
    assert report.tensors["graph.layers.9.weight"].how == "copied"
    assert report.tensors["extra.weight"].how == "new"
    hows = [tensor.how for tensor in report.tensors.values()]
    assert report.summary()["n_morphed"] == hows.count("morphed") > 5
    assert report.summary()["n_inserted"] == hows.count("inserted") > 5
    n_given = sum(
        parameter.numel()
        for name, parameter in child.named_parameters()
        if report.tensors[name].how in ("copied", "morphed")
    )
    assert report.share == n_given / sum(parameter.numel() for parameter in child.parameters()) < 1.0
    assert Derivation.from_json({"mutated": ["width"]}) is None


def test_derivations_that_do_not_fit_are_left_out() -> None:
    """If donor or result is another network, the child inherits by name, and a note says why."""
    parent, child, derivation = derived()
    nan = {name: tensor.clone() for name, tensor in parent.state_dict().items()}
    nan["layers.1.weight"][0] = math.nan
    for model, donor, note in (
        (child, GraphModule(STARTS[1]).state_dict(), "weights: layers.11.weight is of no node"),
        (GraphModule(STARTS[0]), parent.state_dict(), "the operations make another network than the child's"),
        (child, nan, "not finite"),
        (network(3), parent.state_dict(), "the model has 0 GraphModules"),
    ):
        report = inherit(model, [donor], derivation=derivation)

        assert len(report.notes) == 1
        assert report.notes[0].startswith("not replayed: ")
        assert note in report.notes[0]
        assert report.summary()["notes"] == list(report.notes)


def test_branched_layers_have_their_parents_weights() -> None:
    """Both halves of a branch count as inherited, and the rest of an inserted layer as inserted."""
    network = STARTS[0]
    operations = (Branch(1), InsertConv(1, 1), Branch(12))
    child = network
    for operation in operations:
        child = operation.apply(child)

    assert outcome(network, operations[:1])[1] == set()
    assert outcome(network, operations) == (child, {12, 13, 14})


def test_derivations_are_replayed_on_the_donor_that_they_begin_with() -> None:
    """The operations are replayed on the donor with the derivation's network, and the report names it."""
    parent, child, derivation = derived()
    other = GraphModule(STARTS[1])

    report = inherit(child, [other.state_dict(), parent.state_dict()], derivation=derivation)

    assert (report.notes, report.main_donor) == ((), 1)
    x = torch.randn(4, *parent.network.input_shape)
    assert torch.allclose(child.eval()(x), parent.eval()(x), atol=1e-5)


@pytest.mark.parametrize(("parents", "donor"), [((), 0), ((1,), 1), ((None,), 0)])
def test_derivations_are_replayed_on_the_parent_first(parents: tuple[int | None, ...], donor: int) -> None:
    """If two donors have the derivation's tensors, the parent is used, at any index."""
    parent, child, derivation = derived()
    other = GraphModule(parent.network)

    report = inherit(child, [other.state_dict(), parent.state_dict()], derivation=derivation, parents=parents)

    assert (report.notes, report.replayed) == ((), donor)
    x = torch.randn(4, *parent.network.input_shape)
    assert torch.allclose(child.eval()(x), (other, parent)[donor].eval()(x), atol=1e-5)


@pytest.mark.parametrize("seed", [2**64, 2**70, -1, 1.0])
def test_invalid_seeds_are_refused(seed: float) -> None:
    """A seed that no generator takes is refused with operation, value and what is allowed."""
    told = Derivation(STARTS[0], (Branch(1, 0.5, 2**64 - 1),)).to_json()
    assert Derivation.from_json(told) is not None
    told["morphism"]["operations"][0]["seed"] = seed

    with pytest.raises(PointError, match=rf"operation branch: seed={seed}: must be a whole number from 0 to below 2"):
        Derivation.from_json(told)


def test_the_greatest_seed_is_replayed() -> None:
    """Operations with the greatest allowed seed can be replayed."""
    parent = GraphModule(STARTS[0])
    operation = Branch(1, 0.5, 2**64 - 1)
    child = GraphModule(operation.apply(parent.network))

    assert inherit(child, [parent.state_dict()], derivation=Derivation(parent.network, (operation,))).notes == ()


def test_layers_beside_the_graph_are_not_replayed() -> None:
    """A layer outside the graph with a similar name stays its own."""
    parent, graph, derivation = derived()
    child = nn.ModuleDict({"graph": graph, "layers": nn.ModuleDict({"5": copy.deepcopy(graph.layers["5"])})})
    donor = {f"graph.{name}": tensor for name, tensor in parent.state_dict().items()}

    report = inherit(child, [donor], derivation=derivation)

    assert report.tensors["graph.layers.5.weight"].how != "new"
    assert report.tensors["layers.5.weight"].how == "new"


def test_statistics_may_be_reset_where_operations_are_replayed() -> None:
    """With reset statistics a replayed child has a new network's mean and variance, and its parent's weights."""
    parent, child, derivation = derived()

    report = inherit(child, [parent.state_dict()], rules=Rules(statistics="reset"), derivation=derivation)

    assert bool((child.get_buffer("layers.2.running_mean") == 0).all())
    assert report.tensors["layers.2.running_mean"].why == "statistics are reset"
    assert report.tensors["layers.2.weight"].how == "morphed"


def test_replay_that_overflows_in_the_child_writes_nothing() -> None:
    """If replaying would give an infinity in the child's dtype, the child inherits by name only."""
    parent, child, derivation = derived()
    with torch.no_grad():
        parent.get_parameter("layers.9.bias")[0] = 1e6
    child.half()

    report = inherit(child, [parent.state_dict()], derivation=derivation)

    assert report.notes == ("not replayed: not finite",)
    assert all(tensor.isfinite().all() for tensor in child.state_dict().values())
    assert "morphed" not in {tensor.how for tensor in report.tensors.values()}


def test_inserted_layers_are_not_frozen() -> None:
    """In a replayed child copied layers are frozen, and new or changed ones learn."""
    parent, child, derivation = derived()
    report = inherit(child, [parent.state_dict()], derivation=derivation)

    n_frozen = set_frozen(child, report, Rules(freeze_epochs=1), 0)

    frozen = {name for name, parameter in child.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in child.named_parameters() if report.tensors[name].how == "copied"}
    assert 0 < n_frozen == sum(child.get_parameter(name).numel() for name in frozen)


def test_a_copied_network_is_not_frozen() -> None:
    """A child that equals its donor learns from the first epoch on."""
    donor, child = network(4, seed=1), network(4, seed=2)
    report = inherit(child, [donor.state_dict()])

    assert set_frozen(child, report, Rules(freeze_epochs=1), 0) == 0
    assert all(parameter.requires_grad for parameter in child.parameters())


def test_statistics_may_be_reset() -> None:
    """With reset statistics a child has its donor's batch-norm weights and a new network's mean and variance."""
    donor, child = network(4, seed=1), network(4, seed=2)
    fresh = copy_of(child)

    report = inherit(child, [donor.state_dict()], rules=Rules(statistics="reset"))

    assert torch.equal(child.get_buffer("1.running_mean"), fresh["1.running_mean"])
    assert torch.equal(child.get_parameter("1.weight"), donor.get_parameter("1.weight"))
    assert report.tensors["1.running_var"].why == "statistics are reset"
    assert report.share == 1.0


def test_shrink_and_perturb() -> None:
    """Inherited parameters are shrunk, and the child's initial values added; statistics are copied."""
    donor, child = network(4, seed=1), network(4, seed=2)
    fresh = copy_of(child)

    inherit(child, [donor.state_dict()], rules=Rules(shrink=0.4, perturb=0.1))

    expected = 0.4 * donor.get_parameter("2.weight") + 0.1 * fresh["2.weight"]
    assert torch.allclose(child.get_parameter("2.weight"), expected)
    assert torch.equal(child.get_buffer("1.running_mean"), donor.get_buffer("1.running_mean"))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"first": "size"}, r"rules.first='size': must be name or structure"),
        ({"rest": "zero"}, r"rules.rest='zero': must be scaled"),
        ({"statistics": True}, r"rules.statistics=True: must be inherit"),
        ({"shrink": 2}, r"rules.shrink=2: must be a number from 0 to 1"),
        ({"perturb": "x"}, r"rules.perturb='x': must be a number"),
        ({"warm_up_steps": -1}, r"rules.warm_up_steps=-1: must be a whole number of at least 0"),
        ({"freeze_epochs": 0.5}, r"rules.freeze_epochs=0.5: must be a whole number"),
    ],
    ids=range(7),
)
def test_invalid_rules_are_refused(rules: dict[str, Any], message: str) -> None:
    """An invalid rule is refused with name, value and what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        Rules(**rules)


def test_inherited_layers_are_frozen_for_the_first_epochs() -> None:
    """Wholly inherited layers stay frozen for the rule's number of epochs, while the rest learns."""
    child = network(4, seed=2)
    report = inherit(child, [{"0.weight": torch.rand(4, 1, 3, 3), "2.weight": torch.rand(3, 4, 3, 3)}])
    rules = Rules(freeze_epochs=2)
    optimizer = torch.optim.SGD(child.parameters(), lr=0.1, weight_decay=0.1)
    changed = []
    for epoch in range(3):
        n_frozen = set_frozen(child, report, rules, epoch)
        before = copy_of(child)
        optimizer.zero_grad()
        child(torch.randn(4, 1, 16, 16)).square().sum().backward()
        optimizer.step()
        changed.append({name for name, tensor in before.items() if not torch.equal(child.state_dict()[name], tensor)})
        assert n_frozen == (36 if epoch < 2 else 0)

    assert ["0.weight" in names for names in changed] == [False, False, True]
    assert all("2.weight" in names for names in changed)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_layers_frozen_by_the_user_stay_frozen(moment: str) -> None:
    """A layer that a user froze, before inheriting or after, stays frozen when inherited ones begin to learn."""
    child = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    if moment == "before":
        child[0].requires_grad_(False)
    donor = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4))
    rules = Rules(freeze_epochs=1)
    report = inherit(child, [donor.state_dict()], rules=rules)
    if moment == "after":
        child[0].requires_grad_(False)

    assert report.tensors["0.weight"].how == "copied"
    learning, n_frozen = [], []
    for epoch in range(2):
        n_frozen.append(set_frozen(child, report, rules, epoch))
        child = copy.deepcopy(child)
        learning.append([parameter.requires_grad for parameter in child.parameters()])
    assert learning == [[False] * 4 + [True] * 2, [False] * 2 + [True] * 4]
    assert n_frozen == [12, 0]


def test_freezing_leaves_something_to_learn() -> None:
    """If everything but the user's frozen layers was copied, none of it is frozen."""
    child = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    child[1].requires_grad_(False)
    report = inherit(child, [nn.Sequential(nn.Linear(3, 3)).state_dict()])

    assert set_frozen(child, report, Rules(freeze_epochs=1), 0) == 0
    assert [parameter.requires_grad for parameter in child.parameters()] == [True, True, False, False]


def test_rates_warm_up() -> None:
    """The rate rises in the rule's number of steps; without a warm-up it is full from the first step."""
    assert [Rules(warm_up_steps=3).warm_up(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert Rules().warm_up(0) == 1.0


def test_momentum_is_inherited_where_it_was_published() -> None:
    """A wider child's inherited channels have the donor's momentum and step count, the others none."""
    donor, child = network(4, seed=1), network(6, seed=2)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (donor, child)]
    donor(torch.randn(4, 1, 16, 16)).square().sum().backward()
    optimizers[0].step()
    published = {**donor.state_dict(), **optimizer_tensors(optimizers[0], donor)}
    report = inherit_optimizer(optimizers[1], child, [published])
    state = optimizers[1].state[child.get_parameter("2.weight")]

    momentum = optimizers[0].state[donor.get_parameter("2.weight")]["exp_avg"]
    assert torch.equal(state["exp_avg"][:4, :4], momentum)
    assert bool((state["exp_avg"][4:] == 0).all())
    assert float(state["step"]) == 1.0
    assert report.tensors["optimizer/exp_avg/2.weight"].how == "sliced"
    child(torch.randn(4, 1, 16, 16)).square().sum().backward()
    optimizers[1].step()
    assert all(parameter.isfinite().all() for parameter in child.parameters())


def stepped(optimizer: type[torch.optim.Optimizer], model: nn.Module, **arguments: Any) -> dict[str, Tensor]:
    """Returns the state that a donor publishes after a step."""
    made = optimizer(model.parameters(), lr=0.1, **arguments)  # type: ignore[call-arg]
    model(torch.ones(1, 4)).sum().backward()
    made.step()
    return {**model.state_dict(), **optimizer_tensors(made, model)}


def test_state_of_another_optimizer_is_left_out() -> None:
    """Adam skips SGD's momentum, and inherits from the next donor that published Adam's."""
    sgd, adam = stepped(torch.optim.SGD, nn.Linear(4, 4), momentum=0.9), stepped(torch.optim.Adam, nn.Linear(4, 4))
    for donors, share in (([sgd], 0.0), ([sgd, adam], 1.0)):
        child = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(child.parameters())

        assert inherit_optimizer(optimizer, child, donors).share == share

        assert bool(optimizer.state) == bool(share)
        child(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def test_count_of_steps_alone_is_not_taken() -> None:
    """If a parameter's momentum does not fit, its step count is left out; else both come from one donor."""
    narrow = stepped(torch.optim.Adam, nn.Linear(4, 3))
    broken = {name: tensor.reshape(-1) if "exp_avg/" in name else tensor for name, tensor in narrow.items()}
    fitting = stepped(torch.optim.Adam, nn.Linear(4, 4))
    fitting["optimizer/step/weight"] = torch.tensor(7.0)
    child = nn.Linear(4, 4)
    optimizers = [torch.optim.Adam(child.parameters()) for _ in range(2)]

    inherit_optimizer(optimizers[0], child, [broken])
    inherit_optimizer(optimizers[1], child, [narrow, fitting])

    assert child.weight not in optimizers[0].state
    assert float(optimizers[1].state[child.weight]["step"]) == 7.0


@pytest.mark.parametrize("kind", ["Adagrad", "RMSprop", "Rprop", "NAdam", "AdamW", "SGD"])
def test_optimizers_inherit_their_whole_state(kind: str) -> None:
    """A child of the same shape inherits the whole state of each of torch's optimizers with tensors."""
    donor, child = nn.Linear(4, 4), nn.Linear(4, 4)
    arguments = {"momentum": 0.9} if kind == "SGD" else {}
    published = stepped(getattr(torch.optim, kind), donor, **arguments)
    optimizer = getattr(torch.optim, kind)(child.parameters(), lr=0.1, **arguments)

    assert inherit_optimizer(optimizer, child, [published]).share == 1.0

    state = optimizer_tensors(optimizer, child)
    assert len(state) == len(published) - 2
    assert all(torch.equal(tensor, published[name]) for name, tensor in state.items())
    child(torch.ones(1, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("first", ["name", "structure"])
def test_published_momentum_is_no_weight(first: Match) -> None:
    """A layer that no donor has stays new, even if a donor published momentum of its shape."""
    donor = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False)})
    child = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "ab"})
    optimizer = torch.optim.Adam(donor.parameters())
    donor["a"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    fresh = copy_of(child)

    inherit(child, [{**donor.state_dict(), **optimizer_tensors(optimizer, donor)}], rules=Rules(first=first))

    assert torch.equal(child["a"].weight, donor["a"].weight)
    assert torch.equal(child["b"].weight, fresh["b.weight"])


def test_share_counts_parameters_only() -> None:
    """The share counts the elements of all parameters, and no buffers."""
    donor, child = network(4, n_blocks=1), network(4, n_blocks=2)
    del donor[1].weight, donor[1].bias

    report = inherit(child, [donor.state_dict()])

    assert report.tensors["1.running_mean"].how == "copied"
    n_inherited = 4 * 9 + 4
    assert report.share == n_inherited / sum(parameter.numel() for parameter in child.parameters())


@given(child=st.lists(sizes, max_size=4), donor=st.lists(sizes, max_size=4))
def test_nothing_outside_the_overlap_changes(child: list[int], donor: list[int]) -> None:
    """For any two shapes, the overlap has the donor's bits, and the rest the child's own."""
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
    assert report.tensors["weight"].how == ("new" if not taken else "copied" if child == donor else "sliced")


@settings(max_examples=30)
@given(widths=st.lists(sizes, min_size=2, max_size=4), kernel=st.sampled_from([1, 3, 5]))
def test_any_two_networks_fit_somehow(widths: list[int], kernel: int) -> None:
    """For any widths and kernels the share is above 0 and at most 1, and the child runs."""
    child = network(widths[0], kernel=kernel)

    report = inherit(child, [copy_of(network(width)) for width in widths[1:]])

    assert 0.0 < report.share <= 1.0
    assert child(torch.randn(2, 1, 16, 16)).isfinite().all()


def test_same_shape_wins_over_better_donor() -> None:
    """A whole tensor of a later donor comes before a part from a better one."""
    best, later = network(4, seed=1), network(6, seed=2)

    report = inherit(child := network(6, seed=3), [best.state_dict(), later.state_dict()])
    assert {tensor.donor for tensor in report.tensors.values()} == {1}  # the counts, which any has, go with the rest
    assert torch.equal(child.get_parameter("2.weight"), later.get_parameter("2.weight"))

    assert report.main_donor == 1

    report = inherit(network(8), [best.state_dict(), later.state_dict()])
    assert {tensor.donor for tensor in report.tensors.values()} == {0}
    assert report.main_donor == 0


def test_new_tensors_have_a_reason() -> None:
    """A tensor that was not inherited keeps its bits, and the report gives the reason."""
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
        "rank": "donor at index 0: other rank: (3, 1) into (3,)",
        "nan": "donor at index 0: not finite",
        "inf": "donor at index 0: not finite",
        "kind": "donor at index 0: torch.complex64 does not fit torch.float32",
        "empty": "donor at index 0: no overlap: (0,) into (3,)",
        "count": "donor at index 0: integers are not sliced: (2,) into (3,)",
        "whole": "donor at index 0: torch.float32 does not fit torch.int64",
    }
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in child.state_dict().items())


def test_next_donor_fills_in_for_a_broken_one() -> None:
    """If the best donor's tensor is not finite, the next donor gives it, in part if necessary."""
    torn = copy_of(network(4))
    torn["0.weight"][0, 0, 0, 0] = math.nan
    healthy = network(3, seed=1)

    report = inherit(child := network(4, seed=2), [torn, healthy.state_dict()])

    assert report.tensors["0.weight"].donor == 1
    assert torch.equal(child.get_parameter("0.weight")[:3], healthy.get_parameter("0.weight"))
    assert report.tensors["2.weight"].donor == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_values_are_cast_to_the_dtype_of_the_child(dtype: torch.dtype) -> None:
    """The child keeps its dtype, whatever the donor's."""
    donor, child = nn.Linear(3, 2).to(dtype), nn.Linear(3, 2)

    assert inherit(child, [donor.state_dict()]).share == 1.0

    assert child.weight.dtype == torch.float32
    assert torch.equal(child.weight, donor.weight.float())


def test_overflow_in_the_dtype_of_the_child_is_refused() -> None:
    """A finite value that would be infinite in the child is not inherited."""
    child = nn.Linear(1, 1).half()

    assert inherit(child, [{"weight": torch.tensor([[1e6]])}]).tensors["weight"].why == "donor at index 0: not finite"

    assert child.weight.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "value", "child"),
    [
        (torch.int64, 2**40, torch.int32), (torch.int64, -1, torch.uint8), (torch.int32, -1, torch.uint32),
        (torch.int64, -1, torch.uint64),
    ],
    ids=str,
)  # fmt: skip
def test_whole_numbers_that_do_not_fit_are_refused(dtype: torch.dtype, value: int, child: torch.dtype) -> None:
    """Integers are inherited only if the child's type can hold them."""
    model = nn.Module()
    model.register_buffer("n", torch.tensor([5, 6]).to(child))

    refused = inherit(model, [{"n": torch.tensor([value, 1], dtype=dtype)}]).tensors["n"]
    assert refused.why == f"donor at index 0: values of {dtype} do not fit {child}"
    assert model.n.tolist() == [5, 6]

    assert inherit(model, [{"n": torch.tensor([7, 8], dtype=dtype)}]).tensors["n"].how == "copied"
    assert model.n.tolist() == [7, 8]


@pytest.mark.parametrize("rules", [Rules(), Rules(shrink=0.5, perturb=0.5)], ids=["default", "shrunk"])
@pytest.mark.parametrize("n_donor", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_are_inherited(dtype: torch.dtype, n_donor: int, rules: Rules) -> None:
    """A float8 layer inherits from other float8 types, although torch can't compute with them."""

    def layer(n: int, value: float) -> nn.Module:
        module = nn.Linear(n, n, bias=False)
        module.weight = nn.Parameter(torch.full((n, n), value).to(dtype))
        module.register_buffer("scale", torch.full((n,), value).to(dtype))
        return module

    child = layer(3, 1.0)

    report = inherit(child, [layer(n_donor, 2.0).state_dict()], rules=rules)

    assert {tensor.how for tensor in report.tensors.values()} == {"copied" if n_donor == 3 else "sliced"}
    assert child.scale.float().tolist()[:2] == [2.0, 2.0]
    if n_donor < 4:
        assert float(child.weight.detach()[0, 0].float()) == (2.0 if rules.shrink == 1.0 else 1.5)
    broken = torch.full((3,), math.nan).to(dtype)
    assert inherit(layer(3, 1.0), [{"scale": broken}]).tensors["scale"].why == "donor at index 0: not finite"


def test_expanded_buffers_stay_new() -> None:
    """A buffer with several elements in one memory cell is not written, and the report says so."""
    model = nn.Module()
    model.register_buffer("ones", torch.ones(1).expand(3))

    assert "several elements share memory" in inherit(model, [{"ones": torch.zeros(3)}]).tensors["ones"].why


@pytest.mark.parametrize("given_", ["encoder", "decoder", "both"])
def test_parameters_tied_by_transposition_are_handled_once(given_: str) -> None:
    """A decoder that is its encoder transposed is shrunk and perturbed once, under either name."""

    def tied() -> nn.Module:
        model = nn.ModuleDict({"encoder": nn.Linear(4, 3, bias=False), "decoder": nn.Linear(3, 4, bias=False)})
        model["decoder"].weight = nn.Parameter(model["encoder"].weight.detach().t())
        return model

    child, donor = tied(), tied()
    published = {name: tensor for name, tensor in copy_of(donor).items() if given_ in ("both", name.split(".")[0])}
    expected = 0.5 * donor["encoder"].weight + 0.5 * child["encoder"].weight

    report = inherit(child, [published], rules=Rules(shrink=0.5, perturb=0.5))

    assert torch.allclose(child["encoder"].weight, expected)
    assert torch.equal(child["decoder"].weight, child["encoder"].weight.t())
    assert (report.share, list(report.tensors)) == (1.0, ["encoder.weight", "decoder.weight"])


def test_tied_parameters_are_handled_once() -> None:
    """A parameter with two names is written once, by the name that fits, and counted once."""
    child = nn.ModuleDict({"encoder": nn.Linear(3, 3, bias=False), "decoder": nn.Linear(3, 3, bias=False)})
    child["decoder"].weight = child["encoder"].weight
    donor = {"encoder.weight": torch.rand(2, 3), "decoder.weight": torch.rand(3, 3)}

    report = inherit(child, [donor])

    assert child["encoder"].weight is child["decoder"].weight
    assert torch.equal(child["encoder"].weight, donor["decoder.weight"])
    assert report.share == 1.0
    assert report.tensors["encoder.weight"] == report.tensors["decoder.weight"]


def test_gradients_and_modes_are_left_alone() -> None:
    """Inheriting leaves no trace in autograd, and parameters stay leaves that require gradients."""
    child, frozen = network(4), network(4)
    child.eval(), frozen.requires_grad_(False)

    for model in (child, frozen):
        assert inherit(model, [network(6, seed=1).state_dict()]).tensors["2.weight"].how == "sliced"

    assert not child.training
    assert not any(p.requires_grad for p in frozen.parameters())
    assert torch.equal(frozen.get_parameter("2.weight"), child.get_parameter("2.weight"))
    assert all(p.is_leaf and p.requires_grad and p.grad is None for p in child.parameters())


def hooked(change: Callable[[dict[str, Any]], None]) -> nn.Module:
    """Returns a network whose state_dict is changed by a hook."""
    child = network(4)
    child.register_state_dict_post_hook(lambda module, state, prefix, metadata: change(state))
    return child


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_that_a_hook_makes_are_loaded(dtype: torch.dtype) -> None:
    """If a hook makes the state_dict of copies, they are loaded, and the report is true."""
    donor = network(4, seed=1)

    def copied(state: dict[str, Any]) -> None:
        for name in [name for name in state if "num_" not in name]:
            state[name] = state[name].to(dtype, copy=True)

    report = inherit(child := hooked(copied), [{**donor.state_dict(), "2.weight": torch.full((3, 4, 3, 3), 7.0)}])

    assert (report.tensors["2.weight"].how, report.tensors["0.weight"].how) == ("sliced", "copied")
    assert bool((child.get_parameter("2.weight")[:3] == 7.0).all())
    for name in ("0.weight", "1.running_mean", "3.num_batches_tracked"):
        assert torch.equal(copy_of(child)[name], donor.state_dict()[name])


def test_copies_that_cannot_be_loaded_stay_new() -> None:
    """If load_state_dict refuses a hook's copies, nothing counts as inherited."""

    def renamed(state: dict[str, Any]) -> None:
        for name in list(state):
            state[f"{name}_copy"] = state.pop(name).clone()

    child = hooked(renamed)
    fresh = copy_of(child)

    report = inherit(child, [fresh])

    assert report.share == 0.0
    assert {tensor.how for tensor in report.tensors.values()} == {"new"}
    assert "load_state_dict does not take them: Error" in report.tensors["0.weight_copy"].why
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in copy_of(child).items())


def test_strides_of_the_child_are_kept() -> None:
    """A child in channels-last memory inherits values, not strides."""
    child, donor = network(4).to(memory_format=torch.channels_last), network(4, seed=1)

    inherit(child, [donor.state_dict()])

    assert child.get_parameter("2.weight").is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(child.get_parameter("2.weight"), donor.get_parameter("2.weight"))


def test_without_donor_nothing_is_inherited() -> None:
    """Without a donor everything is new, the share is 0.0, and the summary is small."""
    child = network(4)
    fresh = copy_of(child)

    report = inherit(child, [])

    assert all(torch.equal(tensor, fresh[name]) for name, tensor in child.state_dict().items())
    assert {tensor.why for tensor in report.tensors.values()} == {"no donor"}
    assert report.summary() == {
        "share": 0.0, "n_copied": 0, "n_sliced": 0, "n_new": len(fresh), "not_copied": {}
    }  # fmt: skip


def test_model_without_parameters_has_share_zero() -> None:
    """The share of a model without parameters is 0.0."""
    assert inherit(nn.ReLU(), [network(4).state_dict()]).share == 0.0
    assert inherit(nn.BatchNorm2d(3, affine=False), [nn.BatchNorm2d(3).state_dict()]).share == 0.0


def test_summary_is_json() -> None:
    """The summary survives JSON, counts every tensor, and gives a reason for each one not copied."""
    child = nn.ModuleList(nn.Linear(2, 2) for _ in range(40))

    summary = inherit(child, [{"0.weight": torch.rand(2, 2), "1.weight": torch.rand(1, 2)}]).summary()

    assert json.loads(json.dumps(summary)) == summary
    assert (summary["n_copied"], summary["n_sliced"], summary["n_new"]) == (1, 1, 78)
    assert len(summary["not_copied"]) == 79
    assert summary["share"] == 6 / (40 * 6)


def test_lazy_parameters_and_extra_state_are_left_alone() -> None:
    """A parameter without a shape stays new, and state that is no tensor is skipped."""

    class Stateful(nn.LazyLinear):
        def get_extra_state(self) -> object:
            return {"step": 1}

        def set_extra_state(self, state: object) -> None: ...

    report = inherit(child := Stateful(3), [nn.Linear(2, 3).state_dict()])

    assert list(report.tensors) == ["weight", "bias"]
    assert "run one batch" in report.tensors["weight"].why
    assert report.share == 0.0
    assert child.has_uninitialized_params()
