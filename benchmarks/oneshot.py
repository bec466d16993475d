"""Value of cheap scores of networks.

    $ python benchmarks/oneshot.py screening                 # 500 searches for each row; prints each row
    $ python benchmarks/oneshot.py screening --inner evolution --candidates 1,8 --seeds 100
    $ python benchmarks/oneshot.py ranking --seeds 5         # shared weights of both reductions, 200 cells
    $ python benchmarks/oneshot.py inherited --seeds 5       # own steps, inherited and from scratch; 100 cells
    $ python benchmarks/oneshot.py subnet_cost
    $ python benchmarks/oneshot.py epochs                    # an epoch in a search and by hand; 3 minutes
    $ python benchmarks/oneshot.py found --seeds 5           # cells that searches choose; continues the rows of a csv
    $ python benchmarks/oneshot.py trajectory --methods darts,enas_cold
    $ python benchmarks/oneshot.py elastic --seeds 5         # five sizes by one training; a minute a seed

``--data`` is the folder of the tables and of the CIFAR-10 subset; by default HEIRLOOM_DATA, or ../shared/data.

``screening``: searches of NAS-Bench-201 with ``+tuner=screened``, by the protocol of search_quality.py. One simulated
worker has 12,000 s, and the best is chosen by validation accuracy after 12 epochs. A cell is the mean test accuracy
after 200 epochs of the best trial so far. It has the standard deviation over searches, and half of the mean's 95 %
interval in brackets. The paired difference to one candidate follows.

``ranking``, ``inherited``: ``problem=cells`` with images of 16x16 trains a supernet of eight epochs for each seed. The
truth is the table's test accuracy after 200 epochs. Scores use 500 validation images. The column of 10 has the mean
truth of the best by score of 10 random cells. The column of the first ten has their mean truth. Intervals are those of
a paired bootstrap over cells and seeds. Seconds are processor time of one thread. A run that is interrupted continues.

``found``: searches of ``problem=cells`` with images of 16x16 choose a cell within 20 minutes of processor time, without
the table. The column is the mean test accuracy of the table after 200 epochs, with half of its 95 % interval. The
baselines are drawn from the connected cells of the table. ``trajectory``: cells of each supernet epoch, of one seed.

``elastic``: a convolutional network on digits. One training has the largest size, the smallest and two of all five in
each step, and the largest teaches the others. Each size is also trained alone, for as many steps by the same recipe.
Scores use 720 images and the statistics of each batch. Intervals are those of 95 % over seeds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import cell_ranking
import elastic_sizes
import found_cells
import found_figures
import supernet_epochs
from search_quality import TUNERS, cell, problem, search

from nas.core.spec import Spec

SECONDS = (1_000, 3_000, 12_000)
PROXY = "live_flops_m"
Found = dict[tuple[int, int], list[float]]
"""Test accuracies by candidates and seconds, in the order of the seeds."""


def screened(inner: str, n_candidates: int) -> Spec:
    """Returns the inner tuner of search_quality.py, screened unless ``n_candidates`` is 1."""
    if n_candidates == 1:
        return TUNERS[inner]
    described = {"_target_": TUNERS[inner].target, **TUNERS[inner].arguments}
    options = {"inner": described, "n_candidates": n_candidates, "proxies": [PROXY]}
    return Spec("nas.tuners.screened.ScreenedTuner", options)


def accuracies(seed: int, inner: str, n_candidates: int, data: str) -> list[float]:
    """Returns the test accuracy of one search's best trial after each of ``SECONDS``."""
    trials = search("nasbench201", screened(inner, n_candidates), seed, data)
    found = []
    for seconds in SECONDS:
        in_time = [trial for trial in trials if trial.finished is not None and trial.finished <= seconds]
        best = max(in_time, key=lambda trial: trial.metrics["accuracy"])
        found.append(problem("nasbench201", data).value(best.point, "c10_test_200"))
    return found


HEADER = "| inner tuner | candidates | " + " | ".join(f"{seconds} s" for seconds in SECONDS) + " |"


def line(inner: str, n: int, found: Found) -> str:
    """Returns a line of the table, as markdown."""
    cells = [inner, str(n)]
    for seconds in SECONDS:
        own, alone = found[n, seconds], found.get((1, seconds))
        paired = [] if n == 1 or alone is None else [a - b for a, b in zip(own, alone, strict=True)]
        cells.append(cell(own, paired))
    return "| " + " | ".join(cells) + " |"


