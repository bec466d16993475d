"""The cell of ENAS (Pham et al. 2018, arXiv:1802.03268, section 2.4), with shared weights."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import torch
from torch import Tensor, nn

from nas.core.point import Point
from nas.core.validation import check_int
from nas.spaces.parameters.space import Parameter
from nas.supernets.cell import MakeOptions
from nas.supernets.choices import InputChoice, LayerChoice, added
from nas.supernets.module import SearchableModule, subnet


class EnasCell(SearchableModule):
    """A cell whose nodes add two operations, each on one earlier node.

    Both operations of a node may have the same input.
    Weights belong to a node, a side (``x`` or ``y``) and an operation, whatever the input is. The output is a 1x1
    convolution of the loose ends, concatenated: nodes that are no input of another. A cell never reduces: put a
    reduction before it. In a mixture of inputs all nodes are loose ends. Differs: the convolution is a sum with weights
    for each node, without a norm.

    Args:
        n_nodes: The number of nodes, without the two inputs, which are outputs of earlier cells.
        channels: The channels of the inputs, the operations and the output.
        make_options: Returns the options of an operation; it gets stride 1.
        label: The first part of labels: ``normal_2_x_op`` and ``normal_2_x_input`` belong to the first node.
    """

    def __init__(self, n_nodes: int, channels: int, make_options: MakeOptions, *, label: str = "normal") -> None:
        super().__init__()
        check_int("n_nodes", n_nodes, 1)
        self._targets = range(2, 2 + n_nodes)
        self._names = {f"{target}_{side}": target for target in self._targets for side in "xy"}
        choices = {name: LayerChoice(make_options(1), f"{label}_{name}_op") for name in self._names}
        inputs = {name: InputChoice(target, 1, f"{label}_{name}_input") for name, target in self._names.items()}
        self.inputs, self.operations = nn.ModuleDict(inputs), nn.ModuleDict(choices)
        self.outputs = nn.ModuleDict(
            {str(node): nn.Conv2d(channels, channels, 1, bias=False) for node in self._targets}
        )

    def decisions(self) -> dict[str, Parameter]:
        """Returns those of its choices as in the paper: by node two inputs, then two operations."""
        found: dict[str, Parameter] = {}
        for target, choices, side in product(self._targets, (self.inputs, self.operations), "xy"):
            choice = choices[f"{target}_{side}"]
            assert isinstance(choice, SearchableModule)
            found |= choice.decisions()
        return found

    def select(self, point: Point) -> None:
        """Selects nothing: the operations and their inputs do."""

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Maps the outputs of two earlier cells to the cell's, all ``(batch, channels, height, width)``."""
        selected = [choice.selected or () for choice in self._inputs()]
        used = {source for [source] in selected} if all(len(one) == 1 for one in selected) else set()
        return _output(self, before, last, [node for node in self._targets if node not in used])

    def subnet(self, point: Point) -> nn.Module:
        """Returns a cell of the selected operations and the loose ends."""
        used = {source for choice in self._inputs() for source in choice.indices_of(point)}
        return SelectedEnasCell(self, point, [node for node in self._targets if node not in used])

    def _inputs(self) -> Iterable[InputChoice]:
        return (choice for choice in self.inputs.values() if isinstance(choice, InputChoice))


class SelectedEnasCell(nn.Module):
    """The subnet of an `EnasCell`: its selected operations and the outputs of loose ends."""

    def __init__(self, cell: EnasCell, point: Point, ends: Iterable[int]) -> None:
        super().__init__()
        self.ends = tuple(ends)
        self.inputs = nn.ModuleDict({name: subnet(choice, point) for name, choice in cell.inputs.items()})
        self.operations = nn.ModuleDict({name: subnet(choice, point) for name, choice in cell.operations.items()})
        self.outputs = nn.ModuleDict({str(node): subnet(cell.outputs[str(node)], point) for node in self.ends})

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Maps the outputs of two earlier cells to the cell's."""
        return _output(self, before, last, self.ends)


def _output(cell: EnasCell | SelectedEnasCell, before: Tensor, last: Tensor, ends: Iterable[int]) -> Tensor:
    nodes, values = [before, last], list[Tensor]()
    for name, operation in cell.operations.items():
        values.append(operation(cell.inputs[name](nodes)))
        if len(values) == 2:
            nodes.append(torch.add(*values))
            values.clear()
    return added(cell.outputs[str(node)](nodes[node]) for node in ends)
