"""Growth operations on a transformer's weights."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.growth import grow, new_blocks
from nas.inheritance.inherit import inherit
from nas.problems.language.network import LanguageModel
from nas.spaces.growth import Growth, GrowthOperation, InsertBlock, Sizes, Stack, WidenHeads, WidenMlp
from nas.spaces.space import Variation
from nas.spaces.transformer import TransformerSpace

SIZES = Sizes(n_layers=2, n_heads=2, width=16, mlp_ratio=2)
SYMBOLS = torch.randint(13, (4, 8), generator=torch.Generator().manual_seed(3))
ALL = (WidenHeads(1), InsertBlock(0), WidenMlp(3, 2), InsertBlock(2), WidenHeads(3))


def model(sizes: Sizes, seed: int = 0, dtype: torch.dtype = torch.float64) -> LanguageModel:
    """Returns a model whose every tensor, biases and norms included, is random."""
    torch.manual_seed(seed)
    network = LanguageModel(13, **sizes.to_json(), context=8).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return network


def outputs(network: nn.Module) -> Tensor:
    """Returns the logits in train mode, since torch takes a fused path in eval mode."""
    with torch.no_grad():
        found: Tensor = network.train()(SYMBOLS)
    return found


def child_of(parent: LanguageModel, operations: Sequence[GrowthOperation], sizes: Sizes = SIZES) -> LanguageModel:
    """Returns the child with the grown weights."""
    grown, weights = grow(sizes, parent.state_dict(), operations)
    child = model(grown, seed=9, dtype=parent.norm.weight.dtype)
    child.load_state_dict(weights)
    return child


def relative_change(parent: LanguageModel, child: LanguageModel) -> float:
    """Returns the greatest difference of the logits, as a share of the greatest logit."""
    before, after = outputs(parent), outputs(child)
    return float((before - after).abs().max() / before.abs().max())


@pytest.mark.parametrize("operation", [*ALL[:3], InsertBlock(1)], ids=str)
def test_each_operation_keeps_the_function(operation: GrowthOperation) -> None:
    """The logits stay the same to 1e-12 in float64, to 1e-6 in float32, and in eval mode too."""
    for dtype, most in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        parent = model(SIZES, dtype=dtype)
        child = child_of(parent, [operation])

        assert operation.keeps_function
        assert relative_change(parent, child) < most
    with torch.no_grad():
        torch.testing.assert_close(child.eval()(SYMBOLS), parent.eval()(SYMBOLS), rtol=1e-5, atol=1e-4)


def test_chains_of_operations_keep_the_function() -> None:
    """Random chains that a space draws keep the logits to 1e-10 in float64."""
    space = TransformerSpace((1, 4), (1, 2, 4), (4, 8), (1, 2, 3))
    for seed in range(20):
        rng = random.Random(seed)
        variation = Variation.of(space.smallest(rng))
        for _ in range(rng.randint(2, 5)):
            variation = space.grow(variation, rng)
        sizes = Sizes.of(variation.origin)
        parent = model(sizes, seed)

        assert relative_change(parent, child_of(parent, variation.operations, sizes)) < 1e-10


def test_stack_changes_the_function_and_copies_the_blocks() -> None:
    """A stacked child has each block twice and other logits, as its mark says."""
    parent = model(SIZES)
    child = child_of(parent, [Stack()])

    assert not Stack.keeps_function and relative_change(parent, child) > 1e-3
    for index in range(4):
        torch.testing.assert_close(child.layers[index].state_dict(), parent.layers[index % 2].state_dict())


def test_copies_learn_to_differ() -> None:
    """From the second step on, the two copies of every unit have other gradients."""
    child = child_of(model(SIZES), [WidenHeads(1)])
    optimizer = torch.optim.SGD(child.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        child(SYMBOLS).logsumexp(-1).sum().backward()
        optimizer.step()

    for name, parameter in child.named_parameters():
        if parameter.dim() == 2:
            halves = parameter.grad.chunk(2, 0 if name.startswith("layers.") else 1)
            assert not torch.allclose(*halves, rtol=1e-3), name


def test_an_inserted_block_learns_at_once() -> None:
    """The output projections of an inserted block get gradients, though they are 0."""
    child = child_of(model(SIZES), [InsertBlock(0), WidenMlp(3)])
    child(SYMBOLS).logsumexp(-1).sum().backward()

    assert not child.layers[1].linear2.weight.any() and child.layers[1].linear2.weight.grad.any()
    assert child.layers[1].self_attn.out_proj.weight.grad.any()
    assert child.layers[0].linear2.weight.grad[:, -16:].any()  # of the new hidden units


def test_inherit_replays_growth() -> None:
    """A child inherits by its growth: same function, with new blocks marked as inserted and the head still tied."""
    parent, growth = model(SIZES), Growth(SIZES, ALL)
    child = model(growth.grown, seed=9)

    report = inherit(child, [parent.state_dict()], derivation=growth)

    assert (report.replayed, report.notes) == (0, ())
    assert relative_change(parent, child) < 1e-12
    assert child.head.weight is child.embed.weight
    assert report.tensors["layers.1.linear1.weight"].how == "inserted"
    assert report.tensors["layers.0.linear1.weight"].how == "morphed" == report.tensors["head.weight"].how
    assert new_blocks(2, ALL) == {1, 3}


def test_unchanged_tensors_are_copies() -> None:
    """A tensor that the operations do not touch is reported as copied."""
    child = model(Sizes(3, 2, 16, 2), seed=9)
    report = inherit(child, [model(SIZES).state_dict()], derivation=Growth(SIZES, (InsertBlock(1),)))

    assert report.tensors["embed.weight"].how == "copied"


def test_a_network_inside_another_is_found() -> None:
    """The transformer may be a part of the model; tensors beside it are inherited by name."""
    parent = nn.ModuleDict({"body": model(SIZES), "rest": nn.Linear(3, 3)})
    child = nn.ModuleDict({"body": model(Sizes(2, 4, 32, 2), seed=9), "rest": nn.Linear(3, 3)})

    report = inherit(child, [parent.state_dict()], derivation=Growth(SIZES, (WidenHeads(),)))

    assert report.replayed == 0 and relative_change(parent["body"], child["body"]) < 1e-12
    assert torch.equal(child["rest"].weight, parent["rest"].weight)


def test_growth_that_does_not_fit_is_not_replayed() -> None:
    """Other sizes, heads, vocabularies and models are refused with a reason, and inherit by name instead."""
    growth = Growth(SIZES, (WidenHeads(),))
    parent = model(SIZES).state_dict()
    more_symbols = LanguageModel(14, 2, 4, 32, 2, 8).double()
    for child, message in (
        (model(Sizes(3, 4, 32, 2)), "another network"),
        (model(Sizes(2, 2, 32, 2)), "another network"),
        (model(Sizes(2, 4, 32, 3)), "another network"),
        (more_symbols, "13 rows, the child's 14"),
        (nn.Linear(2, 2), "0 transformers"),
    ):
        report = inherit(child, [parent], derivation=growth)

        assert report.replayed is None and message in report.notes[0], report.notes
    report = inherit(model(growth.grown), [model(Sizes(2, 2, 16, 3)).state_dict()], derivation=growth)
    assert "linear1.weight has shape (48, 16), must be (32, 16)" in report.notes[0]


def changed_model(sizes: Sizes, change: Callable[[nn.Module], None], seed: int = 0) -> LanguageModel:
    """Returns a model with each block and the model itself changed."""
    network = model(sizes, seed)
    for module in (*network.layers, network):
        change(module)
    return network.double()


def _post_norm(module: nn.Module) -> None:
    module.norm_first = False


def _softmax(module: nn.Module) -> None:
    module.activation = nn.Softmax(-1)


def _prelu(module: nn.Module) -> None:
    module.activation = nn.PReLU()


def _silu(module: nn.Module) -> None:
    module.activation = nn.functional.silu


def _epsilon(module: nn.Module) -> None:
    if isinstance(module, nn.TransformerEncoderLayer):
        module.norm1.eps = module.norm2.eps = 0.1


def _group_norm(module: nn.Module) -> None:
    if isinstance(module, nn.TransformerEncoderLayer):
        module.norm2 = _Groups(1, module.norm2.weight.numel())


class _Groups(nn.GroupNorm):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.flatten(0, 1)).view_as(values)


def _shared_blocks(module: nn.Module) -> None:
    if isinstance(module, LanguageModel):
        module.layers = nn.ModuleList([module.layers[0]] * len(module.layers))


def _largest_norm(module: nn.Module) -> None:
    if isinstance(module, LanguageModel):
        module.embed.max_norm = 1.0


def _other_heads(module: nn.Module) -> None:
    if isinstance(module, LanguageModel):
        module.layers[-1].self_attn.num_heads = 1


def _other_head_name(module: nn.Module) -> None:
    if isinstance(module, LanguageModel):
        module.out = nn.Linear(module.norm.weight.numel(), 13, bias=False)


def _own_block(module: nn.Module) -> None:
    if isinstance(module, LanguageModel):
        module.layers = nn.ModuleList(map(_Own, module.layers))


class _Own(nn.Module):
    """A block of torch's tensors with another function."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, module in block.named_children():
            self.add_module(name, module)


