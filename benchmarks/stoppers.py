"""Epochs saved and accuracy lost by each stopper, on learning curves between real accuracies.

    $ python benchmarks/stoppers.py --data DIR            # 50 seeds, some minutes on two cores
    $ python benchmarks/stoppers.py --data DIR --seeds 20 --noise 1.0

``DIR`` holds ``nasbench201_cifar10.parquet``. A trial is a random cell of NAS-Bench-201 (Dong and Yang 2020). It trains
for 200 epochs on a simulated worker and reports every fourth.

Its curve is a Weibull curve, one of the families of Domhan et al. (2015, table 1), through three points. They are
chance (10 %) at the start, and the cell's real validation accuracies after 12 and 200 epochs. The steepness in between
is random, and each report has noise. The accuracy after 12 epochs is from a separate, complete schedule. A schedule of
200 epochs would not reach it so early, so early reports are more informative here than in practice.

In each seed all stoppers see the same 64 cells in the same order:

* saved: the share of the epochs that were not trained, compared with a search without a stopper;
* regret: the best cell's accuracy after 200 epochs minus the winner's, in percentage points (mean, 95 % interval); the
  winner is the best trial by its last report;
* worse winner: the number of seeds with a winner worse than without a stopper;
* gain at equal cost: the winner's gain in accuracy after 200 epochs if saved time is used for more cells.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from simulation import simulate

from nas.core.budget import Budget
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import Trial
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.training.problem import Problem, Simulation
from nas.training.trial_run import TrialRun
from nas.tuners.random import RandomTuner

N_EPOCHS = 200
REPORT_EVERY = 4
CHANCE = 10.0
STOPPERS: dict[str, Spec | None] = {
    "none": None,
    "median": Spec("nas.stoppers.median.MedianStopper"),
    "asha": Spec("nas.stoppers.asha.AshaStopper", {"min_steps": 4, "max_steps": N_EPOCHS}),
    "asha, min_steps=20": Spec("nas.stoppers.asha.AshaStopper", {"min_steps": 20, "max_steps": N_EPOCHS}),
    "asha, brackets=3": Spec("nas.stoppers.asha.AshaStopper", {"min_steps": 4, "brackets": 3, "max_steps": N_EPOCHS}),
    "curve": Spec("nas.stoppers.curve.CurveStopper"),
    "patience": Spec("nas.stoppers.patience.PatienceStopper"),
}


class CurveProblem(Problem):
    """The rows of the table as simulated trials.

    Args:
        table: NAS-Bench-201 as a parquet file.
        seed: The seed of the curves' shapes and noise.
        noise: The standard deviation of a report, in percentage points.
    """

    metrics = (Metric("accuracy"),)

    def __init__(self, table: str, seed: int, noise: float) -> None:
        self.rows = rows_of(table)
        self.space = ParameterSpace({"row": Int(0, len(self.rows) - 1)})
        self._seed = seed
        self._noise = noise

    def train(self, run: TrialRun) -> dict[str, float]:
        """Raises LookupError, since trials are simulated."""
        raise LookupError("nothing trains")

    def simulate(self, trial: Trial) -> Simulation:
        """Returns the cell's curve, with one second per epoch."""
        row = trial.point["row"]
        at_12, at_200 = self.rows[row]
        rng = random.Random(f"{self._seed}/{row}")
        power = rng.uniform(0.3, 0.9)
        limit = at_200 + 0.1
        # limit - (limit - CHANCE) * exp(-(rate * epoch) ** power), through the point at epoch 12
        share = min(max((limit - at_12) / (limit - CHANCE), 1e-3), 0.99) if limit > CHANCE else 0.99
        rate = (-math.log(share)) ** (1 / power) / 12
        values = [limit - (limit - CHANCE) * math.exp(-((rate * epoch) ** power)) for epoch in range(1, N_EPOCHS + 1)]
        drift = at_200 - values[-1]  # makes the curve end at the cell's accuracy
        curve = tuple(
            (epoch / N_EPOCHS, epoch, {"accuracy": value + drift * epoch / N_EPOCHS + rng.gauss(0.0, self._noise)})
            for epoch, value in enumerate(values, 1)
            if epoch % REPORT_EVERY == 0
        )
        return Simulation(float(N_EPOCHS), curve[-1][2], curve)


