"""Tables of found_cells.py: what searches chose, the baselines, and the cells of each supernet epoch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from cell_ranking import ALL_CONVOLUTIONS, drawn_cells, point_of, table
from found_cells import RESULTS, Task
from ranks import Scores
from search_quality import interval

from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.supernet import is_epoch
from nas.core.trial import Trial
from nas.problems.cells import CellsProblem
from nas.supernets.paths import ListedPaths, path_metrics

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
    flops = np.array([published.static_metrics(point)["live_flops_m"] for point in points])
    trained = np.array([published.value(point, "c10_valid_12") for point in points])
    found = {"one at random": tests.mean(), "most live FLOPs of 100 at random": _chosen(tests, flops, 100)}
    for n in (8, 84, 100):
        found[f"best of {n} after 12 real epochs"] = _chosen(tests, trained, n)
    return {**{name: f"{v:.2f}" for name, v in found.items()}, "six 3x3 convolutions": f"{ALL_CONVOLUTIONS}"}


def _chosen(tests: Scores, column: Scores, n: int) -> float:
    """Returns the mean test accuracy of the best by a column of ``n`` random cells."""
    picks = np.random.default_rng(0).integers(len(tests), size=(1_000, n))
    return float(tests[picks[np.arange(1_000), column[picks].argmax(1)]].mean())


def cells_of(epoch: Trial) -> Sequence[Point]:
    """Returns the cells that an epoch suggested, else those whose weights it trained."""
    listed = ListedPaths.of_derivation(CellsProblem().space, epoch.proposal.derivation)
    return epoch.suggested or (listed.points if listed else ())


def reward_of(epoch: Trial, trials: Sequence[Trial]) -> str:
    """Returns the mean accuracy of the subnets scored with an epoch's weights, or empty text."""
    scores = [
        trial.metrics["accuracy"]
        for trial in trials
        if trial.donor == epoch.number and Policy.SKIP_TRAIN in trial.policies
    ]
    return f"{statistics.mean(scores):.3f}" if scores else ""


def trajectory(task: Task) -> Iterator[str]:
    """Yields a line for each supernet epoch: averages of its cells and their rewards."""
    published, trials = table(task.data), task.run()[1]
    yield "| epoch | skips | nones | entropy | table, % | mean reward |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for number, trial in enumerate(filter(is_epoch, trials)):
        points = cells_of(trial)
        found = {**path_metrics(points), **trial.metrics}
        values = [published.value(point, "c10_test_200") for point in points]
        counts = [f"{found['skips']:.1f}", f"{found['nones']:.1f}", f"{found['entropy']:.2f}"]
        cells = [str(number), *counts, f"{statistics.mean(values):.2f}"]
        yield "| " + " | ".join([*cells, reward_of(trial, trials)]) + " |"
