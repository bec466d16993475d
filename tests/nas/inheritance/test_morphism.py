"""Morphisms: another network with the same function."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from nas.core.errors import ConfigurationError, PointError
from nas.inheritance.morphism import morph, replay
from nas.spaces.graphs.branching import Branch, Merge, Split
from nas.spaces.graphs.inserting import (
    InsertActivation,
    InsertBlock,
    InsertConv,
    InsertLinear,
    InsertNorm,
    InsertResidual,
)
from nas.spaces.graphs.layers import Activation, Add, Concat, Conv, Flatten, GlobalPool, Linear, Pool
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.operations import OPERATIONS, operation_from_json
from nas.spaces.graphs.removing import Disconnect, Remove
from nas.spaces.graphs.resizing import GrowKernel, Narrow, ShrinkKernel, Widen
from nas.spaces.graphs.skipping import AddSkip, ConcatSkip
from nas.spaces.graphs.striding import DelayStride, FuseStride
from tests.support.graph_networks import MORPHISMS, STARTS, seeds, small, walk

PLAIN, RESIDUAL, _, VECTORS = STARTS
FLAT = Network(
    (2, 4, 4),
    (Node(1, Conv(3, 3), (0,)), Node(2, Pool("mean", 3, 2), (1,)), Node(3, Flatten(), (2,)), Node(4, Linear(2), (3,))),
)
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}
EXACT: list[tuple[Network, Operation]] = [
    (PLAIN, Widen(1, 7)),
    (PLAIN, Widen(1, 9, 0.9, 3)),
    (PLAIN, Widen(5, 7, 0.5)),
    (RESIDUAL, Widen(1, 6, 0.5)),  # an add ties it to node 7, and more
    (RESIDUAL, Widen(14, 8, 0.5)),  # and this one to the shortcut
    (VECTORS, Widen(1, 9, 0.5)),
    (FLAT, Widen(1, 5, 0.5)),  # each channel is four features behind the flatten
    (FLAT, ConcatSkip(0, 1)),
    (RESIDUAL, GrowKernel(16, 5)),
    (PLAIN, InsertConv(3, 3)),
    (PLAIN, InsertConv(0, 5, False)),
    (VECTORS, InsertLinear(2)),
    (PLAIN, InsertNorm(8)),
    (PLAIN, InsertActivation(1, "prelu")),
    (PLAIN, InsertActivation(4, "relu")),
    (PLAIN, InsertBlock(4, 3, True)),
    (PLAIN, InsertBlock(2, 3, False)),
    (VECTORS, InsertBlock(2, 1, True)),
    (PLAIN, InsertResidual(4, 3)),
    (RESIDUAL, InsertResidual(2, 5, 8)),
    (PLAIN, AddSkip(1, 3)),
    (PLAIN, AddSkip(0, 7)),
    (VECTORS, AddSkip(0, 4)),
    (PLAIN, ConcatSkip(1, 3)),
    (PLAIN, ConcatSkip(0, 7)),
    (PLAIN, ConcatSkip(4, 5)),  # a norm comes behind, which new channels go through
    (VECTORS, ConcatSkip(0, 1)),
    (PLAIN, Branch(5)),
    (RESIDUAL, Branch(11, 0.5, 1)),
    (VECTORS, Branch(5, 0.5, 1)),
    (RESIDUAL, Split(7, 1)),
    (VECTORS, Split(1, 3)),
    (RESIDUAL, DelayStride(11)),
]


def state_of(network: Network, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    """Returns weights and statistics that no layer starts with."""
    torch.manual_seed(seed)
    module = GraphModule(network).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        module(torch.randn(16, *network.input_shape, dtype=dtype))
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def outputs(network: Network, weights: Mapping[str, Tensor], *, train: bool) -> Tensor:
    """Returns the network's outputs for eight random examples, the same at each call."""
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    module = GraphModule(network).to(dtype).train(train)
    module.load_state_dict(dict(weights))
    with torch.no_grad():
        return module(torch.randn(8, *network.input_shape, dtype=dtype, generator=torch.Generator().manual_seed(1)))


