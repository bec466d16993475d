"""Quality of the tuners on published tables, by the published protocols.

    $ python benchmarks/search_quality.py --data DIR       # runs what is missing, then prints the tables
    $ python benchmarks/search_quality.py --data DIR --tuners random,evolution --seeds 500
    $ python benchmarks/search_quality.py                  # prints the results so far

``DIR`` holds ``nasbench201_cifar10.parquet`` and ``nasbench_macro.parquet``. Each row of docs/search_quality.csv is one
search (benchmark, tuner, seed). Existing rows are not run again, so that a long run can be resumed.

* ``nasbench201`` (Dong and Yang 2020, arXiv:2001.00326): 12,000 simulated seconds on one worker. A trial takes 12
  epochs and one pass over the validation images, and the search sees the accuracy after 12 epochs. The best trial that
  finished in time is scored by its accuracies after 200 epochs.
* ``nasbench_macro`` (Su et al. 2021, arXiv:2103.11922): the best mean accuracy among the first N trials.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rows import Results
from simulation import simulate

from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.core.trial import Trial
from nas.problems.nasbench201 import NasBench201Problem
from nas.problems.tabular import TabularProblem

ROOT = Path(__file__).parents[1]
RESULTS = Results(
    path=ROOT / "docs" / "search_quality.csv",
    fields=("benchmark", "tuner", "seed", "evaluations", "metric", "value"),
    line_end="\r\n",
)
SECONDS = 12_000.0
SIZES = (10, 50, 100, 200, 500)
PUBLISHED = {"random": (90.93, 93.70), "evolution": (91.19, 93.92), "reinforce": (91.09, 93.85)}
TUNERS: dict[str, Spec] = {
    "random": Spec("nas.tuners.random.RandomTuner"),
    "evolution": Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 10, "sample_size": 3}),
    "evolution_growing": Spec("nas.tuners.evolution.EvolutionTuner"),
    "anneal": Spec("nas.tuners.anneal.AnnealTuner"),
    "tpe": Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "tpe"}),
    "gp": Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "gp", "max_points": 500}),
    "cmaes": Spec("nas.tuners.cmaes.CmaEsTuner"),
    "reinforce": Spec("nas.tuners.reinforce.ReinforceTuner"),
    "pbt": Spec("nas.tuners.pbt.PbtTuner"),
    "nsga2": Spec("nas.tuners.nsga2.Nsga2Tuner"),
    "metis": Spec("nas.tuners.metis.MetisTuner"),
    "smac": Spec("nas.tuners.smac.SmacTuner"),
}
"""The arguments of published runs, or else the defaults of conf/tuner."""
Row = dict[str, Any]


@cache
def problem(benchmark: str, data: str) -> TabularProblem:
    """Returns the table, loaded once per process."""
    from omegaconf import OmegaConf

    files = {"nasbench201": "nasbench201_cifar10.parquet", "nasbench_macro": "nasbench_macro.parquet"}
    content = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "problem" / f"{benchmark}.yaml"))
    assert isinstance(content, dict)
    given = {str(key): value for key, value in content.items() if key not in ("_target_", "table")}
    class_ = NasBench201Problem if benchmark == "nasbench201" else TabularProblem
    return class_(str(Path(data) / files[benchmark]), **given)


def search(benchmark: str, tuner: Spec, seed: int, data: str) -> list[Trial]:
    """Returns all trials of one search on one simulated worker."""
    given = problem(benchmark, data)
    timed = Budget(hours=SECONDS / 3600, at_deadline="finish")
    budget = timed if benchmark == "nasbench201" else Budget(trials=max(SIZES))
    built = tuner.build(given.space, given.metrics, seed=seed)
    built.use_static_metrics(given.static_metrics)
    return simulate(given, built, budget, seed=seed)


def rows_of(task: tuple[str, str, int, str]) -> list[Row]:
    """Returns the results of one search."""
    benchmark, tuner, seed, data = task
    trials = search(benchmark, TUNERS[tuner], seed, data)
    found: list[tuple[str, int, float]] = []
    if benchmark == "nasbench201":
        in_time = [trial for trial in trials if (trial.finished or math.inf) <= SECONDS]
        best = max(in_time, key=lambda trial: trial.metrics["accuracy"])
        table = problem(benchmark, data)
        for metric, column in (("valid", "c10_valid_200"), ("test", "c10_test_200")):
            found.append((metric, len(in_time), table.value(best.point, column)))
    else:
        scores = [trial.metrics["accuracy"] for trial in trials]
        found = [(f"best_of_{size}", size, max(scores[:size])) for size in SIZES]
    return [
        dict(zip(RESULTS.fields, (benchmark, tuner, seed, n, metric, round(value, 4)), strict=True))
        for metric, n, value in found
    ]


def kept() -> list[Row]:
    """Returns the rows of the results file."""
    return [
        {**row, "seed": int(row["seed"]), "evaluations": int(row["evaluations"]), "value": float(row["value"])}
        for row in RESULTS.kept()
    ]


def run(benchmarks: Iterable[str], tuners: Iterable[str], n_seeds: int, data: str, n_processes: int) -> None:
    """Runs the searches that have no row yet and appends their rows."""
    there = {(row["benchmark"], row["tuner"], row["seed"]) for row in kept()}
    tasks = [
        (benchmark, tuner, seed, data)
        for benchmark in benchmarks
        for tuner in tuners
        for seed in range(n_seeds)
        if (benchmark, tuner, seed) not in there
    ]
    began = time.perf_counter()
    for done in RESULTS.run(rows_of, tasks, n_processes):
        if done % 100 == 0 or done == len(tasks):
            print(f"{done} of {len(tasks)} searches, {time.perf_counter() - began:.0f} s", file=sys.stderr)


def interval(values: list[float]) -> float:
    """Returns half the width of the mean's 95 % confidence interval (Student's t)."""
    from scipy.stats import t

    n = len(values)
    return float(t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan


def cell(values: list[float], paired: list[float]) -> str:
    """Returns mean, standard deviation, half of the mean's 95 % interval, and the paired difference."""
    text = f"{statistics.mean(values):.2f} +- {statistics.pstdev(values):.2f} ({interval(values):.2f})"
    return text + (f", {statistics.mean(paired):+.2f} +- {interval(paired):.2f}" if paired else "")


