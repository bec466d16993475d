"""Hypervolume of the fronts that NSGA-II and random search find: NAS-Bench-201, accuracy and FLOPs.

    $ python benchmarks/objectives.py --data DIR            # runs what is missing, then prints the table
    $ python benchmarks/objectives.py                       # prints the results so far

``DIR`` holds ``nasbench201_cifar10.parquet``. A search maximizes the validation accuracy after 12 epochs, and minimizes
the FLOPs of the cell's network. The table shows the hypervolume of the first N trials' front, as a share of that of the
whole benchmark. The reference point is 10 % (chance) and the greatest FLOPs of the table.

Each row of docs/objectives.csv is one search (tuner, slots, seed) after N trials. Existing searches are not run again.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rows import Results
from search_quality import interval
from simulation import simulate

from nas.core.budget import Budget
from nas.core.pareto import Losses, hypervolume, losses_of
from nas.core.spec import Spec
from nas.problems.tabular import TabularProblem

ROOT = Path(__file__).parents[1]
RESULTS = Results(path=ROOT / "docs" / "objectives.csv", fields=("tuner", "slots", "seed", "trials", "share"))
SIZES = (50, 100, 200, 400)
SLOTS = (1, 16)
CHANCE = 10.0
TUNERS = {"random": Spec("nas.tuners.random.RandomTuner"), "nsga2": Spec("nas.tuners.nsga2.Nsga2Tuner")}
"""The arguments are the defaults of conf/tuner."""
Row = dict[str, str | float]


@cache
def problem(data: str) -> TabularProblem:
    """Returns the table, loaded once per process."""
    return TabularProblem(
        str(Path(data) / "nasbench201_cifar10.parquet"),
        parameters=["op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3"],
        metrics={"accuracy": {"column": "c10_valid_12"}, "flops": {"column": "c10_flops_m", "direction": "minimize"}},
        seconds={"column": "c10_train_time_200_s", "factor": 0.06175},
    )


@cache
def whole_table(data: str) -> tuple[float, Losses]:
    """Returns the hypervolume of the whole table's front, and the reference point, as losses."""
    given = problem(data)
    points = [(-given.value(p, "c10_valid_12"), given.value(p, "c10_flops_m")) for p in given.space.points()]
    reference = (-CHANCE, max(flops for _, flops in points))
    return hypervolume(points, reference), reference


def rows_of(task: tuple[str, int, int, str]) -> list[Row]:
    """Returns the results of one search."""
    tuner, slots, seed, data = task
    given = problem(data)
    built = TUNERS[tuner].build(given.space, given.metrics, seed=seed)
    trials = simulate(given, built, Budget(trials=max(SIZES)), seed=seed, slots=slots)
    best, reference = whole_table(data)
    losses = [found for trial in trials if (found := losses_of(trial, given.metrics)) is not None]
    shares = [round(hypervolume(losses[:size], reference) / best, 6) for size in SIZES]
    return [
        dict(zip(RESULTS.fields, (tuner, slots, seed, size, share), strict=True))
        for size, share in zip(SIZES, shares, strict=True)
    ]


def kept() -> list[Row]:
    """Returns the rows of the results file."""
    return [{name: v if name == "tuner" else float(v) for name, v in row.items()} for row in RESULTS.kept()]


def run(n_seeds: int, data: str, n_processes: int) -> None:
    """Runs the searches that have no row yet and appends their rows."""
    there = {(row["tuner"], row["slots"], row["seed"]) for row in kept()}
    every = [(tuner, slots, seed, data) for seed in range(n_seeds) for slots in SLOTS for tuner in TUNERS]
    tasks = [task for task in every if task[:3] not in there]
    for done in RESULTS.run(rows_of, tasks, n_processes):
        if done % 20 == 0 or done == len(tasks):
            print(f"{done} of {len(tasks)} searches", file=sys.stderr)


def table() -> Iterator[str]:
    """Yields the lines of the table, as markdown.

    A cell has the mean (half of its 95 % interval) and the mean paired difference to random.
    """
    shares = {(row["tuner"], row["slots"], row["trials"], row["seed"]): float(row["share"]) for row in kept()}
    yield "| tuner | slots | seeds | " + " | ".join(f"{size} trials" for size in SIZES) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(SIZES)
    for slots in SLOTS:
        for tuner in TUNERS:
            seeds = sorted({seed for name, n, _, seed in shares if (name, n) == (tuner, slots)})
            cells = [tuner, str(slots), str(len(seeds))]
            for size in SIZES:
                own = [shares[tuner, slots, size, seed] for seed in seeds]
                cell = f"{statistics.mean(own):.4f} ({interval(own):.4f})"
                base = [shares.get(("random", slots, size, seed), math.nan) for seed in seeds]
                if tuner != "random":
                    paired = [a - b for a, b in zip(own, base, strict=True)]
                    cell += f", {statistics.mean(paired):+.4f} +- {interval(paired):.4f}"
                cells.append(cell)
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Runs the missing searches and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of the table; without it nothing runs")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.data:
        run(given.seeds, given.data, given.processes)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