def error(before: Tensor, after: Tensor) -> float:
    """Returns the greatest difference as a share of the greatest output."""
    return float((after - before).abs().max() / before.abs().max())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("network", "operation"), EXACT, ids=[f"{n}-{o.kind}" for n, (_, o) in enumerate(EXACT)])
def test_the_function_stays(network: Network, operation: Operation, dtype: torch.dtype) -> None:
    """The child's outputs equal its parent's in eval mode and, if declared, in train mode."""
    weights = state_of(network, dtype)
    kept = {name: tensor.clone() for name, tensor in weights.items()}
    child, morphed = morph(network, weights, operation)

    assert child != network
    for train in (False, True)[: 1 if operation.exactness == "eval" else 2]:
        before = outputs(network, weights, train=train)
        assert error(before, outputs(child, morphed, train=train)) < BOUNDS[dtype]
        assert float(before.std(0).mean()) > 0.01  # else to be equal would mean nothing
    assert all(torch.equal(weights[name], tensor) for name, tensor in kept.items())
    assert {tensor.dtype for name, tensor in morphed.items() if "num_batches" not in name} == {dtype}


IN_TRAIN_MODE = tuple(move for move in MORPHISMS if move != "deepen")
"""Those that keep the function in train mode, too: none puts in a norm."""


def check_chain(seed: int, dtype: torch.dtype, moves: tuple[str, ...], n_moves: int = 20) -> None:
    """Checks the network after a chain of random morphisms in eval mode and, if all declare it, in train mode."""
    network, operations = walk(seed, n_moves, moves)
    weights = state_of(network, dtype, seed)
    modes = {train: outputs(network, weights, train=train) for train in (False, True)}
    child, morphed = network, weights
    for operation in operations:
        child, morphed = morph(child, morphed, operation)
        if operation.exactness == "eval":
            modes.pop(True, None)
    assert True in modes or moves != IN_TRAIN_MODE
    for train, before in modes.items():
        assert error(before, outputs(child, morphed, train=train)) < BOUNDS[dtype], operations


@pytest.mark.parametrize("moves", [MORPHISMS, IN_TRAIN_MODE], ids=["eval", "train"])
@settings(max_examples=4)
@given(seed=seeds)
def test_chains_keep_the_function(moves: tuple[str, ...], seed: int) -> None:
    """Twenty random morphisms, one after the other, keep the function."""
    for dtype in BOUNDS:
        check_chain(seed, dtype, moves)


@pytest.mark.slow
@pytest.mark.parametrize("moves", [MORPHISMS, IN_TRAIN_MODE], ids=["eval", "train"])
@settings(max_examples=60)
@given(seed=seeds)
def test_many_chains_keep_the_function(moves: tuple[str, ...], seed: int) -> None:
    """Many chains of twenty random morphisms keep it."""
    for dtype in BOUNDS:
        check_chain(seed, dtype, moves)


def test_copies_can_learn_to_differ() -> None:
    """After a step of training, copies with unequal shares differ, and copies with equal shares do not."""
    for noise, is_broken in ((0.5, True), (0.0, False)):
        child, weights = morph(PLAIN, state_of(PLAIN), Widen(1, 8, noise))
        module = GraphModule(child)
        module.load_state_dict(weights)
        module(torch.randn(4, *child.input_shape, generator=torch.Generator().manual_seed(0))).square().sum().backward()
        copied = module.get_parameter("layers.1.weight")
        copies = [(i, j) for i in range(4) for j in range(4, 8) if torch.equal(copied[i], copied[j])]
        gradient = copied.grad
        assert gradient is not None

        assert len(copies) == 4
        assert all(torch.allclose(gradient[i], gradient[j]) != is_broken for i, j in copies)


def test_new_paths_can_learn() -> None:
    """Parts that start at 0 get a gradient: scale, convolution or norm of a new path, and readers of new channels."""
    for operation, name in (
        (AddSkip(1, 3), "layers.10.weight"),
        (AddSkip(0, 7), "layers.10.weight"),
        (InsertResidual(4, 3), "layers.11.weight"),
        (ConcatSkip(1, 3), "layers.5.weight"),
    ):
        child, weights = morph(PLAIN, state_of(PLAIN), operation)
        module = GraphModule(child)
        module.load_state_dict(weights)
        module(torch.randn(4, *child.input_shape)).square().sum().backward()
        tensor = module.get_parameter(name)
        assert tensor.grad is not None

        assert bool((tensor.grad[tensor == 0] != 0).any()), operation