def lines(rows: list[Row], benchmark: str, metrics: Iterable[str]) -> Iterator[str]:
    """Yields a line for each tuner.

    A cell has mean and standard deviation, the confidence interval, and the paired difference to random search.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    evaluations: dict[str, list[int]] = {}
    for row in rows:
        if row["benchmark"] == benchmark:
            values.setdefault((row["tuner"], row["metric"]), {})[row["seed"]] = row["value"]
            evaluations.setdefault(row["tuner"], []).append(row["evaluations"])
    for tuner in dict.fromkeys(tuner for tuner, _ in values):
        cells = [tuner, str(len(next(found for (name, _), found in values.items() if name == tuner)))]
        if benchmark == "nasbench201":
            cells.append(f"{statistics.mean(evaluations[tuner]):.1f}")
        for metric in metrics:
            own, base = values[tuner, metric], values.get(("random", metric), {})
            paired = [own[seed] - base[seed] for seed in own.keys() & base.keys()]
            cells.append(cell(list(own.values()), [] if tuner == "random" else paired))
        if benchmark == "nasbench201":
            cells.append(" / ".join(f"{value:.2f}" for value in PUBLISHED.get(tuner, ())))
        yield "| " + " | ".join(cells) + " |"


def tables() -> Iterator[str]:
    """Yields the lines of the tables, as markdown.

    A cell has mean +- standard deviation (half of the mean's 95 % interval) and the difference to random.
    """
    rows = kept()
    yield "| NAS-Bench-201 | seeds | evaluations | validation (200 epochs) | test (200 epochs) | published |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from lines(rows, "nasbench201", ("valid", "test"))
    yield ""
    yield "| NAS-Bench-Macro | seeds | " + " | ".join(f"best of {size}" for size in SIZES) + " |"
    yield "| --- | --- |" + " --- |" * len(SIZES)
    yield from lines(rows, "nasbench_macro", [f"best_of_{size}" for size in SIZES])


def main() -> None:
    """Runs the missing searches and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of the tables; without it nothing runs")
    parser.add_argument("--tuners", default=",".join(TUNERS))
    parser.add_argument("--benchmarks", default="nasbench201,nasbench_macro")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.data:
        run(given.benchmarks.split(","), given.tuners.split(","), given.seeds, given.data, given.processes)
    print("\n".join(tables()))


if __name__ == "__main__":
    main()
