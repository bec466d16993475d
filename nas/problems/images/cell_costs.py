"""Parameters and FLOPs of cells, as sums over their edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nas.core.point import Point
from nas.problems.nasbench201 import live_cell
from nas.supernets.operations import NAS_BENCH_201

_DIRECT = "op_0_3"
EDGES = ("op_0_1", "op_0_2", "op_1_2", _DIRECT, "op_1_3", "op_2_3")
_FREE = "skip_connect"


@dataclass(frozen=True, slots=True)
class CellCosts:
    """The costs of networks that differ in their cells.

    Attributes:
        fixed: The costs without the cells, by name.
        of_operation: The costs of one live edge in all cells together, by operation and name.
    """

    fixed: Mapping[str, float]
    of_operation: Mapping[str, Mapping[str, float]]

    @classmethod
    def measured(cls, cost: Callable[[Point], Mapping[str, float]]) -> CellCosts:
        """Returns the costs, measured on one network for each operation.

        Args:
            cost: Returns the costs of a network.
        """
        found = {name: dict(cost({**dict.fromkeys(EDGES, "none"), _DIRECT: name})) for name in NAS_BENCH_201}
        fixed = found[_FREE]
        return cls(fixed, {name: {key: own[key] - fixed[key] for key in fixed} for name, own in found.items()})

    def of(self, point: Point) -> dict[str, float]:
        """Returns the costs of the network of a cell. Edges that no path through the cell uses have none."""
        live = live_cell(point).values()
        return {name: base + sum(self.of_operation[edge][name] for edge in live) for name, base in self.fixed.items()}
