"""Cells, their operations and reductions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from nas.core.errors import ConfigurationError
from nas.supernets.cell import Cell, ConcatCell
from nas.supernets.module import select, space_of, subnet
from nas.supernets.operations import DARTS, NAS_BENCH_201, Halve, Operations, ResidualReduction

ALL = Operations(names=tuple(dict.fromkeys((*NAS_BENCH_201, *DARTS))))
EDGES = ("op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3")


def cell_of(*names: str) -> tuple[Cell, dict[str, str]]:
    """Returns a cell of four channels, and the point with these operations in the order of the edges."""
    return Cell(4, partial(Operations().all, 4)), dict(zip(EDGES, names, strict=True))


def test_a_cell_adds_its_edges() -> None:
    """The output is the sum over the ways through the cell."""
    cell, point = cell_of("skip_connect", "skip_connect", "skip_connect", "skip_connect", "none", "avg_pool_3x3")
    select(cell, point)
    x = torch.randn(2, 4, 6, 6)
    pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    torch.testing.assert_close(cell(x), x + pool(2 * x))


def test_only_live_edges_are_computed() -> None:
    """An edge behind `none`, and one that leads to `none`, is neither computed nor part of the subnet."""
    cell, point = cell_of("none", "none", "nor_conv_1x1", "skip_connect", "nor_conv_3x3", "none")
    select(cell, point)
    cell(torch.randn(2, 4, 6, 6, requires_grad=True)).sum().backward()

    assert all(parameter.grad is None for parameter in cell.parameters())
    assert list(subnet(cell, point).state_dict()) == []


def test_a_disconnected_cell_gives_zeros() -> None:
    """Without a way from input to output, the output is 0 in the supernet and in the subnet."""
    cell, point = cell_of("nor_conv_1x1", "none", "none", "none", "none", "nor_conv_3x3")
    select(cell, point)
    x = torch.randn(2, 4, 6, 6)

    assert cell(x).equal(torch.zeros_like(x))
    assert subnet(cell, point)(x).equal(torch.zeros_like(x))


@pytest.mark.parametrize("name", ALL.names)
@pytest.mark.parametrize("stride", [1, 2])
def test_operations_keep_channels(name: str, stride: int) -> None:
    """Each operation divides height and width by its stride."""
    assert ALL.make(name, 6, stride)(torch.randn(2, 6, 8, 8)).shape == (2, 6, 8 // stride, 8 // stride)


def test_norms_of_a_supernet_have_no_state() -> None:
    """By default batch-norm has neither scales nor statistics; with both options it has them."""
    shared = Operations(names=DARTS).all(4)
    own = Operations(names=DARTS, affine=True, track_running_stats=True).all(4)

    assert {key.split(".")[-1] for one in shared.values() for key in one.state_dict()} == {"weight"}
    assert {key.split(".")[-1] for one in own.values() for key in one.state_dict()} == {
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_reductions_double_the_channels() -> None:
    """Both reductions halve height and width; the one by pooling has no parameters."""
    x = torch.randn(2, 4, 8, 8)
    halve = Halve()

    assert halve(x).shape == ResidualReduction(Operations(), 4)(x).shape == (2, 8, 4, 4)
    assert list(halve.parameters()) == []
    assert halve(x)[:, 4:].equal(-halve(x)[:, :4])


def test_cells_concatenate_their_nodes() -> None:
    """A cell of three nodes has three times the channels, and one that reduces half the height and width."""
    cell = ConcatCell(3, partial(Operations(names=DARTS).all, 4), reduces=True)
    point = dict.fromkeys(next(iter(space_of(cell).points())), "skip_connect")
    point |= {f"normal_inputs_{target}": [0, target - 1] for target in (3, 4)}
    select(cell, point)

    assert cell(torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8)).shape == (2, 12, 4, 4)


def test_nodes_add_two_selected_inputs() -> None:
    """Each node is the sum of its two edges, in the subnet too."""
    cell = ConcatCell(2, partial(Operations(names=DARTS).all, 4))
    names = [name for name in next(iter(space_of(cell).points())) if "inputs" not in name]
    point = {**dict.fromkeys(names, "skip_connect"), "normal_inputs_3": [1, 2]}
    select(cell, point)
    before, last = torch.randn(2, 2, 4, 6, 6)
    wanted = torch.cat([before + last, last + (before + last)], 1)

    assert cell(before, last).equal(wanted)
    assert subnet(cell, point)(before, last).equal(wanted)


@pytest.mark.parametrize(
    ("names", "message"), [((), "must name one"), (("nor_conv_3x2",), "nor_conv_3x2': must be one of nor_conv_3x3")]
)
def test_operations_are_checked(names: tuple[str, ...], message: str) -> None:
    """An unknown operation is refused with a similar one."""
    with pytest.raises(ConfigurationError, match=message):
        Operations(names=names)