@cache
def rows_of(table: str) -> list[tuple[float, float]]:
    """Returns each cell's validation accuracies after 12 and 200 epochs, in percent."""
    import pandas as pd

    frame = pd.read_parquet(table, columns=["c10_valid_12", "c10_valid_200"])
    return [(float(a), float(b)) for a, b in frame.itertuples(index=False)]


def search(problem: CurveProblem, stopper: Spec | None, budget: Budget, *, seed: int, slots: int) -> list[Trial]:
    """Returns all trials of one search by random proposals."""
    tuner = RandomTuner(problem.space, problem.metrics, seed=seed)
    built = None if stopper is None else stopper.build(problem.metrics)
    return simulate(problem, tuner, budget, seed=seed, slots=slots, stopper=built)


class Outcome(NamedTuple):
    """The result of one stopper in one seed."""

    name: str
    epochs: float
    final: float
    """The winner's accuracy after 200 epochs."""
    best: float
    """The best accuracy of the proposed cells after 200 epochs."""
    at_equal_cost: float


def outcomes_of(task: tuple[int, argparse.Namespace]) -> list[Outcome]:
    """Returns the results of all stoppers in one seed."""
    seed, given = task
    problem = CurveProblem(str(Path(given.data) / "nasbench201_cifar10.parquet"), seed, given.noise)

    def final(trials: Sequence[Trial]) -> float:
        winner = max(trials, key=lambda trial: trial.value("accuracy") or -math.inf)
        return problem.rows[winner.point["row"]][1]

    found = []
    hours = N_EPOCHS * given.trials / given.slots / 3600
    for name, stopper in STOPPERS.items():
        trials = search(problem, stopper, Budget(trials=given.trials), seed=seed, slots=given.slots)
        more = search(problem, stopper, Budget(hours=hours), seed=seed, slots=given.slots) if stopper else trials
        in_time = [trial for trial in more if (trial.finished or math.inf) <= hours * 3600 + 1e-6]
        best = max(problem.rows[trial.point["row"]][1] for trial in trials)
        epochs = sum(trial.duration_s or 0.0 for trial in trials)
        found.append(Outcome(name, epochs, final(trials), best, final(in_time)))
    return found


def interval(values: Sequence[float]) -> str:
    """Returns the mean and its 95 % confidence interval, as text."""
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):5.2f} +- {half:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options: dict[str, Any] = {"--seeds": 50, "--trials": 64, "--slots": 8, "--processes": 2}
    parser.add_argument("--data", required=True, help="folder of nasbench201_cifar10.parquet")
    parser.add_argument("--noise", type=float, default=0.2, help="of each report, in percentage points (0.2)")
    for name, default in options.items():
        parser.add_argument(name, type=int, default=default, help=f"({default})")
    given = parser.parse_args(arguments)
    tasks = [(seed, given) for seed in range(given.seeds)]
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        outcomes = list(pool.map(outcomes_of, tasks))
    setting = f"{given.trials} trials of {N_EPOCHS} epochs on {given.slots} workers, noise {given.noise}"
    print(f"{given.seeds} seeds, {setting}\n")
    print("| stopper | epochs saved | regret (points) | worse winner | gain at equal cost (points) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for place, name in enumerate(STOPPERS):
        own, none = [seed[place] for seed in outcomes], [seed[0] for seed in outcomes]
        saved = 1 - sum(o.epochs for o in own) / sum(o.epochs for o in none)
        lost = sum(o.final < n.final for o, n in zip(own, none, strict=True))
        gain = [o.at_equal_cost - n.final for o, n in zip(own, none, strict=True)]
        regret = interval([o.best - o.final for o in own])
        print(f"| {name} | {saved:.0%} | {regret} | {lost} of {len(own)} | {interval(gain)} |")


if __name__ == "__main__":
    main()
