"""Cells: small graphs of layer choices, in the styles of NAS-Bench-201 and of DARTS and ENAS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from nas.core.point import Point
from nas.core.validation import check_int
from nas.spaces.parameters.space import Parameter
from nas.supernets.choices import InputChoice, LayerChoice, added
from nas.supernets.connectivity import Edge, live_edges
from nas.supernets.module import SearchableModule, subnet
from nas.supernets.operations import Zero

MakeOptions: TypeAlias = Callable[[int], Mapping[str, nn.Module]]
"""Returns new options of an edge with this stride, by name."""


class Cell(SearchableModule):
    """A cell whose nodes add up edges from all earlier nodes, as in NAS-Bench-201.

    Node 0 is the input, the last one is the output. Edges of the option `Zero` pass nothing on, and only edges that
    the output depends on are computed. A cell without any returns zeros.

    Args:
        n_nodes: The number of nodes, with input and output; 4 in NAS-Bench-201.
        make_options: Returns the options of an edge; it gets stride 1.
        label: The first part of labels: the edge from node 0 to node 2 has ``op_0_2``.
    """

    def __init__(self, n_nodes: int, make_options: MakeOptions, *, label: str = "op") -> None:
        super().__init__()
        check_int("n_nodes", n_nodes, 2)
        self.n_nodes = n_nodes
        self._labels = {(i, j): f"{label}_{i}_{j}" for j in range(1, n_nodes) for i in range(j)}
        self.edges = nn.ModuleDict({name: LayerChoice(make_options(1), name) for name in self._labels.values()})

    def decisions(self) -> dict[str, Parameter]:
        """Returns none: the decisions are those of the edges."""
        return {}

    def select(self, point: Point) -> None:
        """Selects nothing: the edges do."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to the same shape."""
        chosen = {edge: self._choice(edge).selected for edge in self._labels}
        return _last_node(x, [(edge, self._choice(edge)) for edge in self._live(chosen)], self.n_nodes)

    def subnet(self, point: Point) -> nn.Module:
        """Returns a cell of only the live edges."""
        live = self._live({edge: point.get(label) for edge, label in self._labels.items()})
        layers = {self._labels[edge]: subnet(self._choice(edge), point) for edge in live}
        return SelectedCell(live, layers, self.n_nodes)

    def _choice(self, edge: Edge) -> LayerChoice:
        choice = self.edges[self._labels[edge]]
        assert isinstance(choice, LayerChoice)
        return choice

    def _live(self, chosen: Mapping[Edge, str | None]) -> list[Edge]:
        """Returns the edges that the output depends on; those without an option chosen are mixtures."""
        return live_edges([edge for edge, name in chosen.items() if not self._is_zero(edge, name)], self.n_nodes)

    def _is_zero(self, edge: Edge, name: str | None) -> bool:
        options = self._choice(edge).options
        return name is not None and name in options and isinstance(options[name], Zero)


class SelectedCell(nn.Module):
    """The subnet of a `Cell`: its live edges, under the names that they have there."""

    def __init__(self, live: Sequence[Edge], layers: Mapping[str, nn.Module], n_nodes: int) -> None:
        super().__init__()
        self.live, self.n_nodes = tuple(live), n_nodes
        self.edges = nn.ModuleDict(dict(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channels, height, width)`` to the same shape."""
        return _last_node(x, zip(self.live, self.edges.values(), strict=True), self.n_nodes)


class ConcatCell(SearchableModule):
    """A cell whose nodes add up edges from two earlier ones, as in DARTS.

    The output is all nodes, concatenated: ``n_nodes`` times the channels of an edge. The first two nodes are the
    outputs of the two cells before. Differs from ENAS (arXiv:1802.03268): the inputs of a node differ, and weights
    belong to an edge.

    Args:
        n_nodes: The number of nodes, without the two inputs.
        make_options: Returns the options of an edge for a stride.
        label: The first part of labels: ``normal_0_2`` is the edge from node 0 to node 2, ``normal_inputs_2`` the
            inputs of node 2.
        reduces: Whether edges from the two inputs have stride 2.
    """

    def __init__(
        self, n_nodes: int, make_options: MakeOptions, *, label: str = "normal", reduces: bool = False
    ) -> None:
        super().__init__()
        check_int("n_nodes", n_nodes, 1)
        self._targets = range(2, 2 + n_nodes)
        self._labels = {(i, j): f"{label}_{i}_{j}" for j in self._targets for i in range(j)}
        strides = {edge: 2 if reduces and edge[0] < 2 else 1 for edge in self._labels}
        choices = {name: LayerChoice(make_options(strides[edge]), name) for edge, name in self._labels.items()}
        self.inputs = nn.ModuleDict({str(j): InputChoice(j, 2, f"{label}_inputs_{j}") for j in self._targets})
        self.edges = nn.ModuleDict(choices)

    def decisions(self) -> dict[str, Parameter]:
        """Returns those of its choices, node by node: the inputs, then the edges."""
        found: dict[str, Parameter] = {}
        for target in self._targets:
            edges = (self.edges[self._labels[source, target]] for source in range(target))
            for choice in (self.inputs[str(target)], *edges):
                assert isinstance(choice, SearchableModule)
                found |= choice.decisions()
        return found

    def select(self, point: Point) -> None:
        """Selects nothing: the edges and their inputs do."""

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Maps the outputs of the two cells before to the cell's."""
        nodes = [before, last]
        for target in self._targets:
            choice = self._input_choice(target)
            sources = range(target) if choice.selected is None else choice.selected
            values = [self.edges[self._labels[source, target]](nodes[source]) for source in sources]
            nodes.append(choice(values) if choice.selected is None else added(values))
        return torch.cat(nodes[2:], 1)

    def subnet(self, point: Point) -> nn.Module:
        """Returns a cell of only the edges from selected inputs."""
        edges = [(i, j) for j in self._targets for i in self._input_choice(j).indices_of(point)]
        layers = {self._labels[edge]: subnet(self.edges[self._labels[edge]], point) for edge in edges}
        return SelectedConcatCell(edges, layers)

    def _input_choice(self, target: int) -> InputChoice:
        choice = self.inputs[str(target)]
        assert isinstance(choice, InputChoice)
        return choice


class SelectedConcatCell(nn.Module):
    """The subnet of a `ConcatCell`: its edges from selected inputs, under their names."""

    def __init__(self, kept: Sequence[Edge], layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kept = tuple(kept)
        self.edges = nn.ModuleDict(dict(layers))

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Maps the outputs of the two cells before to the cell's."""
        nodes = _nodes([before, last], zip(self.kept, self.edges.values(), strict=True))
        return torch.cat([nodes[node] for node in sorted(nodes)[2:]], 1)


def _last_node(x: Tensor, edges: Iterable[tuple[Edge, nn.Module]], n_nodes: int) -> Tensor:
    """Returns the last node's sum, or zeros if it has no edges."""
    nodes = _nodes([x], edges)
    return nodes[n_nodes - 1] if n_nodes - 1 in nodes else torch.zeros_like(x)


def _nodes(inputs: Sequence[Tensor], edges: Iterable[tuple[Edge, nn.Module]]) -> dict[int, Tensor]:
    """Returns each node's sum over its edges, which come in the order of their targets."""
    nodes = dict(enumerate(inputs))
    for (source, target), layer in edges:
        value = layer(nodes[source])
        nodes[target] = nodes[target] + value if target in nodes else value
    return nodes