@pytest.mark.parametrize(
    ("change", "operation", "message"),
    [
        (_post_norm, InsertBlock(0), "layers.0.norm_first=False: must be True for insert_block"),
        (_softmax, WidenHeads(), "layers.0.activation: must compute each unit by itself"),
        (_softmax, WidenMlp(3), "layers.0.activation: must compute each unit by itself"),
        (_prelu, InsertBlock(0), "layers.0.activation.weight: must not be there"),
        (_group_norm, WidenHeads(), "layers.0.norm2=_Groups: must be a LayerNorm for widen_heads"),
        (_shared_blocks, InsertBlock(0), "layers: must not share tensors for insert_block"),
        (_largest_norm, WidenHeads(), "embed.max_norm=1.0: must be None for widen_heads"),
        (_other_heads, InsertBlock(0), "layers.2: has 1 heads, must have 2"),
        (_other_head_name, WidenHeads(), r"out.weight has shape (13, 16), the child's (13, 32)"),
        (_own_block, InsertBlock(0), "layers.0=_Own: must be a TransformerEncoderLayer of torch"),
    ],
)
def test_growth_that_changes_the_function_is_not_replayed(
    change: Callable[[nn.Module], None], operation: GrowthOperation, message: str
) -> None:
    """Blocks whose function an operation changes are refused with a reason, though names and shapes fit."""
    growth = Growth(SIZES, (operation,))
    parent, child = changed_model(SIZES, change), changed_model(growth.grown, change, seed=9)
    report = inherit(child, [parent], derivation=growth)

    assert report.replayed is None and message in report.notes[-1], report.notes


