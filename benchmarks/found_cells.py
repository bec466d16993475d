"""Cells of NAS-Bench-201 that short searches choose without the table; oneshot.py runs them.

The searches are those of a user: ``problem=cells`` on the CIFAR-10 subset with images of 16x16, a tuner and a plan. The
table is read only after the end. A search stays in its root, so that it continues where it stopped. Its seconds are the
processor time of its process, of one thread, with tuner, records and finals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cell_ranking import images, table
from rows import Results

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.point import Point
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.supernet import is_epoch
from nas.core.trial import Trial
from nas.problems.cells import CellsProblem
from nas.problems.images.cell_costs import EDGES
from nas.search.definition import Search
from nas.supernets.operations import NAS_BENCH_201
from nas.training.problem import Ability
from nas.training.trial_run import TrialRun

RESULTS = Results(
    path=Path(__file__).parent.parent / "docs" / "found_cells.csv",
    fields=("method", "seed", "trials", "cpu_s", "cell", "table", "distance", "stopped"),
)
N_EPOCHS = 6
"""Supernet epochs of a differentiable search that does not stop, by default."""
DEEP = {"reduction": "residual", "channels": 8, "cells_per_stage": 3}
"""A thin published skeleton. With three cells a stage, short training shows which cells train well."""


class TimedCells(CellsProblem):
    """The problem without tests and exports; ``cpu_s`` is the processor time since the trial before."""

    ended_s = 0.0

    @property
    def abilities(self) -> frozenset[Ability]:
        """The abilities without ``test`` and ``export``."""
        return super().abilities - {Ability.TEST, Ability.EXPORT}

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns the scores and the processor time."""
        found, before_s = super().train(run), TimedCells.ended_s
        TimedCells.ended_s = time.process_time()
        return {**found, "cpu_s": TimedCells.ended_s - before_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A search that a user would run.

    Attributes:
        tuner: The name of its class in ``nas.tuners``, and options that differ from its yaml.
        problem: Options of ``problem=cells``.
        trials: The most trials before the finals.
        finalists: The number of finals.
    """

    tuner: tuple[str, Mapping[str, Any]]
    problem: Mapping[str, Any]
    trials: int = 200
    finalists: int = 5

    def search(self, data: str, seed: int) -> Search:
        """Returns the definition of the search."""
        target, options = self.tuner
        problem = Spec.of(TimedCells, data="cifar10", data_file=images(data), **self.problem)
        stages = (Stage(name="search", policies=frozenset({Policy.EARLY_STOP})), Stage(name="final"))
        return Search(problem=problem, tuner=Spec(f"nas.tuners.{target}", options), plan=PolicyPlan(stages), seed=seed)


_LOSS = {"n_epochs": 3, "objectives": ["loss", "accuracy"]}
_SHORT = {**_LOSS, "channels": 8, "epoch_steps": 65}
_TPE = {"_target_": "nas.tuners.optuna.OptunaTuner", "sampler": "tpe"}
_COLD = {
    **{"n_epochs": 12, "warm_up_epochs": 1, "subnets_per_epoch": 30, "learning_rate": 0.01, "entropy": 1e-4},
    "max_share": None,  # its collapse is shown
}
METHODS: Mapping[str, Method] = {
    "screened": Method(
        tuner=("screened.ScreenedTuner", {"inner": _TPE, "proxies": ["live_flops"]}),
        problem={**_LOSS, **DEEP},
        trials=24,
        finalists=3,
    ),
    "darts": Method(tuner=("differentiable.DartsTuner", {}), problem=_SHORT),
    "gdas": Method(tuner=("differentiable.GdasTuner", {}), problem={**_SHORT, "epoch_steps": 500}),
    "drnas": Method(tuner=("differentiable.DrnasTuner", {}), problem=_SHORT),
    "darts_pt": Method(tuner=("differentiable.DartsPtTuner", {}), problem=_SHORT),
    "enas": Method(
        tuner=("enas.EnasTuner", {"n_epochs": 6, "subnets_per_epoch": 40}),
        problem={**_LOSS, "epoch_steps": 500, "n_supernet_epochs": 6},
        trials=6 + 3 * 40,
    ),
    "enas_cold": Method(
        tuner=("enas.EnasTuner", _COLD),
        problem={"reduction": "residual", "epoch_steps": 65, "n_supernet_epochs": 12, "n_epochs": 1},
        trials=12 * 31,
        finalists=1,
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One search: a key of ``METHODS``, a seed, the folder of the data, and the root."""

    method: str
    seed: int
    data: str
    root: str

    def run(self) -> tuple[Point, Sequence[Trial]]:
        """Runs what is missing. Returns the chosen cell and the finished trials.

        Raises:
            RuntimeError: no cell was found.
        """
        torch.set_num_threads(1)
        method = METHODS[self.method]
        found = run_search(
            method.search(self.data, self.seed),
            root=self.root,
            name=f"found-{self.method}-{self.seed}",
            budget=Budget(trials=method.trials),
            finalists=method.finalists,
        )
        if found.winner is None:
            raise RuntimeError(f"{self}: no cell was found")
        return found.winner.point, list(found.lineage.finished)


def row_of(task: Task) -> list[dict[str, object]]:
    """Runs a search and returns its row."""
    point, trials = task.run()
    epochs = [trial for trial in trials if is_epoch(trial)]
    stopped = len(epochs) - 1 if epochs and "alpha_distance" in epochs[-1].metrics and len(epochs) < N_EPOCHS else ""
    return [
        {
            "method": task.method,
            "seed": task.seed,
            "trials": len(trials),
            "cpu_s": round(sum(trial.metrics["cpu_s"] for trial in trials), 1),
            "cell": digits_of(point),
            "table": round(table(task.data).value(point, "c10_test_200"), 2),
            "distance": round(sum(trial.metrics.get("alpha_distance", 0.0) for trial in epochs), 2),
            "stopped": stopped,
        }
    ]


def digits_of(point: Point) -> str:
    """Returns a cell as six digits, the indices of its operations."""
    return "".join(str(NAS_BENCH_201.index(point[edge])) for edge in EDGES)


def run(methods: Sequence[str], seeds: Sequence[int], given: Mapping[str, str], n_processes: int) -> None:
    """Runs the searches without a row and appends their rows.

    Args:
        methods: Keys of ``METHODS``.
        seeds: Their seeds.
        given: ``data`` and ``root``.
        n_processes: The number of processes.
    """
    there = {(row["method"], int(row["seed"])) for row in RESULTS.kept()}
    tasks = [Task(method, seed, **given) for seed in seeds for method in methods if (method, seed) not in there]
    for done in RESULTS.run(row_of, tasks, n_processes):
        print(f"{done} of {len(tasks)} searches", flush=True)
