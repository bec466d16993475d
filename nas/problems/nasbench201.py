"""Cells of NAS-Bench-201 (Dong and Yang 2020, arXiv:2001.00326)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.core.point import Point
from nas.problems.tabular import TabularProblem


class NasBench201Problem(TabularProblem):
    """Reads the published table; ``op_<i>_<j>`` is the operation of edge i to j.

    If ``known`` has ``flops_m``, the static metric ``live_flops_m`` is added. It leaves out edges that no path through
    the cell uses. The formula behind the published FLOPs counts them.
    """

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Returns the point's values in the columns of ``known``, in millions, and ``live_flops_m``."""
        known = super().static_metrics(point)
        if "flops_m" not in known:
            return known
        return {**known, "live_flops_m": super().static_metrics(live_cell(point))["flops_m"]}


def live_cell(point: Point) -> dict[str, Any]:
    """Returns the cell with ``none`` on each edge that no path through the cell uses."""
    edges = sorted((int(end), int(start), name) for name in point for _, start, end in [name.split("_")])
    last = edges[-1][0]
    reached, reaching = {0}, {last}
    for end, start, name in edges:
        if point[name] != "none" and start in reached:
            reached.add(end)
    for end, start, name in reversed(edges):
        if point[name] != "none" and end in reaching:
            reaching.add(start)
    is_live = {name: start in reached and end in reaching for end, start, name in edges}
    return {name: operation if is_live[name] else "none" for name, operation in point.items()}