def test_replay_is_the_chain() -> None:
    """Operations read from JSON and replayed on the parent's weights give the child's to the bit."""
    network, operations = walk(5, 12)
    weights = state_of(network)
    child, morphed = network, weights
    for operation in operations:
        child, morphed = morph(child, morphed, operation)
    told = [operation_from_json(json.loads(json.dumps(operation.to_json()))) for operation in operations]
    again, replayed = replay(network, weights, told)

    assert again == child
    assert replayed.keys() == morphed.keys()
    assert all(torch.equal(replayed[name], tensor) for name, tensor in morphed.items())


def test_merge_undoes_split_and_branch() -> None:
    """Two layers made of one become one again, with its weights; a delayed stride is fused again."""
    weights = state_of(RESIDUAL)
    for first, second in (
        (Split(7, 1), Merge(7, 22)),
        (Branch(11, 0.5), Merge(11, 22)),
        (DelayStride(11), FuseStride(11)),
    ):
        child, morphed = replay(RESIDUAL, weights, [first, second])

        assert child == RESIDUAL
        assert all(torch.allclose(morphed[name], tensor, atol=1e-6) for name, tensor in weights.items())


def test_smaller_networks_keep_their_remaining_weights() -> None:
    """Narrowed, cut and disconnected networks keep the first channels and the middle of kernels, and run."""
    weights = state_of(RESIDUAL)
    for operation in (Narrow(1, 3), ShrinkKernel(4, 1), Remove(3), Disconnect(9, 3)):
        child, morphed = morph(RESIDUAL, weights, operation)

        assert operation.exactness == "no"
        assert outputs(child, morphed, train=False).isfinite().all()
        for name, tensor in morphed.items():
            margin = [
                (a - b) // 2 if n > 1 else 0
                for n, (a, b) in enumerate(zip(weights[name].shape, tensor.shape, strict=True))
            ]
            part = tuple(slice(m, m + size) for m, size in zip(margin, tensor.shape, strict=True))
            assert torch.equal(weights[name][part], tensor)


def test_concat_that_loses_an_input_keeps_the_weights_of_the_others() -> None:
    """After a concat loses an input, its readers keep the weights for the other inputs."""
    grown, weights = replay(PLAIN, state_of(PLAIN), [ConcatSkip(1, 3)])
    weights["layers.5.weight"][:, 4:] = 1.0
    child, morphed = morph(grown, weights, Disconnect(11, 3))

    assert 11 not in child
    assert torch.equal(morphed["layers.5.weight"], torch.ones(6, 4, 3, 3))


TIED = Network(  # the concat and the convolution behind it are added
    (2, 4, 4),
    (
        Node(1, Conv(2, 1), (0,)),
        Node(2, Conv(2, 1), (0,)),
        Node(3, Concat(), (1, 2)),
        Node(4, Conv(4, 3), (3,)),
        Node(5, Add(), (3, 4)),
        Node(6, GlobalPool(), (5,)),
        Node(7, Linear(2), (6,)),
    ),
)


def test_concats_within_adds_are_widened_part_by_part() -> None:
    """Widening a part of a concat that is added to a convolution widens that one in the same places."""
    child, morphed = morph(TIED, weights := state_of(TIED), Widen(1, 3, 0.5))

    assert child.shapes[4] == (5, 4, 4)
    assert error(outputs(TIED, weights, train=False), outputs(child, morphed, train=False)) < 1e-5
    with pytest.raises(PointError, match=r"node 3 \(concat\): its inputs can't change, but an add needs it"):
        Widen(4, 5, seed=2).apply(TIED)  # a copy of the first channel behind the last one


