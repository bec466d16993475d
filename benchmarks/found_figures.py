"""Tables of found_cells.py: what searches chose, the baselines, and the cells of each supernet epoch."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log

import numpy as np
from cell_ranking import ALL_CONVOLUTIONS, drawn_cells, point_of, table
from found_cells import RESULTS, Task
from search_quality import interval

from nas.core.point import Point
from nas.core.supernet import is_epoch
from nas.core.trial import Trial
from nas.problems.cells import CellsProblem
from nas.problems.images.cell_costs import EDGES
from nas.supernets.method import n_nones, n_skips
from nas.supernets.paths import ListedPaths

LIMIT_S = 1_200
"""Processor time that a search may take."""
N_DRAWN = 10_000
"""Connected cells, drawn for the baselines."""
HEADER = "| search | seeds | table, % | lowest | CPU s | alphas moved | stopped in epoch |"


def lines(data: str) -> Iterator[str]:
    """Yields the table of all rows, with baselines from the table of cells."""
    yield HEADER
    yield "| --- |" + " --- |" * 6
    by_method: dict[str, list[dict[str, str]]] = {}
    for row in RESULTS.kept():
        by_method.setdefault(row["method"], []).append(row)
    for method, rows in by_method.items():
        yield _line(method, rows)
    yield from (f"| {name} | | {value} | | | | |" for name, value in baselines(data).items())


def _line(method: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Returns a method's line."""
    values = [float(row["table"]) for row in rows]
    seconds, moved = ([float(row[name]) for row in rows] for name in ("cpu_s", "distance"))
    mean = f"{statistics.mean(values):.2f}" + (f" ({interval(values):.2f})" if len(values) > 1 else "")
    late = " over the limit" if max(seconds) > LIMIT_S else ""
    distance = f"{statistics.mean(moved):.1f}" if any(moved) else ""
    stops = ", ".join(row["stopped"] for row in rows if row["stopped"])
    cells = [method, str(len(rows)), mean, f"{min(values):.2f}", f"{statistics.mean(seconds):.0f}{late}"]
    return "| " + " | ".join([*cells, distance, stops]) + " |"


def baselines(data: str) -> dict[str, str]:
    """Returns table accuracies of cells that need no shared weights."""
    published = table(data)
    points = [*map(point_of, drawn_cells(N_DRAWN, 0))]
    tests = np.array([published.value(point, "c10_test_200") for point in points])
    columns = {
        "most live FLOPs of 100 at random": [published.static_metrics(point)["live_flops_m"] for point in points],
        "best of 100 after 12 real epochs": [published.value(point, "c10_valid_12") for point in points],
    }
    picks = np.random.default_rng(0).integers(len(points), size=(1_000, 100))
    found = {"one at random": tests.mean()}
    for name, column in columns.items():
        found[name] = tests[picks[np.arange(1_000), np.array(column)[picks].argmax(1)]].mean()
    return {**{name: f"{v:.2f}" for name, v in found.items()}, "six 3x3 convolutions": f"{ALL_CONVOLUTIONS}"}


def cells_of(epoch: Trial) -> Sequence[Point]:
    """Returns the cells that an epoch suggested, else those whose weights it trained."""
    listed = ListedPaths.of_derivation(CellsProblem().space, epoch.proposal.derivation)
    return epoch.suggested or (listed.points if listed else ())


def entropy_of(points: Sequence[Point]) -> float:
    """Returns the mean entropy of the operations of an edge."""
    shares = [Counter(point[edge] for point in points) for edge in EDGES]
    return sum(-n / len(points) * log(n / len(points)) for share in shares for n in share.values()) / len(EDGES)


def trajectory(task: Task) -> Iterator[str]:
    """Yields a line for each supernet epoch: skips, nones, entropy and table accuracy of its cells."""
    published = table(task.data)
    yield "| epoch | skips | nones | entropy | table, % |"
    yield "| --- | --- | --- | --- | --- |"
    for number, trial in enumerate(filter(is_epoch, task.run()[1])):
        points = cells_of(trial)
        entropy = trial.metrics.get("entropy", entropy_of(points))
        values = [published.value(point, "c10_test_200") for point in points]
        counts = [statistics.mean(map(count, points)) for count in (n_skips, n_nones)]
        yield f"| {number} | {counts[0]:.1f} | {counts[1]:.1f} | {entropy:.2f} | {statistics.mean(values):.2f} |"