def print_screening(given: argparse.Namespace) -> None:
    """Runs the searches of ``screening`` and prints the table."""
    candidates = [int(text) for text in given.candidates.split(",")]
    found: Found = {}
    began_s = time.perf_counter()
    n_seeds = given.seeds or 500
    print(HEADER + "\n| --- | --- |" + " --- |" * len(SECONDS), flush=True)
    with ProcessPoolExecutor(given.processes) as pool:
        for n in candidates:
            one = partial(accuracies, inner=given.inner, n_candidates=n, data=given.data)
            for seconds, column in zip(SECONDS, zip(*pool.map(one, range(n_seeds)), strict=True), strict=True):
                found[n, seconds] = list(column)
            print(line(given.inner, n, found), flush=True)
    print(f"{n_seeds} searches for each row, {time.perf_counter() - began_s:.0f} s")


def print_cells(given: argparse.Namespace) -> None:
    """Runs the searches of ``ranking`` or ``inherited`` and prints the table."""
    is_whole = given.figure == "inherited"
    cells = cell_ranking.drawn_cells(given.cells, given.draw)
    shared = {"data": given.data, "root": given.root, "cells": cells, "n_trained": given.cells // 2}
    tasks = [
        cell_ranking.Task(reduction=reduction, seed=seed, is_whole=is_whole, scale=given.scale, **shared)
        for seed in range(given.seeds or 5)
        for reduction in (("pool",) if is_whole else ("pool", "residual"))
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        found = dict(zip(tasks, pool.map(cell_ranking.found, tasks), strict=True))
    by_reduction = {
        name: [own for task, own in found.items() if task.reduction == name] for name in ("pool", "residual")
    }
    if is_whole:
        truth = cell_ranking.Truth(given.data, cells[: given.cells // 2])
        print("\n".join(cell_ranking.inherited(by_reduction["pool"], truth)))
    else:
        print("\n".join(cell_ranking.ranking(by_reduction, cell_ranking.Truth(given.data, cells))))


def print_subnet_cost(given: argparse.Namespace) -> None:
    """Measures and prints ``subnet_cost``."""
    print("\n".join(cell_ranking.subnet_cost(given.data, given.cells)))


def print_epochs(given: argparse.Namespace) -> None:
    """Measures and prints ``epochs``."""
    print("\n".join(supernet_epochs.epochs(given.data)))


def print_elastic(given: argparse.Namespace) -> None:
    """Trains the networks of ``elastic`` and prints the table."""
    with ProcessPoolExecutor(given.processes) as pool:
        print("\n".join(elastic_sizes.lines(list(pool.map(elastic_sizes.measure, range(given.seeds or 5))))))


def print_found(given: argparse.Namespace) -> None:
    """Runs the searches of ``found`` that have no row and prints the table."""
    paths = {"data": given.data, "root": given.root}
    found_cells.run(given.methods.split(","), range(given.seeds or 5), paths, given.processes)
    print("\n".join(found_figures.lines(given.data)))


def print_trajectory(given: argparse.Namespace) -> None:
    """Runs what is missing of the first seed's searches and prints their epochs."""
    for method in given.methods.split(","):
        task = found_cells.Task(method, 0, given.data, given.root)
        print("\n".join([method, *found_figures.trajectory(task)]))


FIGURES: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "screening": print_screening,
    "ranking": print_cells,
    "inherited": print_cells,
    "subnet_cost": print_subnet_cost,
    "epochs": print_epochs,
    "found": print_found,
    "trajectory": print_trajectory,
    "elastic": print_elastic,
}


def main() -> None:
    """Runs what a figure needs and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=[*FIGURES])
    parser.add_argument("--data", default=os.environ.get("HEIRLOOM_DATA", "../shared/data"))
    parser.add_argument("--seeds", type=int, help="by default 500 for screening, else 5")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    screening = parser.add_argument_group("screening")
    screening.add_argument("--inner", default="random", choices=[name for name in TUNERS if name != "metis"])
    screening.add_argument("--candidates", default="1,2,4,8,32")
    cells = parser.add_argument_group("ranking, inherited, subnet_cost")
    cells.add_argument("--cells", type=int, default=200, help="number of cells; inherited takes the first half")
    cells.add_argument("--draw", type=int, default=24, help="seed of the cells")
    cells.add_argument("--root", default="heirloom", help="root of the searches")
    cells.add_argument("--scale", type=float, default=1.0, help="factor on the steps of a supernet")
    found = parser.add_argument_group("found, trajectory")
    found.add_argument("--methods", default="screened,darts,gdas,enas")
    given = parser.parse_args()
    FIGURES[given.figure](given)


if __name__ == "__main__":
    main()