def test_many_skips_are_widened_in_no_time() -> None:
    """A network of forty adds has 2 ** 40 paths, but only 82 nodes are visited."""
    nodes, x = [Node(1, Conv(2, 1), (0,))], 1
    for id in range(2, 82, 2):
        nodes += [Node(id, Activation("prelu"), (x,)), Node(id + 1, Add(), (x, id))]
        x = id + 1
    end = (Node(100, Conv(2, 1), (0,)), Node(101, Add(), (100, x)), Node(102, GlobalPool(), (101,)))
    tangled = Network((2, 4, 4), (*nodes, *end, Node(103, Linear(3), (102,))))

    child = Widen(1, 4).apply(tangled)

    assert child.shapes[100] == child.shapes[101] == (4, 4, 4)


@pytest.mark.parametrize("has_third", [False, True])
def test_channels_that_would_change_in_two_ways_are_refused(has_third: bool) -> None:
    """A layer in different places of two added concats can't be widened."""
    beginning = (
        *(Node(id, Conv(2, 1), (0,)) for id in (1, 2, 3)),
        Node(4, Concat(), (1, 2)),
        Node(5, Concat(), (3, 1)),
        Node(6, Conv(4, 1), (0,)),
    )
    adds = (Node(7, Add(), (4, 6)), Node(8, Add(), (5, 6))) if has_third else (Node(7, Add(), (4, 5)),)
    joined = Node(9, Add(), (7, 8) if has_third else (7, 6))
    twisted = Network((2, 4, 4), (*beginning, *adds, joined, Node(10, GlobalPool(), (9,)), Node(11, Linear(2), (10,))))

    with pytest.raises(PointError, match="would change"):
        Widen(1, 3).apply(twisted)


@pytest.mark.parametrize(
    ("network", "operation", "message"),
    [
        (PLAIN, Widen(9, 4), r"node 9 \(linear\): its channels are the network's output"),
        (PLAIN, Widen(1, 4), r"node 1 \(conv\): widen: size=4: must be from 5 to 65536"),
        (PLAIN, Widen(1, 10**40), r"node 1 \(conv\): widen: size=10{40}: must be from 5 to 65536"),
        (PLAIN, Widen(2, 9), r"node 2 \(norm\): it must be a convolution or a linear layer"),
        (PLAIN, Widen(99, 9), r"the network has no node 99. Choose one of \[1, 2, "),
        (PLAIN, Narrow(1, 0), r"node 1 \(conv\): narrow: size=0: must be from 1 to below 4"),
        (PLAIN, GrowKernel(1, 3), r"node 1 \(conv\): kernel=3: must be odd, over its 3, up to 31"),
        (
            PLAIN,
            GrowKernel(1, 4),
            r"node 1 \(conv\): grow_kernel: kernel=4: must be odd, from 1 to 31. Add",
        ),
        (PLAIN, ShrinkKernel(1, 3), r"node 1 \(conv\): kernel=3: must be odd, from 1 to below its 3"),
        (PLAIN, Widen(1, 70_000), r"node 1 \(conv\): widen: size=70000: must be from 5 to 65536"),
        (PLAIN, InsertConv(0, 2), r"the input: insert_conv: kernel=2: must be odd, from 1 to 31"),
        (
            PLAIN,
            InsertBlock(1, 33, False),
            r"node 1 \(conv\): insert_block: kernel=33: must be a whole number",
        ),
        (PLAIN, InsertActivation(1, "relu"), "node 1: its output may be negative, which a relu would change"),
        (PLAIN, InsertLinear(1), r"node 10 \(linear\): its input \(4, 8, 8\) must be a vector"),
        (PLAIN, AddSkip(5, 3), "a skip from 5 to 3: both must be nodes, the source first"),
        (PLAIN, AddSkip(1, 8), r"a skip from 1 \(4, 8, 8\) to 8 \(6,\): no stride makes them as large"),
        (PLAIN, ConcatSkip(3, 9), r"node 9 \(linear\): its channels are the network's output"),
        (PLAIN, Merge(1, 5), r"node 1 \(conv\) and node 5 \(conv\) must have the same input"),
        (PLAIN, Split(1, 4), r"node 1 \(conv\): at=4: must be from 1 to below its 4"),
        (PLAIN, DelayStride(1), r"node 1 \(conv\): it must be a convolution with a stride of 2 or more"),
        (PLAIN, FuseStride(1), r"node 1 \(conv\): it must be a convolution with a pool of kernel 1 as its only"),
        (PLAIN, Remove(1), r"node 1 \(conv\): it must have one input, of the same shape as its output"),
        (PLAIN, Disconnect(1, 0), r"node 1 \(conv\): it must be an add or a concat that takes 0"),
    ],
    ids=range(23),
)
def test_impossible_operations_are_refused(network: Network, operation: Operation, message: str) -> None:
    """An impossible operation is refused in a line with the node and the reason."""
    with pytest.raises(PointError, match=message):
        operation.apply(network)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"operation=None: must be a dict whose kind is one of"),
        ({"kind": "widn"}, "must be a dict whose kind is one of widen, "),
        ({"kind": "split", "node": 3}, "operation split: it must have node, at, and has node"),
        ({"kind": "split", "node": 3, "at": "1"}, r"operation split: at='1': must be a whole number"),
        ({"kind": "branch", "node": 3, "noise": 1.5, "seed": 0}, r"noise=1.5: must be a number from 0 to below 1"),
        ({"kind": "insert_activation", "after": 1, "activation": 1}, r"activation=1: must be a name"),
    ],
    ids=range(6),
)
def test_invalid_derivations_are_refused(data: object, message: str) -> None:
    """An invalid derivation is refused with the reason."""
    with pytest.raises(PointError, match=message):
        operation_from_json(data)


