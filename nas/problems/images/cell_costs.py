"""Parameters and FLOPs of cells, as sums over their edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nas.core.point import Point
from nas.problems.nasbench201 import live_cell
from nas.supernets.connectivity import NONE
from nas.supernets.operations import NAS_BENCH_201

_DIRECT = "op_0_3"
EDGES = ("op_0_1", "op_0_2", "op_1_2", _DIRECT, "op_1_3", "op_2_3")
_FREE = "skip_connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCosts:
    """The costs of networks that differ in their cells.

    Attributes:
        disconnected: The costs of a network in which no path goes through the cells, by name.
        connected: The costs without the cells of all others.
        of_operation: The costs of one live edge in all cells together, by operation and name.
    """

    disconnected: Mapping[str, float]
    connected: Mapping[str, float]
    of_operation: Mapping[str, Mapping[str, float]]

    @classmethod
    def measured(cls, cost: Callable[[Point], Mapping[str, float]]) -> CellCosts:
        """Returns the costs, measured on one network for each operation.

        Args:
            cost: Returns the costs of a network.
        """
        found = {name: dict(cost({**dict.fromkeys(EDGES, NONE), _DIRECT: name})) for name in NAS_BENCH_201}
        fixed, disconnected = found[_FREE], found.pop(NONE)
        added = {name: {key: own[key] - fixed[key] for key in fixed} for name, own in found.items()}
        return cls(disconnected=disconnected, connected=fixed, of_operation=added)

    def of(self, point: Point) -> dict[str, float]:
        """Returns the costs of a cell's network. Edges that no path uses have none."""
        live = [operation for operation in live_cell(point).values() if operation != NONE]
        if not live:
            return dict(self.disconnected)
        return {
            name: base + sum(self.of_operation[operation][name] for operation in live)
            for name, base in self.connected.items()
        }
