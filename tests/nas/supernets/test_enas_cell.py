"""The cell of ENAS: two inputs of each node, loose ends, subnets."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import nn

from nas.supernets.choices import mix
from nas.supernets.enas_cell import EnasCell
from nas.supernets.module import select, space_of, subnet
from nas.supernets.operations import DARTS, Operations


@pytest.fixture
def cell() -> EnasCell:
    """Returns a cell of three nodes and four channels."""
    torch.manual_seed(0)
    return EnasCell(3, 4, partial(Operations(names=DARTS).all, 4))


@pytest.mark.parametrize("seed", range(8))
def test_subnet_equals_its_selection(cell: EnasCell, seed: int) -> None:
    """A subnet computes what the cell computes with its selection, and its tensors are some of the cell's."""
    point = space_of(cell).sample(random.Random(seed))
    select(cell, point)
    alone = subnet(cell, point)
    inputs = torch.randn(2, 2, 4, 6, 6)

    assert alone(*inputs).equal(cell(*inputs))
    assert alone.state_dict().keys() < cell.state_dict().keys()
    assert all(tensor.equal(cell.state_dict()[name]) for name, tensor in alone.state_dict().items())


def test_decisions_are_in_the_order_of_the_paper(cell: EnasCell) -> None:
    """A controller decides node by node: two inputs, then two operations."""
    names = [f"normal_{node}_{side}_{kind}" for node in (2, 3, 4) for kind in ("input", "op") for side in ("x", "y")]
    space = space_of(cell)

    assert [decision.name for decision in space.decisions(space.sample(random.Random(0)))] == names


def test_inputs_may_be_equal(cell: EnasCell) -> None:
    """A node may take the same node twice, and the output has only the nodes that no other takes."""
    names = list(next(iter(space_of(cell).points())))
    point = {name: "skip_connect" if name.endswith("_op") else 1 for name in names}
    point |= {"normal_3_x_input": 2, "normal_3_y_input": 2}
    select(cell, point)
    before, last = torch.randn(2, 2, 4, 6, 6)
    ends = [cell.outputs["3"](4 * last), cell.outputs["4"](2 * last)]

    torch.testing.assert_close(cell(before, last), ends[0] + ends[1])
    assert [name for name in subnet(cell, point).state_dict() if name.startswith("outputs")] == [
        "outputs.3.weight",
        "outputs.4.weight",
    ]


def test_all_nodes_of_a_mixture_are_loose_ends(cell: EnasCell) -> None:
    """All weights get a gradient: a subnet may have any of them."""
    mix(
        cell,
        {name: torch.full((len(DARTS),), 0.5) for name in next(iter(space_of(cell).points())) if name.endswith("_op")},
    )
    cell(*torch.randn(2, 2, 4, 6, 6)).square().sum().backward()
    convolutions = [module for module in cell.operations.modules() if isinstance(module, nn.Conv2d)]

    assert convolutions
    assert all(module.weight.grad is not None for module in convolutions)
    assert all(module.weight.grad is not None for module in cell.outputs.values())  # type: ignore[union-attr]