def test_joins_that_would_change_other_inputs_are_refused() -> None:
    """A concat keeps its input if an add would otherwise change another of its inputs."""
    convs = (Node(1, Conv(2, 1), (0,)), Node(2, Conv(3, 1), (0,)), Node(3, Conv(2, 1), (0,)))
    joins = (Node(4, Activation(), (2,)), Node(5, Concat(), (1, 4)), Node(6, Concat(), (2, 3)), Node(7, Add(), (5, 6)))
    network = Network((2, 4, 4), (*convs, *joins, Node(8, GlobalPool(), (7,)), Node(9, Linear(2), (8,))))

    with pytest.raises(PointError, match=r"node 5 \(concat\): its inputs would change as well"):
        Disconnect(5, 1).apply(network)


def test_operations_and_networks_are_checked_when_they_are_made() -> None:
    """Operations and networks that a record could not hold can't be constructed."""
    with pytest.raises(PointError, match=r"operation widen: noise=1.5: must be a number from 0 to below 1"):
        Widen(1, 6, noise=1.5)
    with pytest.raises(PointError, match=r"operation branch: noise=2: must be a number from 0 to below 1"):
        Branch(1, noise=2)
    with pytest.raises(PointError, match=r"input=\(0, 8, 8\): must be \[channels, height, width\]"):
        Network((0, 8, 8), PLAIN.nodes)


def test_foreign_weights_are_refused() -> None:
    """Weights of another network are refused with the first tensor that does not fit."""
    weights = state_of(small())
    for wrong, message in (
        ({name: tensor for name, tensor in weights.items() if name != "layers.2.bias"}, "layers.2.bias is missing"),
        (weights | {"layers.9.bias": torch.zeros(1)}, "layers.9.bias is of no node"),
        (
            weights | {"layers.4.weight": torch.zeros(2, 4)},
            r"layers.4.weight has shape \(2, 4\), must be",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            morph(small(), wrong, Widen(1, 4))


def test_data_of_an_operation_is_refused() -> None:
    """A dict that records an operation is named, with the call that draws one."""
    with pytest.raises(ConfigurationError, match=r"operation=\{'kind': 'widen'.*must be an operation.*nas\.draw_move"):
        morph(small(), state_of(small()), Widen(1, 4).to_json())  # type: ignore[arg-type]


def test_every_operation_is_tested() -> None:
    """The table of tests has every operation that keeps the function."""
    undone = {Merge, FuseStride}  # test_merge_undoes_split_and_branch
    promising = {kind for kind in OPERATIONS.values() if kind not in (Narrow, ShrinkKernel, Remove, Disconnect)}

    assert {type(operation) for _, operation in EXACT} == promising - undone