@pytest.mark.parametrize(
    ("change", "operations"),
    [
        (_post_norm, (WidenHeads(1), WidenMlp(3))),
        (_silu, ALL),
        (_epsilon, ALL),
        (_softmax, (InsertBlock(1),)),
        (_group_norm, (InsertBlock(1), WidenMlp(3))),
        (_largest_norm, (InsertBlock(0), WidenMlp(3))),
    ],
)
def test_growth_of_other_blocks_keeps_their_function(
    change: Callable[[nn.Module], None], operations: tuple[GrowthOperation, ...]
) -> None:
    """Operations that keep the function of other blocks are replayed on them."""
    growth = Growth(SIZES, operations)
    parent, child = changed_model(SIZES, change), changed_model(growth.grown, change, seed=9)
    report = inherit(child, [parent], derivation=growth)

    assert (report.replayed, report.notes) == (0, ())
    assert relative_change(parent, child) < 1e-12


def test_donors_of_other_networks_are_not_grown() -> None:
    """If the parent is no donor, a donor with more blocks or other heads is not taken for it."""
    growth = Growth(SIZES, (InsertBlock(1),))
    for sizes, message in ((Sizes(4, 2, 16, 2), "more than 2 blocks"), (Sizes(2, 4, 16, 2), "have 4 heads")):
        report = inherit(model(growth.grown, seed=9), [model(sizes)], derivation=growth)

        assert report.replayed is None and message in report.notes[0], report.notes


def test_an_untied_head_of_another_size_is_not_replayed() -> None:
    """A head with other outputs than the donor's is a reason not to replay, and no crash."""
    growth, networks = Growth(SIZES, (WidenHeads(),)), []
    for sizes, n_outputs in ((SIZES, 5), (growth.grown, 6)):
        networks.append(model(sizes))
        networks[-1].head = nn.Linear(sizes.width, n_outputs, bias=False).double()
    parent, child = networks

    report = inherit(child, [parent.state_dict()], derivation=growth)

    assert report.replayed is None and "head.weight has 5 rows, the child's 6" in report.notes[0]


def test_a_growth_of_a_million_blocks_takes_no_time() -> None:
    """Sizes in a damaged record are compared with the child block by block, and refused at the first difference."""
    growth = Growth(Sizes(1 << 19, 2, 16, 2), (Stack(),))
    began_s = time.process_time()
    report = inherit(model(SIZES), [model(SIZES).state_dict()], derivation=growth)

    assert "layers.2.self_attn.in_proj_weight is missing" in report.notes[0]
    assert time.process_time() - began_s < 1


def test_weights_of_another_network_are_refused() -> None:
    """A missing tensor or another shape raises ConfigurationError with its name."""
    weights = model(SIZES).state_dict()
    for change, message in (({"embed.weight": torch.zeros(13, 8)}, "embed.weight has shape"), ({}, "norm.bias is")):
        given = {name: tensor for name, tensor in weights.items() if name != "norm.bias"} | change
        with pytest.raises(ConfigurationError, match=message):
            grow(SIZES, given, [WidenHeads()])
